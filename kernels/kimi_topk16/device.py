"""Top-16 expert selection, one CTA a row.

Arguments of the kernel, in order:

========  =======  =======================================
mLogits   pointer  f32 [rows, 896], aligned to 16 bytes
mBias     pointer  f32 [896], aligned to 16 bytes
mWeights  pointer  f32 [rows, 16], written
mIds      pointer  i32 [rows, 16], written
========  =======  =======================================

The grid is (rows, 1, 1). What is selected and in which order: ``kreg.kernels._device.top16``.
"""

from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.runtime import make_ptr
from cutlass.cute.typing import AddressSpace
from cutlass.memory import SmemAllocator

from kreg.backends.cute import CuteBuild

from .._device.layout import EXPERTS, TOP
from .._device.top16 import SELECTIONS, Selection, load_row


class KimiTopk16:
    """The top 16 of each row."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.shared_bytes = selection.Shared.__sizeof__()

    @cute.jit
    def __call__(
        self, mLogits: cute.Pointer, mBias: cute.Pointer, mWeights: cute.Pointer, mIds: cute.Pointer, rows: Int32
    ) -> None:
        self.kernel(mLogits, mBias, mWeights, mIds).launch(
            grid=(rows, 1, 1), block=(self.selection.threads, 1, 1), smem=self.shared_bytes
        )

    @cute.kernel
    def kernel(self, mLogits: cute.Pointer, mBias: cute.Pointer, mWeights: cute.Pointer, mIds: cute.Pointer) -> None:
        row, _, _ = cute.arch.block_idx()
        shared = SmemAllocator().allocate(self.selection.Shared)
        tBias = load_row(self.selection, mBias)
        tLogits = load_row(self.selection, mLogits + Int64(row) * EXPERTS)
        self.selection.select(tLogits, tBias, shared, mWeights + Int64(row) * TOP, mIds + Int64(row) * TOP)


def build(*, selection: str = "two_level") -> CuteBuild:
    """Return what to compile for one variant."""
    chosen = SELECTIONS[selection]()
    kernel = KimiTopk16(chosen)
    floats = make_ptr(Float32, 0, AddressSpace.gmem, assumed_align=16)
    ids = make_ptr(Int32, 0, AddressSpace.gmem, assumed_align=16)
    return CuteBuild(
        function=kernel,
        arguments=(floats, floats, floats, ids, Int32(1)),
        block=(chosen.threads, 1, 1),
        grid=("rows", 1, 1),
        shared_bytes=kernel.shared_bytes,
    )
