"""``kimi_topk16``: router logits -> 16 expert ids and weights, per row."""

from kreg.kernel import Kernel

KERNEL = Kernel(
    name="kimi_topk16",
    version=1,
    summary="16 of 896 experts and their normalised sigmoid weights, per row",
    backend="cute",
    build="kreg.kernels.kimi_topk16.device:build",
    targets=("sm_90a", "sm_100a", "sm_120a"),
    file=__file__,
    sources=("device.py", "../_device/top16.py"),
)
