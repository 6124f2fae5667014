"""``kimi_topk16``: router logits -> 16 expert ids and weights, per row.

The function ``kimi_topk16``, which runs it on torch tensors, is imported when it is asked for.
"""

from kreg.kernel import Kernel, Param

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .launch import kimi_topk16 as kimi_topk16

KERNEL = Kernel(
    name="kimi_topk16",
    version=1,
    summary="16 of 896 experts and their normalised sigmoid weights, per row",
    backend="cute",
    build="kreg.kernels.kimi_topk16.device:build",
    params=(Param("selection", str, allowed=("two_level", "bound_rank"), default="two_level"),),
    targets=("sm_90a", "sm_100a", "sm_120a"),
    file=__file__,
    sources=("device.py", "../_device/layout.py", "../_device/top16.py"),
)


def __getattr__(name: str) -> object:
    if name != "kimi_topk16":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .launch import kimi_topk16

    return kimi_topk16
