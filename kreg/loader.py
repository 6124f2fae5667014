"""The driver: from an artifact to a kernel that is resident on a device.

A loaded kernel is kept for the life of the process: unloading waits for every running kernel and breaks a graph that
holds it. It is forced resident before anybody gets it, since under CUDA lazy loading the first launch of a kernel waits
for running work, and two kernels that wait for each other would then never end. Kernels live in a device's primary
context, which is torch's; the caller's current context is left as it was.
"""

from __future__ import annotations

from _thread import allocate_lock

from cuda.bindings import driver

from kreg.cubin import Cubin
from kreg.errors import CubinError, LoadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kreg.artifact import Artifact
    from kreg.manifest import Launch

_SUCCESS = driver.CUresult.CUDA_SUCCESS
_ATTRIBUTE = driver.CUdevice_attribute
_DEFAULT_SHARED_LIMIT = 48 << 10
"""Dynamic shared memory a kernel may use without asking (CUDA C++ Programming Guide, "Technical Specifications")."""

_loaded: dict[tuple[str, str, Launch, int], LoadedKernel] = {}
_functions: dict[tuple[str, str, int], driver.CUfunction] = {}
_shared: dict[tuple[str, str, int], int] = {}
_contexts: dict[int, Any] = {}
_targets: dict[int, list[str]] = {}
_lock = allocate_lock()


class LoadedKernel:
    """A kernel on a device: ``function`` is the driver's handle, ``artifact`` what it was loaded from."""

    __slots__ = ("artifact", "device", "function")

    def __init__(self, artifact: Artifact, device: int, function: driver.CUfunction) -> None:
        self.artifact = artifact
        self.device = device
        self.function = function


def load(artifact: Artifact, device: int = 0) -> LoadedKernel:
    """Return the kernel of ``artifact``, resident on the device with that ordinal.

    A cubin is loaded once per kernel and device. Must not be called while the calling thread captures a graph. Raises
    ``LoadError`` that names artifact, target and device: another architecture, a driver too old for the image, no
    memory, no such device.
    """
    key = (artifact.entry_key, artifact.cubin_digest, artifact.launch, device)
    found = _loaded.get(key)
    if found is None:
        with _lock:
            found = _loaded.get(key) or LoadedKernel(artifact, device, _function(artifact, device))
            _loaded[key] = found
    return found


def _function(artifact: Artifact, device: int) -> driver.CUfunction:
    """Return the driver's handle, shared by all artifacts with the same kernel of the same cubin."""
    key = (artifact.cubin_digest, artifact.symbol, device)
    if key not in _functions:
        _functions[key] = _load(artifact, device)
    wanted = artifact.launch.shared_bytes
    if wanted > _shared.get(key, _DEFAULT_SHARED_LIMIT):  # Never lowered: another artifact may need it.
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with InContext(device):
            _call(artifact, device, driver.cuFuncSetAttribute, _functions[key], attribute, wanted)
        _shared[key] = wanted
    return _functions[key]


def _load(artifact: Artifact, device: int) -> driver.CUfunction:
    manifest = artifact.manifest
    targets = targets_of(device)
    if manifest.target not in targets:
        raise LoadError(
            f"`{manifest.spec}` ({artifact.cubin_digest[:12]}) is for {manifest.target}; device {device} runs "
            f"{', '.join(targets)}"
        )
    try:
        Cubin(artifact.cubin)  # The driver does not know the size: an image that is cut short kills the process.
    except CubinError as error:
        raise LoadError(f"cannot load {_describe(artifact, device)}: {error}") from error
    with InContext(device):
        module = _call(artifact, device, driver.cuModuleLoadData, artifact.cubin)
        function = _call(artifact, device, driver.cuModuleGetFunction, module, manifest.symbol.encode())
        _call(artifact, device, driver.cuFuncLoad, function)
    return function


def _call(artifact: Artifact, device: int, function: Any, *arguments: object) -> Any:
    error, *result = function(*arguments)
    if error is not _SUCCESS:
        made_by = ", ".join(f"{name} {version}" for name, version in artifact.manifest.toolchain.items())
        raise LoadError(
            f"cannot load {_describe(artifact, device)}: {error.name}; the driver supports CUDA {_driver_version()}, "
            f"the cubin was made by {made_by}"
        )
    return result[0] if result else None


def _describe(artifact: Artifact, device: int) -> str:
    manifest = artifact.manifest
    return f"`{manifest.spec}` ({artifact.cubin_digest[:12]}) for {manifest.target} on device {device}"


def _driver_version() -> str:
    version = int(driver.cuDriverGetVersion()[1])
    return f"{version // 1000}.{version % 1000 // 10}"


class InContext:
    """Make a device's primary context current during a block, and the caller's again after it.

    Raises ``LoadError`` if there is no driver or no such device.
    """

    def __init__(self, device: int) -> None:
        self._context = _primary_context(device)

    def __enter__(self) -> None:
        check(driver.cuCtxPushCurrent(self._context), "make the device's context current")

    def __exit__(self, *_: object) -> None:
        driver.cuCtxPopCurrent()


def _primary_context(device: int) -> Any:
    if device not in _contexts:
        handle = check(_initialised().cuDeviceGet(device), f"find device {device}")
        # Never released: loaded kernels live in it as long as the process.
        _contexts[device] = check(driver.cuDevicePrimaryCtxRetain(handle), f"use device {device}")
    return _contexts[device]


def check(result: Sequence[Any], what: str) -> Any:
    """Return what a driver call returned besides its error code. Raises ``LoadError`` that says ``what`` failed."""
    error, *values = result
    if error != _SUCCESS:
        raise LoadError(f"cannot {what}: {error.name}")
    return values[0] if values else None


def _initialised() -> Any:
    from cuda.pathfinder import DynamicLibNotFoundError

    try:
        check(driver.cuInit(0), "use CUDA")
    except DynamicLibNotFoundError as error:
        raise LoadError("cannot use CUDA: this machine has no NVIDIA driver") from error
    return driver


def describe_device(device: int = 0) -> tuple[str, str]:
    """Return the name of a device, and the CUDA version that the driver supports. Raises ``LoadError``."""
    handle = check(_initialised().cuDeviceGet(device), f"find device {device}")
    name = check(driver.cuDeviceGetName(256, handle), f"ask device {device} its name")
    return bytes(name).partition(b"\0")[0].decode(), _driver_version()


def targets_of(device: int) -> list[str]:
    """Return the targets whose cubins run on a device, the one that offers most first. Raises ``LoadError``."""
    if device not in _targets:
        handle = check(_initialised().cuDeviceGet(device), f"find device {device}")
        major = driver.cuDeviceGetAttribute(_ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle)
        minor = driver.cuDeviceGetAttribute(_ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle)
        _targets[device] = runnable_targets(int(check(major, "ask the device")), int(check(minor, "ask the device")))
    return _targets[device]


def runnable_targets(major: int, minor: int) -> list[str]:
    """Return the targets whose cubins run on a compute capability, the one that offers most first.

    A plain target also runs on later minor revisions of its major one, a family target within its family
    (CUDA C++ Programming Guide, "Binary Compatibility" and "Family-Specific Features").
    """
    exact = [f"sm_{major}{minor}a"] if major >= 9 else []
    family = [f"sm_{major}{m}f" for m in range(minor, -1, -1)] if major >= 10 else []
    return [*exact, *family, *(f"sm_{major}{m}" for m in range(minor, -1, -1))]


def choose_target(declared: Sequence[str], device: int) -> str:
    """Return which of the declared targets is best on a device. Raises ``LoadError`` if none runs there."""
    runs = targets_of(device)
    for target in runs:
        if target in declared:
            return target
    raise LoadError(f"none of the declared targets {', '.join(declared)} runs on device {device} ({runs[0]})")


def device_targets() -> list[str]:
    """Return the most specific target of each kind of GPU here, or nothing where there is no driver or no GPU."""
    try:
        count = check(_initialised().cuDeviceGetCount(), "count devices")
    except LoadError:
        return []
    return sorted({targets_of(device)[0] for device in range(count)})
