"""Launching: prepare kernels ahead of serving, then one driver call per launch.

``prepare`` resolves and loads; a ``Launch`` packs a kernel's arguments once, after checking them against the
manifest's parameter sizes, so that a call only replaces the leading ones and calls the driver. torch is imported
where a stream or a tensor is asked for, and nowhere else; a ``Launch`` itself needs none.
"""

from __future__ import annotations

import ctypes
from functools import partial
from struct import Struct

from cuda.bindings import driver

from kreg.errors import LaunchError
from kreg.kernel import Kernel
from kreg.loader import InContext, LoadedKernel, choose_target, load
from kreg.registry import REGISTRY
from kreg.resolver import resolve
from kreg.spec import parse_spec_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    import torch

    from kreg.artifact import Artifact
    from kreg.manifest import Manifest
    from kreg.store import Store

_OTHER_CONTEXT = (
    driver.CUresult.CUDA_ERROR_INVALID_CONTEXT,
    driver.CUresult.CUDA_ERROR_INVALID_HANDLE,
    driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
)
_observer: Callable[[Artifact], None] | None = None
_SUCCESS = driver.CUresult.CUDA_SUCCESS
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def prepare(
    kernel: str | Kernel | Iterable[str],
    *,
    device: int | None = None,
    store: str | os.PathLike[str] | Store | None = None,
    **params: object,
) -> LoadedKernel | list[LoadedKernel]:
    """Resolve and load a kernel, or each of a list of spec texts, ahead of use.

    ``device`` is an ordinal, torch's current one if not given; the target is the best one declared for it. A spec
    text in a list may leave out the target. Raises ``LaunchError`` under graph capture, where nothing may be
    compiled or loaded, and what ``resolve`` and ``load`` raise.
    """
    if not isinstance(kernel, (str, Kernel)):
        return [_prepare_text(text, device, store) for text in kernel]
    declared = kernel if isinstance(kernel, Kernel) else REGISTRY.get(kernel)
    return _prepare(declared, params, device, store)


def _prepare_text(text: str, device: int | None, store: str | os.PathLike[str] | Store | None) -> LoadedKernel:
    parts = parse_spec_text(text)
    kernel = REGISTRY.get(parts.kernel)
    spec = kernel.parse(parts, choose_target(kernel.targets, _ordinal(device)))
    return _prepare(kernel, dict(spec.params), device, store, spec.target)


def _prepare(
    kernel: Kernel,
    params: Mapping[str, object],
    device: int | None,
    store: str | os.PathLike[str] | Store | None,
    target: str | None = None,
) -> LoadedKernel:
    refuse_capture(kernel.name)
    ordinal = _ordinal(device)
    chosen = target or choose_target(kernel.targets, ordinal)
    return load(resolve(kernel, target=chosen, store=store, **dict(params)), ordinal)  # type: ignore[arg-type]


def _ordinal(device: int | None) -> int:
    if device is not None:
        return device
    import torch

    return torch.cuda.current_device()


def refuse_capture(name: str) -> None:
    """Raise ``LaunchError`` if torch is in this process and captures a graph on its current stream."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise LaunchError(
            f"{name} is not loaded, and a graph is being captured; call kreg.prepare({name!r}, ...) or launch it "
            f"once before the capture"
        )


def observe_launches(observer: Callable[[Artifact], None] | None) -> None:
    """Call ``observer`` with the artifact of every launch, eager or captured, of all that is bound from now on.

    What was bound before is not observed, and nothing is paid where no observer was set: it is for test suites, which
    set it before anything is bound, to know which machine code a test ran.
    """
    global _observer
    _observer = observer


def _observed(launch: Callable[..., Any], observer: Callable[[Artifact], None], artifact: Artifact) -> partial[Any]:
    def call(*arguments: Any) -> Any:
        observer(artifact)
        return launch(*arguments)

    return partial(call)


class Launch:
    """A kernel with its arguments, packed once.

    ``arguments`` are all of the kernel's, in order: addresses and integers. The first ``changing`` of them are given
    anew with every call. ``grid`` is the kernel's grid where its rule names no run-time extent, else None. Raises
    ``LaunchError`` if the arguments do not fit the manifest.
    """

    def __init__(self, kernel: LoadedKernel, arguments: Sequence[int], *, changing: int = 0) -> None:
        manifest = kernel.artifact.manifest
        self.kernel = kernel
        self.grid = _static_grid(manifest.launch.grid)
        self._packed = _pack(manifest, arguments)
        self._prefix = Struct(_format(manifest, changing))
        self._slots: list[_Slot] = []

    def bind(self, grid: tuple[int, int, int], stream_of: Callable[[], int]) -> Callable[..., None]:
        """Return a function that launches on ``grid``: it takes the changing arguments and nothing else.

        ``stream_of`` is asked for the stream at every call, a ``cudaStream_t`` as an integer. The function may be
        called from any thread, in any context, and raises ``LaunchError``. It is a closure over all it needs, and
        takes a parameter buffer from a free list rather than a lock: 1.2 us of Python where methods and a lock took
        2.2 (2026-12-01).
        """
        manifest = self.kernel.artifact.manifest
        shape = (*grid, *manifest.launch.block, manifest.launch.shared_bytes)
        again = launch = partial(driver.cuLaunchKernel, self.kernel.function, *shape)
        if _observer is not None:
            launch = _observed(launch, _observer, self.kernel.artifact)
        slots, new_slot, launch_elsewhere = self._slots, self._new_slot, self._launch_elsewhere

        def call(*changing: int) -> None:
            # A slot is this call's alone; the driver has copied the buffer when its call returns.
            slot = slots.pop() if slots else new_slot()
            slot.pack(*changing)
            error = launch(stream_of(), slot.address, 0)[0]
            slots.append(slot)
            if error is not _SUCCESS:
                launch_elsewhere(error, again, stream_of, changing)

        return call

    def _new_slot(self) -> _Slot:
        return _Slot(self._packed, self._prefix, self.kernel.artifact.manifest)

    def _launch_elsewhere(
        self,
        error: driver.CUresult,
        launch: Callable[..., Any],
        stream_of: Callable[[], int],
        changing: Sequence[int],
    ) -> None:
        """Launch again from a thread or context that is not the kernel's, or raise."""
        if error in _OTHER_CONTEXT:
            slot = self._new_slot()
            slot.pack(*changing)
            with InContext(self.kernel.device):
                error = launch(stream_of(), slot.address, 0)[0]
        if error != _SUCCESS:
            spec = self.kernel.artifact.manifest.spec
            raise LaunchError(f"cannot launch `{spec}` on device {self.kernel.device}: {error.name}")


class _Slot:
    """A parameter buffer, the function that packs the changing arguments into it, and what the driver is given."""

    __slots__ = ("_buffer", "_pointers", "address", "pack")

    def __init__(self, packed: bytes, prefix: Struct, manifest: Manifest) -> None:
        self._buffer = ctypes.create_string_buffer(packed, len(packed))
        start = ctypes.addressof(self._buffer)
        offsets = [offset for offset, _ in manifest.parameters]
        self._pointers = (ctypes.c_void_p * max(1, len(offsets)))(*(start + offset for offset in offsets))
        self.address = ctypes.addressof(self._pointers)
        self.pack = partial(prefix.pack_into, self._buffer, 0)


def on_current_stream(launch: Launch, grid: tuple[int, int, int] | None = None) -> Callable[..., None]:
    """Bind a launch to torch's current stream of the kernel's device, whatever that is at each call.

    The stream is asked for by the call that torch's generated code uses: 0.09 us, where the public one takes 4.
    """
    from torch import _C

    chosen = grid or launch.grid
    if chosen is None:
        raise LaunchError(f"the grid of {launch.kernel.artifact.manifest.kernel} depends on run-time extents")
    return launch.bind(chosen, partial(_C._cuda_getCurrentRawStream, launch.kernel.device))  # noqa: SLF001


def _static_grid(rule: tuple[int | str, int | str, int | str]) -> tuple[int, int, int] | None:
    x, y, z = rule
    if isinstance(x, int) and isinstance(y, int) and isinstance(z, int):
        return x, y, z
    return None


def _format(manifest: Manifest, count: int) -> str:
    """Return the struct format of the first ``count`` parameters, gaps included."""
    text, at = "<", 0
    for offset, size in manifest.parameters[:count]:
        if size not in _CODES:
            raise LaunchError(f"{manifest.kernel} has a parameter of {size} bytes, which is no pointer or scalar")
        text += f"{offset - at}x{_CODES[size]}"
        at = offset + size
    return text


def _pack(manifest: Manifest, arguments: Sequence[int]) -> bytes:
    if len(arguments) != len(manifest.parameters):
        raise LaunchError(f"{manifest.kernel} takes {len(manifest.parameters)} arguments, not {len(arguments)}")
    layout = Struct(_format(manifest, len(arguments)))
    if layout.size > manifest.parameter_bytes:
        raise LaunchError(f"{manifest.kernel}: parameters of {layout.size} bytes in {manifest.parameter_bytes}")
    sizes = [size for _, size in manifest.parameters]
    packed = layout.pack(*(value & (1 << 8 * size) - 1 for value, size in zip(arguments, sizes, strict=True)))
    return packed.ljust(max(1, manifest.parameter_bytes), b"\0")


def check_tensor(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: int, alignment: int = 16
) -> int:
    """Return a tensor's address if the kernel can take it. Raises ``LaunchError`` that names the argument and why."""
    if tensor.dtype is dtype and tensor.get_device() == device and tensor.shape == shape and tensor.is_contiguous():
        address: int = tensor.data_ptr()
        if address % alignment == 0:
            return address
    raise LaunchError(f"{name} {_complaint(tensor, dtype, shape, device, alignment)}")


def _complaint(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: int, alignment: int) -> str:
    if tensor.dtype is not dtype:
        return f"has dtype {tensor.dtype}; it takes {dtype}"
    if tensor.get_device() != device:
        return f"is on {tensor.device}; the others are on cuda:{device}"
    if tensor.shape != shape:
        return f"has shape {tuple(tensor.shape)}; it takes {shape}"
    if not tensor.is_contiguous():
        return f"has strides {tensor.stride()}; it must be contiguous"
    return f"starts at an address that is not a multiple of {alignment} bytes"
