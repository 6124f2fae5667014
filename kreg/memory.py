"""Device memory that ranks share: allocated here, seen by peers in this process or in others of the host.

Plain driver allocations, not torch's: an exported handle names a whole allocation, and torch's allocator hands out
parts. CUDA IPC handles of the legacy kind were right at two processes on one GPU, where torch's symmetric memory
refuses two ranks on one device (measured on an H200, 2026-12-01).
"""

from __future__ import annotations

from cuda.bindings import driver

from kreg.loader import InContext, check


class DeviceMemory:
    """An allocation on a device, zeroed: its ``address`` and ``size`` in bytes. Raises ``LoadError``."""

    def __init__(self, device: int, size: int) -> None:
        self.device = device
        self.size = size
        with InContext(device):
            self._pointer = check(driver.cuMemAlloc(size), f"allocate {size} bytes on device {device}")
            check(driver.cuMemsetD8(self._pointer, 0, size), "clear device memory")
            check(driver.cuCtxSynchronize(), "wait for the device")
        self.address = int(self._pointer)

    def read(self, offset: int, size: int) -> bytes:
        """Copy bytes to the host, after all work on the device that was launched before."""
        found = bytearray(size)
        with InContext(self.device):
            check(driver.cuMemcpyDtoH(found, self.address + offset, size), "read device memory")
        return bytes(found)

    def export(self) -> bytes:
        """Return a handle by which another process of this host can open the memory."""
        with InContext(self.device):
            handle = check(driver.cuIpcGetMemHandle(self._pointer), "export device memory")
        return bytes(handle.reserved)

    def free(self) -> None:
        """Give the memory back. Waits for every kernel that runs on the device."""
        with InContext(self.device):
            check(driver.cuMemFree(self._pointer), "free device memory")


class PeerMemory:
    """Another process's ``DeviceMemory``, opened on a device of this process. Raises ``LoadError``."""

    def __init__(self, device: int, handle: bytes) -> None:
        self.device = device
        wanted = driver.CUipcMemHandle()
        wanted.reserved = handle
        lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        with InContext(device):
            self._pointer = check(driver.cuIpcOpenMemHandle(wanted, lazily), "open a peer's device memory")
        self.address = int(self._pointer)

    def close(self) -> None:
        """Unmap the memory here; it stays its owner's."""
        with InContext(self.device):
            check(driver.cuIpcCloseMemHandle(self._pointer), "close a peer's device memory")
