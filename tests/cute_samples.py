"""Small CuTe DSL kernels, right and wrong, that the tests of the backend compile."""

from __future__ import annotations

from cutlass import Float32, Int32, const_expr, cute
from cutlass.cute.runtime import make_ptr
from cutlass.cute.typing import AddressSpace

from kreg.backends.cute import CuteBuild


class Scale:
    """Doubles f32 [128], in one of several ways."""

    def __init__(self, way: str) -> None:
        self.way = way

    @cute.jit
    def __call__(self, mX: cute.Pointer, count: Int32) -> None:
        self.kernel(mX, count).launch(grid=(1, 1, 1), block=(128, 1, 1))
        if const_expr(self.way == "two"):
            self.kernel(mX, count + 1).launch(grid=(1, 1, 1), block=(128, 1, 1))

    @cute.kernel
    def kernel(self, mX: cute.Pointer, count: Int32) -> None:
        thread, _, _ = cute.arch.thread_idx()
        tX = cute.make_tensor(mX, cute.make_layout(128))
        if const_expr(self.way == "wrong"):
            tX[thread] = tX[thread] + "a string"
        if thread < count:
            tX[thread] = tX[thread] * 2.0


def build(way: str) -> CuteBuild:
    """Return what to compile."""
    if way == "raise":
        raise ZeroDivisionError("while building")
    floats = make_ptr(Float32, 0, AddressSpace.gmem, assumed_align=16)
    block = (64, 1, 1) if way == "block" else (128, 1, 1)
    return CuteBuild(function=Scale(way), arguments=(floats, Int32(1)), block=block, grid=(1, 1, 1), shared_bytes=0)
