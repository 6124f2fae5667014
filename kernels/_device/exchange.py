"""The exchange: how the ranks of one host move slices into each other's staging memory, and wait for them.

Layout of staging memory and flags: ``layout``. Every rank launches the same variant with the same sizes and the same
fixed grid, in stream order, so a rank's CTAs count the same epochs e = 1, 2, 3, ... Epoch e uses slot e % 2.

``push``: a unit of 8 bytes travels as two packets {32 data bits, 32 epoch bits} in one vector store, straight into
every peer's staging, where the peer polls it. No fence and no flag: PTX makes each 64-bit half of a relaxed vector
access single-copy atomic, so data and epoch arrive together. Stale bytes in a slot, whichever CTA or size of launch
put them there, carry a smaller epoch. (Epochs are 32 bits: a stale packet would pass after lying untouched for
exactly 2^32 launches.)

``pull``: a rank writes its slice into its own staging, then each CTA meets its twins, the CTAs of the same index on
the peers: one release store to each, one acquire load from each. Then it reads, from every peer's staging, what its
twin wrote. Flags only grow, and are compared by signed distance, since a fast twin may already be one epoch ahead.

Why two slots are enough: a rank that starts epoch e + 2 has finished e + 1, so it has received something that every
peer sent in e + 1; a peer sends in e + 1 only after its whole launch e, stream order. So no rank still reads slot
e % 2 of epoch e when anybody writes it for e + 2. This needs a whole launch to finish before the next one starts on
the same stream: no programmatic dependent launch.

Waits are bounded if ``timeout_ns`` is positive. When the time is up, the ranks still missing are added to the bits of
``status`` (bit r: rank r) and the launch ends with its outputs unspecified. A rank whose status is not zero neither
sends nor waits in later launches, and their outputs are unspecified too: what a late peer has yet to read stays as it
was, and epochs never mix. To go on, all ranks zero their epochs, staging and status together.
"""

from dataclasses import dataclass
from typing import Protocol

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, Uint64, Vector, const_expr, cute

from .layout import FLAG_BYTES, PACK_BYTES

PACKET_BYTES = 8
"""32 bits of data and 32 bits of epoch."""

UNIT_BYTES = 8
"""What one ``push`` access carries, as two packets."""

LOOKS_PER_CLOCK = 16
"""A look takes about half a microsecond: a time-out is noticed within 10 us.

A kernel that cannot time out would take 0.02 to 0.1 us less (2026-12-01).
"""

NEVER = 2**63 - 1
"""The deadline of a wait without one."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One rank's end of the exchange, as its launch gets it.

    ``own`` is this rank's staging, ``peers[q - 1]`` that of the rank ``q`` after this one, as bytes. ``epochs`` are
    the CTAs' counters of finished launches, ``status`` the ranks that were missed, u32 both.
    """

    rank: Int32
    own: cute.Pointer
    peers: tuple[cute.Pointer, ...]
    epochs: cute.Pointer
    status: cute.Pointer
    slot_bytes: Int64 | int
    timeout_ns: Int64

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.peers) + 1


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one launch goes by: its epoch, the byte offset of its slot, whether this rank still takes part.

    ``deadline`` is the time at which all of the launch's waits give up, in nanoseconds of the GPU's global timer.
    """

    epoch: Uint32
    slot: Int64
    is_open: Boolean
    deadline: Int64


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What a wait gave up on: bit i of ``parts`` is set if the part of rank ``senders[i]`` had not come."""

    parts: Uint32
    senders: list[Int32]


@dataclass(frozen=True, kw_only=True)
class Slices:
    """What each rank contributes: of every tensor, ``batch`` rows of ``packs`` packs.

    A tensor is (own slices, whole output, packs of one rank's slice of a row); the output's rows hold all ranks'
    slices, in rank order. One tensor or two. Sizes are run-time values or plain integers.
    """

    world_size: int
    batch: Int32 | int
    tensors: tuple[tuple[cute.Pointer, cute.Pointer, Int32 | int], ...]


@cute.jit
def read_turn(exchange: Exchange) -> Turn:
    """Load what this launch goes by."""
    cta, _, _ = cute.arch.block_idx()
    # Relaxed, so that both loads are issued here and not where they are first needed.
    epoch = cute.arch.load(exchange.epochs + cta, Uint32, sem="relaxed", scope="gpu") + Uint32(1)
    status = cute.arch.load(exchange.status, Uint32, sem="relaxed", scope="gpu")
    deadline = Int64(NEVER)
    if exchange.timeout_ns > 0:
        deadline = cute.arch.globaltimer() + exchange.timeout_ns
    return Turn(
        epoch=epoch, slot=Int64(epoch & 1) * exchange.slot_bytes, is_open=status == Uint32(0), deadline=deadline
    )


@cute.jit
def rank_after(exchange: Exchange, distance: Int32 | int) -> Int32:
    """Return the rank ``distance`` after this one, 0 <= distance < world_size."""
    rank = exchange.rank + distance
    return rank - exchange.world_size if rank >= exchange.world_size else rank


@cute.jit
def distance_to(exchange: Exchange, rank: Int32) -> Int32:
    """Return how far ``rank`` is after this one."""
    distance = rank - exchange.rank
    return distance + exchange.world_size if distance < 0 else distance


@cute.jit
def peer_at(exchange: Exchange, distance: Int32) -> cute.Pointer:
    """Return the staging of the rank ``distance`` after this one, where 1 <= distance < world_size at run time."""
    peer = exchange.peers[0]
    for q in cutlass.range_constexpr(2, exchange.world_size):
        if distance == q:
            peer = exchange.peers[q - 1]
    return peer


@cute.jit
def count_epoch(exchange: Exchange, turn: Turn, barrier_id: int, threads: int) -> None:
    """Count this launch in the CTA's counter, once the CTA's ``threads`` threads have read it.

    The last thread does, since a release store by one of the first would wait for this access too.
    """
    cute.arch.barrier(barrier_id=barrier_id, number_of_threads=threads)
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    if thread == threads - 1:
        cute.arch.store(exchange.epochs + cta, turn.epoch)


class Wait(Protocol):
    """What a poll waits for, in parts that ranks send."""

    turn: Turn

    def look(self) -> tuple[list[Uint64], Uint32]:
        """Load all that is waited for; return the data and a bit for each part that is missing."""


@cute.jit
def poll(wait: Wait, data: list[Uint64]) -> tuple[list[Uint64], Uint32]:
    """Look until nothing is missing or the deadline has passed; return what was seen last and what was missing.

    ``data`` only gives the shape. Code between this loop and what comes next would be paid for by every launch: the
    cold instruction cache fetches ahead while a warp polls, but not across a jump (0.5 us of 3.8, 2026-12-01). So
    the clock is compared in the loop, and who is missing is reported at the end of the kernel.
    """
    looks = Int32(0)
    now = Int64(0)
    missing = Uint32(0)
    waiting = Boolean(True)
    while waiting:
        data, missing = wait.look()
        looks += 1
        if (looks & (LOOKS_PER_CLOCK - 1)) == 0:
            now = cute.arch.globaltimer()
        waiting = (missing != 0) & (now < wait.turn.deadline)
    return data, missing


@cute.jit
def report(exchange: Exchange, missing: Missing) -> None:
    """Add the ranks that a wait gave up on to the status. Belongs at the end of a kernel: see ``poll``."""
    if missing.parts != 0:
        for i in cutlass.range_constexpr(len(missing.senders)):
            if (missing.parts & (1 << i)) != 0:
                cute.arch.atomic_or(exchange.status, Uint32(1) << Uint32(missing.senders[i]))


def load_words(pointer: cute.Pointer, count: int, **order: str) -> list[Uint64]:
    """Load one or two neighbouring words of 64 bits in one access."""
    if count == 1:
        return [cute.arch.load(pointer, Uint64, **order)]
    vector = cute.arch.load(pointer, Vector[Uint64, count].mlir_type, **order)
    return [Uint64(vector[i]) for i in range(count)]


def store_words(pointer: cute.Pointer, words: list[Uint64], **order: str) -> None:
    """Store one or two neighbouring words of 64 bits in one access."""
    value = words[0] if len(words) == 1 else Vector.from_elements(tuple(words), Uint64)
    cute.arch.store(pointer, value, **order)


def packet(data: Uint32, epoch: Uint32) -> Uint64:
    """Return the packet of 32 bits of data."""
    return (Uint64(epoch) << 32) | Uint64(data)


@cute.jit
def send_unit(exchange: Exchange, turn: Turn, offset: Int64, unit: Uint64) -> None:
    """Store a unit as two packets at ``offset`` of the slot in every peer's staging."""
    packets = [packet(Uint32(unit), turn.epoch), packet(Uint32(unit >> 32), turn.epoch)]
    if turn.is_open:
        for i in cutlass.range_constexpr(len(exchange.peers)):
            store_words(exchange.peers[i] + (turn.slot + offset), packets, sem="relaxed", scope="sys")


@dataclass(frozen=True, kw_only=True)
class UnitWait:
    """The wait for units at ``offsets`` of this rank's slot, those that are ``expected``.

    A late unit costs another look at all of them: the looks overlap.
    """

    exchange: Exchange
    turn: Turn
    offsets: list[Int64]
    expected: list[Boolean]

    @cute.jit
    def look(self) -> tuple[list[Uint64], Uint32]:
        """Load all packets; return the units, and bit i if unit i is expected and has a packet of another epoch."""
        places = [self.exchange.own + (self.turn.slot + offset) for offset in self.offsets]
        packets = [load_words(place, 2, sem="relaxed", scope="sys") for place in places]
        missing = Uint32(0)
        for i in cutlass.range_constexpr(len(packets)):
            low, high = packets[i]
            is_stale = (Uint32(low >> 32) != self.turn.epoch) | (Uint32(high >> 32) != self.turn.epoch)
            missing |= Uint32(1 << i) if self.expected[i] & is_stale else Uint32(0)
        return [(high << 32) | Uint64(Uint32(low)) for low, high in packets], missing


@cute.jit
def locate(slices: Slices, unit_bytes: int, unit: Int32) -> tuple[cute.Pointer, cute.Pointer, Int32, Int32]:
    """Find unit ``unit`` of this rank's slices, numbered along a row through all tensors, then row by row.

    Returns where the unit is, the whole tensor, the index in it of rank 0's like unit, and units from rank to rank.
    """
    units = [Int32(packs * (PACK_BYTES // unit_bytes)) for _, _, packs in slices.tensors]
    row, column = Int32(0), unit
    if const_expr(not isinstance(slices.batch, int)):
        # At most batch - 1 rounds, none for the one row of decode. A division would be more code than all the rest.
        while column >= sum(units):
            column -= sum(units)
            row += 1
    source, whole, _ = slices.tensors[0]
    width = units[0]
    if const_expr(len(units) == 2):  # noqa: SIM102 - decided when compiling, the inner one at run time
        if column >= units[0]:
            source, whole, _ = slices.tensors[1]
            column -= units[0]
            width = units[1]
    start = row * width
    return source + Int64(start + column) * unit_bytes, whole, start * slices.world_size + column, width


def target_of(place: tuple[cute.Pointer, cute.Pointer, Int32, Int32], unit_bytes: int, rank: Int32) -> cute.Pointer:
    """Return where the unit of ``rank`` goes that is like the located one."""
    _, whole, first, width = place
    return whole + Int64(first + rank * width) * unit_bytes


def count_units(slices: Slices, unit_bytes: int) -> Int32:
    """Return how many units one rank contributes."""
    packs = sum(packs for _, _, packs in slices.tensors)
    return Int32(slices.batch * packs * (PACK_BYTES // unit_bytes))


@cute.jit
def push_slices(
    exchange: Exchange, slices: Slices, region: int, start: Int32, stride: int, barrier_id: int, threads: int
) -> None:
    """Send this rank's units start, start + stride, ... to every peer, then receive theirs.

    ``region`` is where the slices begin in a slot: units of 16 bytes, rank by rank. All is sent before anything is
    waited for, so a launch has one round trip whatever its size.
    """
    count = count_units(slices, UNIT_BYTES)
    # The first unit is loaded before the turn, so that the two are in flight together.
    place = locate(slices, UNIT_BYTES, cutlass.min(start, count - 1))
    data = cute.arch.load(place[0], Uint64)
    turn = read_turn(exchange)
    for unit in cutlass.range(start, count, stride, unroll=1):
        send_unit(exchange, turn, region + packet_offset(exchange.rank, count, unit), data)
        cute.arch.store(target_of(place, UNIT_BYTES, exchange.rank), data)
        following = unit + stride
        if following < count:
            place = locate(slices, UNIT_BYTES, following)
            data = cute.arch.load(place[0], Uint64)
    count_epoch(exchange, turn, barrier_id, threads)
    receive_slices(exchange, turn, slices, region, start, stride)


@cute.jit
def receive_slices(exchange: Exchange, turn: Turn, slices: Slices, region: int, start: Int32, stride: int) -> None:
    """Receive units start, start + stride, ... of every peer and put them in their place."""
    count = count_units(slices, UNIT_BYTES)
    senders = [rank_after(exchange, q) for q in range(1, exchange.world_size)]
    expected = [turn.is_open] * len(senders)
    parts = Uint32(0)
    for unit in cutlass.range(start, count, stride, unroll=1):
        place = locate(slices, UNIT_BYTES, unit)
        offsets = [region + packet_offset(sender, count, unit) for sender in senders]
        wait = UnitWait(exchange=exchange, turn=turn, offsets=offsets, expected=expected)
        data, late = poll(wait, [Uint64(0)] * len(senders))
        parts |= late
        for i in cutlass.range_constexpr(len(senders)):
            cute.arch.store(target_of(place, UNIT_BYTES, senders[i]), data[i])
    report(exchange, Missing(parts=parts, senders=senders))


def packet_offset(rank: Int32, count: Int32, unit: Int32) -> Int64:
    """Return where the packets of a rank's unit lie in a region that holds ``count`` units of each rank."""
    return Int64(rank * count + unit) * (2 * PACKET_BYTES)


@cute.jit
def pull_slices(
    exchange: Exchange, slices: Slices, region: int, start: Int32, stride: int, barrier_id: int, threads: int
) -> None:
    """Offer this rank's packs start, start + stride, ..., meet the twins, then read the same packs of every peer.

    ``region`` is where the slices begin in a slot.
    """
    count = count_units(slices, PACK_BYTES)
    # The first pack is loaded before the turn, so that the two are in flight together.
    place = locate(slices, PACK_BYTES, cutlass.min(start, count - 1))
    data = load_words(place[0], 2)
    turn = read_turn(exchange)
    for unit in cutlass.range(start, count, stride, unroll=1):
        offer(exchange, turn, region + Int64(unit) * PACK_BYTES, data)
        store_words(target_of(place, PACK_BYTES, exchange.rank), data)
        following = unit + stride
        if following < count:
            place = locate(slices, PACK_BYTES, following)
            data = load_words(place[0], 2)
    missing = meet_twins(exchange, turn, barrier_id, threads)
    read_slices(exchange, turn, slices, region, start, stride)
    report(exchange, missing)


@cute.jit
def offer(exchange: Exchange, turn: Turn, offset: Int64, words: list[Uint64]) -> None:
    """Store words at ``offset`` of the slot in this rank's own staging, for the peers to read."""
    if turn.is_open:
        store_words(exchange.own + (turn.slot + offset), words)


@cute.jit
def read_slices(exchange: Exchange, turn: Turn, slices: Slices, region: int, start: Int32, stride: int) -> None:
    """Read packs start, start + stride, ... from every peer's staging and put them in their place."""
    count = count_units(slices, PACK_BYTES)
    for unit in cutlass.range(start, count, stride, unroll=1):
        offset = turn.slot + region + Int64(unit) * PACK_BYTES
        packs = [load_words(peer + offset, 2, sem="relaxed", scope="sys") for peer in exchange.peers]
        place = locate(slices, PACK_BYTES, unit)
        for i in cutlass.range_constexpr(len(packs)):
            store_words(target_of(place, PACK_BYTES, rank_after(exchange, i + 1)), packs[i])


@cute.jit
def meet_twins(exchange: Exchange, turn: Turn, barrier_id: int, threads: int) -> Missing:
    """Wait until the twin CTA of every peer has come here too; what it wrote before is then visible.

    The threads before the release have met at a barrier, so one thread's release covers the whole CTA's stores.
    """
    count_epoch(exchange, turn, barrier_id, threads)
    thread, _, _ = cute.arch.thread_idx()
    sender = rank_after(exchange, thread + 1)
    parts = Uint32(0)
    if (thread < exchange.world_size - 1) & turn.is_open:
        peer = peer_at(exchange, thread + 1)
        flag = flag_offset(exchange, exchange.rank)
        cute.arch.store(peer + flag, turn.epoch, sem="release", scope="sys")
        _, parts = poll(FlagWait(exchange=exchange, turn=turn, sender=sender), [])
    cute.arch.barrier(barrier_id=barrier_id, number_of_threads=threads)
    return Missing(parts=parts, senders=[sender])


def flag_offset(exchange: Exchange, rank: Int32) -> Int64:
    """Return where in staging the flag is that ``rank`` sets for this CTA: behind the two slots."""
    cta, _, _ = cute.arch.block_idx()
    return 2 * Int64(exchange.slot_bytes) + Int64(cta * exchange.world_size + rank) * FLAG_BYTES


@dataclass(frozen=True, kw_only=True)
class FlagWait:
    """The wait for the flag that ``sender`` sets for this CTA in this rank's staging."""

    exchange: Exchange
    turn: Turn
    sender: Int32

    @cute.jit
    def look(self) -> tuple[list[Uint64], Uint32]:
        """Load the flag; what its writer stored before is then visible. It may be one epoch ahead, and they wrap."""
        place = self.exchange.own + flag_offset(self.exchange, self.sender)
        flag = cute.arch.load(place, Uint32, sem="acquire", scope="sys")
        return [], Uint32(1) if Int32(flag - self.turn.epoch) < 0 else Uint32(0)


TRANSPORTS = {"pull": pull_slices, "push": push_slices}
"""The transports by the name of the ``transport`` parameter."""
