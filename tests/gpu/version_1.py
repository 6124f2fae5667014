"""Version 1 of the fused kernel and of its selection, with the defect that version 2 fixed, kept to reproduce it."""

from kreg.kernel import Kernel, Param

_SOURCES = (
    "version_1_device.py",
    "../../kernels/all_gather_pair_kimi_topk/device.py",
    "../../kernels/kimi_topk16/device.py",
    "../../kernels/_device/exchange.py",
    "../../kernels/_device/layout.py",
    "../../kernels/_device/top16.py",
)

TOPK16 = Kernel(
    name="kimi_topk16_version_1",
    version=1,
    backend="cute",
    build="version_1_device:build_topk16",
    targets=("sm_90a",),
    file=__file__,
    sources=_SOURCES,
)

FUSED = Kernel(
    name="all_gather_pair_kimi_topk_version_1",
    version=1,
    backend="cute",
    build="version_1_device:build_fused",
    params=(
        Param("world_size", int, allowed=(2,)),
        Param("transport", str, allowed=("pull", "push")),
    ),
    targets=("sm_90a",),
    file=__file__,
    sources=_SOURCES,
)

LARGE = Kernel(
    name="large_shared_memory",
    version=1,
    backend="cute",
    build="version_1_device:build_large",
    targets=("sm_90a",),
    file=__file__,
    sources=("version_1_device.py",),
    summary="copies 96 KiB through shared memory, more than a kernel may use without asking",
)
