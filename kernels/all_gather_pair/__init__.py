"""``all_gather_pair``: each rank's slice of two tensors -> both whole tensors, on every rank."""

from kreg.kernel import Kernel, Param

KERNEL = Kernel(
    name="all_gather_pair",
    version=1,
    summary="all-gather of two tensors at once between the GPUs of one host",
    backend="cute",
    build="kreg.kernels.all_gather_pair.device:build",
    params=(
        Param("world_size", int, allowed=range(2, 17), warm=(2, 4, 8, 16)),
        Param("transport", str, allowed=("pull", "push")),
    ),
    targets=("sm_90a", "sm_100a", "sm_120a"),
    file=__file__,
    sources=("device.py", "../_device/exchange.py", "../_device/layout.py"),
)
