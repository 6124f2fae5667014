"""Device code of the kernels in ``version_1``."""

from __future__ import annotations

from cutlass import Float32, Int32, Uint32, Uint64, cute
from cutlass.cute.runtime import make_ptr
from cutlass.cute.typing import AddressSpace
from cutlass.memory import SmemAllocator
from kreg.kernels._device.top16 import EXPERT_FIELD, ORDER_OF_MINUS_INFINITY, SELECTIONS, TwoLevel
from kreg.kernels.all_gather_pair_kimi_topk import device as fused
from kreg.kernels.kimi_topk16 import device as topk16

from kreg.backends.cute import CuteBuild


class TwoLevelVersion1(TwoLevel):
    """The two-level selection with version 1's refill: a valid key, at minus infinity, of the expert just taken."""

    def refill(self, taken: Uint64) -> Uint64:
        """Return the key that can win again."""
        return (Uint64(ORDER_OF_MINUS_INFINITY) << 32) | Uint64(Uint32(taken) & EXPERT_FIELD)


SELECTIONS["version_1"] = TwoLevelVersion1


def build_topk16() -> CuteBuild:
    """Return version 1 of the standalone selection."""
    return topk16.build(selection="version_1")


def build_fused(*, world_size: int, transport: str) -> CuteBuild:
    """Return version 1 of the fused kernel."""
    return fused.build(world_size=world_size, transport=transport, selection="version_1")


class Large:
    """Copies f32 [24576] through 96 KiB of shared memory, backwards."""

    count = 24576
    threads = 256

    @cute.jit
    def __call__(self, mIn: cute.Pointer, mOut: cute.Pointer) -> None:
        self.kernel(mIn, mOut).launch(grid=(1, 1, 1), block=(self.threads, 1, 1), smem=4 * self.count)

    @cute.kernel
    def kernel(self, mIn: cute.Pointer, mOut: cute.Pointer) -> None:
        thread, _, _ = cute.arch.thread_idx()
        sValues = SmemAllocator().allocate_array(Float32, self.count)
        for i in range(self.count // self.threads):
            at = i * self.threads + thread
            cute.arch.store(sValues + at, cute.arch.load(mIn + at, Float32), ss="cta")
        cute.arch.sync_threads()
        for i in range(self.count // self.threads):
            at = i * self.threads + thread
            cute.arch.store(mOut + at, cute.arch.load(sValues + (Int32(self.count - 1) - at), Float32, ss="cta"))


def build_large() -> CuteBuild:
    """Return the kernel that needs 96 KiB of shared memory."""
    floats = make_ptr(Float32, 0, AddressSpace.gmem, assumed_align=16)
    return CuteBuild(
        function=Large(), arguments=(floats, floats), block=(256, 1, 1), grid=(1, 1, 1), shared_bytes=4 * Large.count
    )
