"""The driver: which GPUs this machine has."""

from __future__ import annotations


def device_targets() -> list[str]:
    """Return the target of each kind of GPU of this machine, or nothing where there is no driver or no GPU.

    A GPU of compute capability 9.0 or more is named with the suffix ``a``, the target that offers all it has.
    """
    from cuda.bindings import driver
    from cuda.pathfinder import DynamicLibNotFoundError

    try:
        initialised = driver.cuInit(0)[0] == driver.CUresult.CUDA_SUCCESS
    except DynamicLibNotFoundError:
        return []
    count = driver.cuDeviceGetCount()[1] if initialised else 0
    found = []
    for ordinal in range(count):
        _, device = driver.cuDeviceGet(ordinal)
        attribute = driver.CUdevice_attribute
        _, major = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        _, minor = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
        found.append(f"sm_{major}{minor}{'a' if major >= 9 else ''}")
    return sorted(set(found))
