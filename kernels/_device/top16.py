"""Top 16 of 896 router experts, for one row held in the registers of one CTA.

``select`` of either class takes each lane's logits and biases (f32) and writes 16 ids (i32) and weights (f32). Both
classes order the same 64-bit keys and share ``score_and_key`` and ``finish``, so ids and weight bits are equal on
every input:

- score = sigmoid(logit) in f32, selection = score + bias; a logit or bias that is not finite gives score 0 and
  selection -inf. Scores below 2^-126 are 0. No score is -0.0, so no selection is.
- key = order-preserving bits of the selection << 32 | 0xFFFF - expert. One unsigned maximum settles selection and
  tie, all 896 keys differ, and every key, those of -inf included, is above the zero key.
- weight = score / (sum of the 16 scores, folded by halves, + 1e-20), in the order of the ids.

A lane holds ``groups`` groups of ``width`` neighbouring experts; ``first_expert(group)`` is the first of a group. At
or beyond ``EXPERTS`` it is no expert: whatever is loaded there gets the zero key.
"""

from typing import Protocol

import cutlass
from cutlass import Boolean, Float32, Int32, Uint32, Uint64, Vector, const_expr, cute

from .layout import EXPERTS, TOP

WARP = 32
EXPONENT = 0x7F800000
SIGN = 0x80000000
ORDER_OF_MINUS_INFINITY = 0x007FFFFF
EXPERT_FIELD = 0xFFFF

SELECTION_BARRIER = 1
"""The hardware barrier of the selecting warps, which may be fewer than the CTA's."""

SORT_2 = ((0, 1),)
SORT_8 = (
    *((0, 2), (1, 3), (4, 6), (5, 7)),
    *((0, 4), (1, 5), (2, 6), (3, 7)),
    *((0, 1), (2, 3), (4, 5), (6, 7)),
    *((2, 4), (3, 5)),
    *((1, 4), (3, 6)),
    *((1, 2), (3, 4), (5, 6)),
)
"""Sorting network for 8 keys: 19 comparators, the fewest possible, in 6 layers."""


class Selection(Protocol):
    """How one CTA selects: the static facts of a class below."""

    threads: int
    groups: int
    width: int
    Shared: cute.struct

    def first_expert(self, group: int) -> Int32:
        """Return the first of the calling lane's experts of ``group``."""

    def select(
        self,
        tLogits: list[Float32],
        tBias: list[Float32],
        shared: cute.struct,
        mWeights: cute.Pointer,
        mIds: cute.Pointer,
    ) -> None:
        """Select among the 896 logits that the first ``threads`` threads hold; exactly those call it."""


def sync_warps(threads: int) -> None:
    """Wait for the first ``threads`` threads of the CTA."""
    cute.arch.barrier(barrier_id=SELECTION_BARRIER, number_of_threads=threads)


def is_finite(value: Float32) -> Boolean:
    """Return whether ``value`` is neither NaN nor an infinity, by its bits: no fast-math rule can drop the test."""
    return (value.bitcast(Uint32) & EXPONENT) != EXPONENT


def order_bits(value: Float32) -> Uint32:
    """Return bits whose unsigned order is the order of ``value``. Not for NaN."""
    negative = Uint32(value.bitcast(Int32) >> 31)
    return value.bitcast(Uint32) ^ (negative | Uint32(SIGN))


def sigmoid(logit: Float32) -> Float32:
    """Return 1 / (1 + e^-logit), within 2.1e-7 of the exact value (the fast e^x: 3.6e-6).

    The explicit rounding keeps the compiler from fusing the sum into the last multiplication of e^x in one kernel
    and not in another, which would change bits.
    """
    power = cute.math.exp(-logit, fastmath=False)
    total = cute.arch.inline_ptx(
        "add.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Float32], read_only_args=[power, Float32(1.0)]
    )
    return cute.arch.rcp_approx(total)


@cute.jit
def score_and_key(logit: Float32, bias: Float32, expert: Int32) -> tuple[Float32, Uint64]:
    """Return an expert's score and its key."""
    finite = is_finite(logit) & is_finite(bias)
    score = sigmoid(logit)
    order = order_bits(score + bias) if finite else Uint32(ORDER_OF_MINUS_INFINITY)
    score = score if finite else Float32(0.0)
    return score, (Uint64(order) << 32) | Uint64(Uint32(EXPERT_FIELD - expert))


def expert_of(key: Uint64) -> Int32:
    """Return the expert a key belongs to."""
    return Int32(EXPERT_FIELD - (Uint32(key) & EXPERT_FIELD))


@cute.jit
def warp_max(key: Uint64) -> Uint64:
    """Return the largest key of the warp, on every lane."""
    high = Uint32(key >> 32)
    top = cute.arch.warp_redux_sync(high, "umax")
    low = cute.arch.warp_redux_sync(Uint32(key) if high == top else Uint32(0), "umax")
    return (Uint64(top) << 32) | Uint64(low)


def fold_by_halves(terms: list[Float32]) -> Float32:
    """Return the sum of a power-of-two number of terms, adding the upper half to the lower until one is left."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [low + high for low, high in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


@cute.jit
def finish(sScores: cute.Tensor, sIds: cute.Tensor, mWeights: cute.Pointer, mIds: cute.Pointer) -> None:
    """Write the row's 16 weights and ids. For the first warp, after the 16 scores and ids are in shared memory."""
    rank, _, _ = cute.arch.thread_idx()
    if rank < TOP:
        total = fold_by_halves([sScores[i] for i in range(TOP)]) + Float32(1e-20)
        cute.arch.store(mWeights + rank, sScores[rank] / total)
        cute.arch.store(mIds + rank, sIds[rank])


@cute.jit
def load_row(selection: Selection, mRow: cute.Pointer) -> list[Float32]:
    """Load the lane's experts of a row of f32 [896], ``groups`` aligned vectors of ``width``."""
    values = []
    for group in cutlass.range_constexpr(selection.groups):
        expert = inside_row(selection, selection.first_expert(group))
        vector = cute.arch.load(mRow + expert, Vector[Float32, selection.width].mlir_type)
        values += [vector[i] for i in range(selection.width)]
    return values


@cute.jit
def inside_row(selection: Selection, expert: Int32) -> Int32:
    """Return ``expert``, or the last group of the row for a lane that has none: its value will not matter."""
    if const_expr(selection.threads * selection.groups * selection.width > EXPERTS):
        expert = cutlass.min(expert, Int32(EXPERTS - selection.width))
    return expert


class TwoLevel:
    """Four warps take the 16 largest of 256 keys each, then the first warp takes 16 of those 64.

    A lane's keys are a sorted queue; a round takes the largest head of the warp. Every warp has 16 keys to give, so
    no winner is ever a refill.
    """

    threads = 128
    groups = 2
    width = 4

    @cute.struct
    class Shared:
        """The warps' winners by warp and rank, all scores by expert, and what ``finish`` reads."""

        winners: cute.struct.MemRange[Uint64, 4 * TOP]
        all_scores: cute.struct.MemRange[Float32, EXPERTS]
        scores: cute.struct.Align[cute.struct.MemRange[Float32, TOP], 16]
        ids: cute.struct.MemRange[Int32, TOP]

    def first_expert(self, group: int) -> Int32:
        """Return the first of the lane's experts of ``group``: 128 neighbours to a warp's load."""
        thread, _, _ = cute.arch.thread_idx()
        return (thread >> 5) * 256 + group * 128 + (thread & 31) * self.width

    def refill(self, taken: Uint64) -> Uint64:  # noqa: ARG002
        """Return what enters a lane's queue when ``taken`` leaves it: the zero key, below every expert's."""
        return Uint64(0)

    @cute.jit
    def select(
        self,
        tLogits: list[Float32],
        tBias: list[Float32],
        shared: cute.struct,
        mWeights: cute.Pointer,
        mIds: cute.Pointer,
    ) -> None:
        """Select as ``Selection`` says."""
        thread, _, _ = cute.arch.thread_idx()
        lane = cute.arch.lane_idx()
        sWinners = shared.winners.get_tensor(cute.make_layout(4 * TOP))
        sAllScores = shared.all_scores.get_tensor(cute.make_layout(EXPERTS))
        sScores = shared.scores.get_tensor(cute.make_layout(TOP))
        sIds = shared.ids.get_tensor(cute.make_layout(TOP))

        winner = self.take_top(self.sorted_keys(tLogits, tBias, sAllScores))
        if lane < TOP:
            sWinners[(thread >> 5) * TOP + lane] = winner
        sync_warps(self.threads)
        if thread < WARP:
            queue = sort_descending([sWinners[lane], sWinners[lane + WARP]], SORT_2)
            winner = self.take_top(queue)
            if lane < TOP:
                expert = expert_of(winner)
                sIds[lane] = expert
                sScores[lane] = sAllScores[expert]
            cute.arch.sync_warp()
            finish(sScores, sIds, mWeights, mIds)

    @cute.jit
    def sorted_keys(self, tLogits: list[Float32], tBias: list[Float32], sAllScores: cute.Tensor) -> list[Uint64]:
        """Return the lane's 8 keys, largest first, and leave the scores in shared memory."""
        keys = []
        for i in cutlass.range_constexpr(self.groups * self.width):
            expert = self.first_expert(i // self.width) + i % self.width
            score, key = score_and_key(tLogits[i], tBias[i], expert)
            if expert < EXPERTS:
                sAllScores[expert] = score
            else:
                key = Uint64(0)
            keys.append(key)
        return sort_descending(keys, SORT_8)

    @cute.jit
    def take_top(self, queue: list[Uint64]) -> Uint64:
        """Return, on lane r < 16, the r-th largest of all keys in the warp's queues."""
        lane = cute.arch.lane_idx()
        kept = Uint64(0)
        for rank in cutlass.range(TOP, unroll=1):
            best = warp_max(queue[0])
            won = queue[0] == best
            following = [*queue[1:], self.refill(queue[0])]
            for i in cutlass.range_constexpr(len(queue)):
                queue[i] = following[i] if won else queue[i]
            kept = best if lane == rank else kept
        return kept


@cute.jit
def sort_descending(keys: list[Uint64], network: tuple[tuple[int, int], ...]) -> list[Uint64]:
    """Return the keys sorted by a network of comparators, largest first."""
    for i in cutlass.range_constexpr(len(network)):
        low, high = network[i]
        first, second = keys[low], keys[high]
        swap = first < second
        keys[low] = second if swap else first
        keys[high] = first if swap else second
    return keys


class BoundRank:
    """Fourteen warps bound the 16th largest key from below, then rank the few keys at or above the bound by counting.

    The row is dealt round robin, in runs of 4 experts, to 28 groups of 32 keys; the 16th largest of the groups'
    maxima is the bound: 16 keys at least reach it, 22 or so in a random row, and never more than 16 groups of 32.
    All keys differ, so the counts are a permutation and nothing needs a special case. Loops stay rolled: at 2 us a
    launch, fetching instructions into a cold cache is a large part (2026-12-01).
    """

    threads = 448
    groups = 1
    width = 2

    @cute.struct
    class Shared:
        """The groups' maxima, their 16th largest, the keys that reach it with their scores, what ``finish`` reads."""

        maxima: cute.struct.MemRange[Uint64, 28]
        bound: Uint64
        keys: cute.struct.MemRange[Uint64, 17 * WARP]
        key_scores: cute.struct.MemRange[Float32, 17 * WARP]
        scores: cute.struct.Align[cute.struct.MemRange[Float32, TOP], 16]
        ids: cute.struct.MemRange[Int32, TOP]
        count: Uint32

    def first_expert(self, group: int) -> Int32:  # noqa: ARG002
        """Return the lane's first expert: two lanes to a run of 4 experts, runs dealt to the warps in turn.

        Runs of 8 left 58 keys to rank in a row of -inf, these leave 30: 2.3 us, not 2.7 (2026-12-01).
        """
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = thread >> 5, thread & 31
        return (warp + 14 * (lane >> 1)) * 4 + (lane & 1) * self.width

    @cute.jit
    def select(
        self,
        tLogits: list[Float32],
        tBias: list[Float32],
        shared: cute.struct,
        mWeights: cute.Pointer,
        mIds: cute.Pointer,
    ) -> None:
        """Select as ``Selection`` says."""
        thread, _, _ = cute.arch.thread_idx()
        sScores = shared.scores.get_tensor(cute.make_layout(TOP))
        sIds = shared.ids.get_tensor(cute.make_layout(TOP))
        if thread == 0:
            cute.arch.store(shared.count.ptr, Uint32(0), ss="cta")
        scores, keys = [], []
        for i in cutlass.range_constexpr(self.width):
            score, key = score_and_key(tLogits[i], tBias[i], self.first_expert(0) + i)
            scores.append(score)
            keys.append(key)
        self.find_bound(keys, shared)
        self.collect(keys, scores, shared)
        self.rank(shared, sScores, sIds)
        if thread < WARP:
            finish(sScores, sIds, mWeights, mIds)

    @cute.jit
    def find_bound(self, keys: list[Uint64], shared: cute.struct) -> None:
        """Leave the 16th largest of the 28 groups' maxima in shared memory."""
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = thread >> 5, thread & 31
        sMaxima = shared.maxima.get_tensor(cute.make_layout(28))
        maxima = [warp_max(key) for key in keys]
        for i in cutlass.range_constexpr(self.width):
            if lane == 0:
                sMaxima[warp * self.width + i] = maxima[i]
        sync_warps(self.threads)
        other = sMaxima[cutlass.min(lane, 27)]
        for i in cutlass.range_constexpr(self.width):
            above = cute.arch.vote_ballot_sync((lane < 28) & (other > maxima[i]))
            if cute.arch.popc(above) == TOP - 1:
                cute.arch.store(shared.bound.ptr, maxima[i], ss="cta")
        sync_warps(self.threads)

    @cute.jit
    def collect(self, keys: list[Uint64], scores: list[Float32], shared: cute.struct) -> None:
        """Gather the keys that reach the bound, and their scores, in shared memory, in any order."""
        sKeys = shared.keys.get_tensor(cute.make_layout(17 * WARP))
        sKeyScores = shared.key_scores.get_tensor(cute.make_layout(17 * WARP))
        bound = cute.arch.load(shared.bound.ptr, Uint64, ss="cta")
        for i in cutlass.range_constexpr(self.width):
            if keys[i] >= bound:
                place = Int32(cute.arch.atomic_add(shared.count.ptr, Uint32(1)))
                sKeys[place] = keys[i]
                sKeyScores[place] = scores[i]
        sync_warps(self.threads)

    @cute.jit
    def rank(self, shared: cute.struct, sScores: cute.Tensor, sIds: cute.Tensor) -> None:
        """Put every collected key whose rank is below 16 at its rank.

        A warp counts the larger keys for two of them at a time: most rows leave fewer than 28.
        """
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = thread >> 5, thread & 31
        warps = self.threads // WARP
        sKeys = shared.keys.get_tensor(cute.make_layout(17 * WARP))
        sKeyScores = shared.key_scores.get_tensor(cute.make_layout(17 * WARP))
        count = Int32(cute.arch.load(shared.count.ptr, Uint32, ss="cta"))
        for first in cutlass.range(warp, count, 2 * warps, unroll=1):
            places = [first, first + warps]
            keys = [sKeys[place] for place in places]
            ranks = [Int32(0), Int32(0)]
            for base in cutlass.range(0, count, WARP, unroll=1):
                other = sKeys[base + lane]
                for i in cutlass.range_constexpr(2):
                    larger = cute.arch.vote_ballot_sync((base + lane < count) & (other > keys[i]))
                    ranks[i] += cute.arch.popc(larger)
            for i in cutlass.range_constexpr(2):
                if (places[i] < count) & (ranks[i] < TOP):
                    sIds[ranks[i]] = expert_of(keys[i])
                    sScores[ranks[i]] = sKeyScores[places[i]]
        sync_warps(self.threads)


SELECTIONS = {"two_level": TwoLevel, "bound_rank": BoundRank}
"""The classes by the name of the ``selection`` parameter."""
