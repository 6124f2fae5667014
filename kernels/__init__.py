"""The kernels that ship with kreg: expert routing for mixture-of-experts decode on several GPUs of one host.

Each subpackage has its declaration in ``__init__`` (``KERNEL``), its device code in ``device``.
"""

NAMES = ("all_gather_pair", "all_gather_pair_kimi_topk", "kimi_topk16")
