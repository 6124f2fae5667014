"""``all_gather_pair_kimi_topk``: the paired gather and the top-16 of the gathered router row, in one launch.

Version 2: a lane whose keys are used up refills with the zero key, below every valid one. Version 1 refilled with a
valid key at minus infinity and could select an expert twice where fewer than 16 selections are above it.
"""

from kreg.kernel import Kernel, Param

KERNEL = Kernel(
    name="all_gather_pair_kimi_topk",
    version=2,
    summary="all-gather of the down projection and router row, and the top-16 of that row, in one launch",
    backend="cute",
    build="kreg.kernels.all_gather_pair_kimi_topk.device:build",
    params=(
        # A rank's share of the 224 packs (16 bytes) of the router row must be whole.
        Param("world_size", int, allowed=(2, 4, 7, 8, 14, 16), warm=(2, 4, 8, 16)),
        Param("transport", str, allowed=("pull", "push")),
        Param("selection", str, allowed=("two_level", "bound_rank"), default="two_level"),
    ),
    targets=("sm_90a", "sm_100a", "sm_120a"),
    file=__file__,
    sources=("device.py", "../_device/exchange.py", "../_device/layout.py", "../_device/top16.py"),
)
