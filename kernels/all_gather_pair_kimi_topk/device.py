"""The fused gather: ``down`` is gathered, the router row is gathered internally, and its top 16 are selected.

Arguments of the kernel, in order:

==========  =======  ==============================================================================
mDown       pointer  bf16 [3584 / world_size], moved as bytes: this rank's slice of ``down``
mRouter     pointer  f32 [896 / world_size]: this rank's slice of the router row
mBias       pointer  f32 [896]
mDownOut    pointer  bf16 [3584], written
mWeights    pointer  f32 [16], written
mIds        pointer  i32 [16], written
own         pointer  this rank's staging memory: ``layout.staging_bytes`` of ``layout.fused_slot_bytes``
peers       pointer  world_size - 1 of them: entry q - 1 is the staging of rank (rank + q) % world_size
epochs      pointer  u32 [FUSED_CTAS], one counter per CTA
status      pointer  u32, bit r set: rank r was missing
rank        i32
timeout_ns  i64      0: wait for ever
==========  =======  ==============================================================================

Pointers are 8 bytes and aligned to 16, but epochs and status to 4. The first CTA routes, the second moves ``down``;
neither waits for the other, and each meets only its own index on the peers. A slot holds the router row's share
first, then that of ``down``, both as in the plain gather. The protocol and why it is right:
``kreg.kernels._device.exchange``; what is selected: ``kreg.kernels._device.top16``.
"""

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, Uint8, Uint32, Uint64, const_expr, cute
from cutlass.cute.runtime import make_ptr
from cutlass.cute.typing import AddressSpace
from cutlass.memory import SmemAllocator

from kreg.backends.cute import CuteBuild

from .._device.exchange import (
    PACKET_BYTES,
    TRANSPORTS,
    Exchange,
    Missing,
    Slices,
    UnitWait,
    count_epoch,
    distance_to,
    load_words,
    meet_twins,
    offer,
    peer_at,
    poll,
    read_turn,
    report,
    send_unit,
)
from .._device.layout import (
    DOWN_BYTES,
    EXPERTS,
    FUSED_CTAS,
    PACK_BYTES,
    fused_down_offset,
    fused_slot_bytes,
)
from .._device.top16 import (
    SELECTION_BARRIER,
    SELECTIONS,
    Selection,
    inside_row,
    load_row,
)

THREADS = 448
"""14 warps: as many as the wider selection takes, and a unit of ``down`` each in a world of 2."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """A lane's groups of experts: the first expert of each, its rank, whether that is this rank, this rank's logits.

    ``local`` holds the logits of own groups, two to a word, and zeros for the others.
    """

    experts: list[Int32]
    owners: list[Int32]
    is_own: list[Boolean]
    local: list[list[Uint64]]


class AllGatherPairKimiTopk:
    """The fused gather and selection of one row by one transport."""

    def __init__(self, *, world_size: int, transport: str, selection: Selection) -> None:
        self.world_size = world_size
        self.transport = transport
        self.selection = selection
        self.rank_experts = EXPERTS // world_size
        self.shared_bytes = selection.Shared.__sizeof__()

    @cute.jit
    def __call__(
        self,
        mDown: cute.Pointer,
        mRouter: cute.Pointer,
        mBias: cute.Pointer,
        mDownOut: cute.Pointer,
        mWeights: cute.Pointer,
        mIds: cute.Pointer,
        own: cute.Pointer,
        peers: tuple[cute.Pointer, ...],
        epochs: cute.Pointer,
        status: cute.Pointer,
        rank: Int32,
        timeout_ns: Int64,
    ) -> None:
        self.kernel(
            mDown, mRouter, mBias, mDownOut, mWeights, mIds, own, peers, epochs, status, rank, timeout_ns
        ).launch(grid=(FUSED_CTAS, 1, 1), block=(THREADS, 1, 1), smem=self.shared_bytes)

    @cute.kernel
    def kernel(
        self,
        mDown: cute.Pointer,
        mRouter: cute.Pointer,
        mBias: cute.Pointer,
        mDownOut: cute.Pointer,
        mWeights: cute.Pointer,
        mIds: cute.Pointer,
        own: cute.Pointer,
        peers: tuple[cute.Pointer, ...],
        epochs: cute.Pointer,
        status: cute.Pointer,
        rank: Int32,
        timeout_ns: Int64,
    ) -> None:
        cta, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        shared = SmemAllocator().allocate(self.selection.Shared)
        exchange = Exchange(
            rank=rank,
            own=own,
            peers=peers,
            epochs=epochs,
            status=status,
            slot_bytes=fused_slot_bytes(transport=self.transport, world_size=self.world_size),
            timeout_ns=timeout_ns,
        )
        if cta == 0:
            if thread < self.selection.threads:
                tBias = load_row(self.selection, mBias)
                tLogits, missing = self.gather_router(exchange, mRouter)
                self.selection.select(tLogits, tBias, shared, mWeights, mIds)
                report(exchange, missing)
        else:
            self.move_down(exchange, mDown, mDownOut)

    @cute.jit
    def move_down(self, exchange: Exchange, mDown: cute.Pointer, mDownOut: cute.Pointer) -> None:
        """Gather ``down`` as the plain gather does, with one CTA."""
        thread, _, _ = cute.arch.thread_idx()
        packs = DOWN_BYTES // PACK_BYTES // self.world_size
        slices = Slices(world_size=self.world_size, batch=1, tensors=((mDown, mDownOut, packs),))
        region = fused_down_offset(transport=self.transport, world_size=self.world_size)
        TRANSPORTS[self.transport](exchange, slices, region, thread, THREADS, 0, THREADS)

    @cute.jit
    def gather_router(self, exchange: Exchange, mRouter: cute.Pointer) -> tuple[list[Float32], Missing]:
        """Exchange logits; return those of the lane's experts, and what is missing."""
        groups = self.load_groups(exchange, mRouter)
        if const_expr(self.transport == "push"):
            words, missing = self.push_router(exchange, groups)
        else:
            words, missing = self.pull_router(exchange, groups)
        halves = [half for word in words for half in (Uint32(word), Uint32(word >> 32))]
        return [half.bitcast(Float32) for half in halves], missing

    def load_groups(self, exchange: Exchange, mRouter: cute.Pointer) -> Groups:
        """Load what this rank has of the lane's groups. A lane without experts repeats the row's last group."""
        count = range(self.selection.groups)
        experts = [inside_row(self.selection, self.selection.first_expert(group)) for group in count]
        owners = [Int32(Uint32(expert) // Uint32(self.rank_experts)) for expert in experts]
        is_own = [owner == exchange.rank for owner in owners]
        sources = [mRouter + Int64(expert - exchange.rank * self.rank_experts) * 4 for expert in experts]
        local = [self.load_own(source, own) for source, own in zip(sources, is_own, strict=True)]
        return Groups(experts=experts, owners=owners, is_own=is_own, local=local)

    @cute.jit
    def load_own(self, source: cute.Pointer, own: Boolean) -> list[Uint64]:
        """Load a group's logits, two to a word, if they are this rank's."""
        words = [Uint64(0)] * (self.selection.width // 2)
        if own:
            words = load_words(source, self.selection.width // 2)
        return words

    @cute.jit
    def push_router(self, exchange: Exchange, groups: Groups) -> tuple[list[Uint64], Missing]:
        """Send this rank's logits; return the lane's, from here or as they arrive, a packet each."""
        turn = read_turn(exchange)
        pairs = self.selection.width // 2
        offsets = [Int64(expert + 2 * i) * PACKET_BYTES for expert in groups.experts for i in range(pairs)]
        for i in cutlass.range_constexpr(len(offsets)):
            if groups.is_own[i // pairs]:
                send_unit(exchange, turn, offsets[i], groups.local[i // pairs][i % pairs])
        count_epoch(exchange, turn, SELECTION_BARRIER, self.selection.threads)
        expected = [turn.is_open & ~own for own in groups.is_own for _ in range(pairs)]
        wait = UnitWait(exchange=exchange, turn=turn, offsets=offsets, expected=expected)
        words, parts = poll(wait, [Uint64(0)] * len(offsets))
        for i in cutlass.range_constexpr(len(words)):
            words[i] = groups.local[i // pairs][i % pairs] if groups.is_own[i // pairs] else words[i]
        return words, Missing(parts=parts, senders=[owner for owner in groups.owners for _ in range(pairs)])

    @cute.jit
    def pull_router(self, exchange: Exchange, groups: Groups) -> tuple[list[Uint64], Missing]:
        """Offer this rank's logits, meet the twins, then read the lane's others from their owners' staging."""
        turn = read_turn(exchange)
        starts = [owner * self.rank_experts for owner in groups.owners]
        offsets = [Int64(expert - start) * 4 for expert, start in zip(groups.experts, starts, strict=True)]
        for i in cutlass.range_constexpr(len(offsets)):
            if groups.is_own[i]:
                offer(exchange, turn, offsets[i], groups.local[i])
        missing = meet_twins(exchange, turn, SELECTION_BARRIER, self.selection.threads)
        words = []
        for i in cutlass.range_constexpr(len(offsets)):
            group = groups.local[i]
            if ~groups.is_own[i]:
                peer = peer_at(exchange, distance_to(exchange, groups.owners[i]))
                place = peer + (turn.slot + offsets[i])
                group = load_words(place, self.selection.width // 2, sem="relaxed", scope="sys")
            words += group
        return words, missing


def build(*, world_size: int, transport: str, selection: str = "two_level") -> CuteBuild:
    """Return what to compile for one variant."""
    kernel = AllGatherPairKimiTopk(world_size=world_size, transport=transport, selection=SELECTIONS[selection]())
    data = make_ptr(Uint8, 0, AddressSpace.gmem, assumed_align=16)
    floats = make_ptr(Float32, 0, AddressSpace.gmem, assumed_align=16)
    ids = make_ptr(Int32, 0, AddressSpace.gmem, assumed_align=16)
    words = make_ptr(Uint32, 0, AddressSpace.gmem, assumed_align=4)
    peers = (data,) * (world_size - 1)
    return CuteBuild(
        function=kernel,
        arguments=(data, data, floats, data, floats, ids, data, peers, words, words, Int32(0), Int64(0)),
        block=(THREADS, 1, 1),
        grid=(FUSED_CTAS, 1, 1),
        shared_bytes=kernel.shared_bytes,
    )
