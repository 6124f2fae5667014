"""The plain gather: each rank's slices of two tensors become both whole tensors, on every rank.

Arguments of the kernel, in order:

============  =======  ==============================================================================
first_in      pointer  [batch, first_packs] packs of 16 bytes: this rank's slice of ``first``
second_in     pointer  [batch, second_packs] packs: this rank's slice of ``second``
first_out     pointer  [batch, world_size * first_packs] packs, written
second_out    pointer  [batch, world_size * second_packs] packs, written
own           pointer  this rank's staging memory
peers         pointer  world_size - 1 of them: entry q - 1 is the staging of rank (rank + q) % world_size
epochs        pointer  u32 [PAIR_CTAS], one counter per CTA
status        pointer  u32, bit r set: rank r was missing
rank          i32
batch         i32      rows, at least 1
first_packs   i32      packs in one rank's slice of a row of ``first``
second_packs  i32      packs in one rank's slice of a row of ``second``
slot_bytes    i64      distance between the slots: at least ``layout.slot_bytes`` of this launch
timeout_ns    i64      0: wait for ever
============  =======  ==============================================================================

Pointers are 8 bytes and aligned to 16, but epochs and status to 4. The tensors may be of any type. Rows of any size
from one pack on and any batch run on one variant, but every rank must launch with the same sizes. The protocol, the
layout of staging memory, and why they are right: ``kreg.kernels._device.exchange`` and ``layout``.
"""

from cutlass import Int32, Int64, Uint8, Uint32, cute
from cutlass.cute.runtime import make_ptr
from cutlass.cute.typing import AddressSpace

from kreg.backends.cute import CuteBuild

from .._device.exchange import TRANSPORTS, Exchange, Slices
from .._device.layout import PAIR_CTAS

THREADS = 352
"""Two CTAs of 11 warps cover the 672 units of one row in a world of 2."""


class AllGatherPair:
    """The gather of two tensors by one transport."""

    def __init__(self, *, world_size: int, transport: str) -> None:
        self.world_size = world_size
        self.move_slices = TRANSPORTS[transport]

    @cute.jit
    def __call__(
        self,
        first_in: cute.Pointer,
        second_in: cute.Pointer,
        first_out: cute.Pointer,
        second_out: cute.Pointer,
        own: cute.Pointer,
        peers: tuple[cute.Pointer, ...],
        epochs: cute.Pointer,
        status: cute.Pointer,
        rank: Int32,
        batch: Int32,
        first_packs: Int32,
        second_packs: Int32,
        slot_bytes: Int64,
        timeout_ns: Int64,
    ) -> None:
        self.kernel(
            first_in,
            second_in,
            first_out,
            second_out,
            own,
            peers,
            epochs,
            status,
            rank,
            batch,
            first_packs,
            second_packs,
            slot_bytes,
            timeout_ns,
        ).launch(grid=(PAIR_CTAS, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(
        self,
        first_in: cute.Pointer,
        second_in: cute.Pointer,
        first_out: cute.Pointer,
        second_out: cute.Pointer,
        own: cute.Pointer,
        peers: tuple[cute.Pointer, ...],
        epochs: cute.Pointer,
        status: cute.Pointer,
        rank: Int32,
        batch: Int32,
        first_packs: Int32,
        second_packs: Int32,
        slot_bytes: Int64,
        timeout_ns: Int64,
    ) -> None:
        cta, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        exchange = Exchange(
            rank=rank,
            own=own,
            peers=peers,
            epochs=epochs,
            status=status,
            slot_bytes=slot_bytes,
            timeout_ns=timeout_ns,
        )
        slices = Slices(
            world_size=self.world_size,
            batch=batch,
            tensors=((first_in, first_out, first_packs), (second_in, second_out, second_packs)),
        )
        # Warps of the CTAs alternate, so that all SMs share a small launch.
        start = ((thread >> 5) * PAIR_CTAS + cta) * 32 + (thread & 31)
        self.move_slices(exchange, slices, 0, start, PAIR_CTAS * THREADS, 0, THREADS)


def build(*, world_size: int, transport: str) -> CuteBuild:
    """Return what to compile for one variant."""
    data = make_ptr(Uint8, 0, AddressSpace.gmem, assumed_align=16)
    words = make_ptr(Uint32, 0, AddressSpace.gmem, assumed_align=4)
    peers = (data,) * (world_size - 1)
    sizes = (Int32(0), Int32(1), Int32(1), Int32(1), Int64(16), Int64(0))
    return CuteBuild(
        function=AllGatherPair(world_size=world_size, transport=transport),
        arguments=(data, data, data, data, data, peers, words, words, *sizes),
        block=(THREADS, 1, 1),
        grid=(PAIR_CTAS, 1, 1),
        shared_bytes=0,
    )
