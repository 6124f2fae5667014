"""The gathers on a GPU: both transports, worlds of 2 to 16 ranks as streams of one device, eager and in graphs."""

from __future__ import annotations

from typing import Any

import pytest
import reference
import torch
import version_1
from kreg.kernels.exchange import Exchange, PeerTimeoutError
from kreg.kernels.kimi_topk16 import kimi_topk16
from worlds import World, world

import kreg

TRANSPORTS = ("pull", "push")
BANKS, REPLAYS = 12, 10_000


def slices(world_size: int, batch: int, width: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Return each rank's [batch, width] slice, of random bytes."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    shape = (world_size, batch, width * dtype.itemsize)
    data = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda", generator=generator)
    return [part.view(dtype) for part in data]


def same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(
        first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)
    )


def gather_both(made: World, first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    """Gather on every rank into poisoned outputs and compare every byte."""
    whole = [torch.cat(parts, dim=1) for parts in (first, second)]
    outputs = [[torch.full_like(t.view(torch.uint8), 0xA5).view(t.dtype) for t in whole] for _ in range(made.size)]
    made.each(lambda r, exchange: exchange.all_gather_pair(first[r], second[r], tuple(outputs[r])))
    for out in outputs:
        assert same_bytes(out[0], whole[0])
        assert same_bytes(out[1], whole[1])


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_gather_is_whole_in_every_world_and_batch(transport: str, size: int, record: dict[str, Any]):
    count = 0
    with world(size, transport) as made:
        for batch in (1, 8, 2, 3, 5, 1):
            first = slices(size, batch, 3584 // size // 8 * 8, torch.bfloat16, batch)
            second = slices(size, batch, 896 // size // 4 * 4, torch.float32, batch + 100)
            for _ in range(20):
                gather_both(made, first, second)
                count += 1
    record[f"gather {transport}, world {size}: whole tensors on every rank, calls"] = count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_gather_moves_any_dtype_and_size(transport: str, dtype: torch.dtype):
    with world(2, transport, payload_bytes=1 << 16) as made:
        for packs in (1, 3, 7, 100, 1001):
            width = packs * 16 // dtype.itemsize
            gather_both(made, slices(2, 2, width, dtype, packs), slices(2, 2, 16, torch.uint8, packs))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((1, 7), (1, 8), r"first has rows of 14 bytes, not whole packs of 16"),
        ((1, 8), (1, 4), r"second has rows of 8 bytes, not whole packs of 16"),
        ((1, 8), (2, 8), r"second has shape \(2, 8\); it takes \[batch, n\], the same batch for both"),
        ((8,), (1, 8), r"first has shape \(8,\); it takes \[batch, n\]"),
        ((64, 4096), (64, 8), r"first and second have 525312 bytes together; this exchange has no room"),
    ],
)
def test_gather_refuses_what_it_cannot_take(first: tuple[int, ...], second: tuple[int, ...], message: str):
    with world(2, "push") as made, pytest.raises(kreg.LaunchError, match=message):
        made.ranks[0].all_gather_pair(
            torch.empty(first, dtype=torch.bfloat16, device="cuda"),
            torch.empty(second, dtype=torch.bfloat16, device="cuda"),
        )


def test_gather_refuses_a_misaligned_tensor():
    with world(2, "push") as made:
        odd = torch.empty(33, dtype=torch.bfloat16, device="cuda")[1:].view(1, 32)
        with pytest.raises(kreg.LaunchError, match="first starts at an address that is not a multiple of 16 bytes"):
            made.ranks[0].all_gather_pair(odd, torch.empty(1, 8, dtype=torch.bfloat16, device="cuda"))


class Fused:
    """The fused kernel's inputs and poisoned outputs on every rank of a world."""

    def __init__(self, made: World, logits: torch.Tensor, bias: torch.Tensor, seed: int = 0) -> None:
        size = made.size
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.whole = torch.randn(1, 3584, device="cuda", generator=generator).bfloat16()
        self.down = [part.contiguous() for part in self.whole.chunk(size, dim=1)]
        self.router = [part.contiguous() for part in logits.view(1, 896).chunk(size, dim=1)]
        self.bias = bias
        self.outputs = [
            (
                torch.empty(1, 3584, dtype=torch.bfloat16, device="cuda"),
                torch.empty(1, 16, device="cuda"),
                torch.empty(1, 16, dtype=torch.int32, device="cuda"),
            )
            for _ in range(size)
        ]
        self.poison()

    def poison(self) -> None:
        for out in self.outputs:
            for tensor in out:
                tensor.view(torch.uint8).fill_(0xA5)

    def call(self, rank: int, exchange: Exchange) -> None:
        exchange.all_gather_pair_kimi_topk(self.down[rank], self.router[rank], self.bias, self.outputs[rank])


@pytest.mark.parametrize("selection", ["two_level", "bound_rank"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_fused_equals_gather_and_standalone_on_the_corpus(transport: str, selection: str, record: dict[str, Any]):
    with world(2, transport, selection=selection) as made:
        rows = [(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()) for _, a, b in reference.corpus()]
        wrong = 0
        for number, (logits, bias) in enumerate(rows):
            fused = Fused(made, logits, bias, number)
            weights, ids = kimi_topk16(logits[None], bias, selection=selection)
            made.each(fused.call)
            wrong += sum(
                not (same_bytes(down, fused.whole) and same_bytes(w, weights) and torch.equal(i, ids))
                for down, w, i in fused.outputs
            )
    record[f"fused {transport} {selection}, world 2: rows equal in every bit to the standalone, wrong"] = [
        len(rows),
        wrong,
    ]
    assert not wrong


@pytest.mark.parametrize("size", [2, 4, 7, 8, 14, 16])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("selection", ["two_level", "bound_rank"])
def test_fused_is_right_in_every_world(selection: str, transport: str, size: int):
    corpus = reference.corpus()[::53]
    with world(size, transport, selection=selection) as made:
        for number, (_, logits, bias) in enumerate(corpus):
            row, base = torch.from_numpy(logits).cuda(), torch.from_numpy(bias).cuda()
            fused = Fused(made, row, base, number)
            weights, ids = kimi_topk16(row[None], base)
            made.each(fused.call)
            for down, w, i in fused.outputs:
                assert same_bytes(down, fused.whole)
                assert same_bytes(w, weights)
                assert torch.equal(i, ids)


def test_fused_version_1_differs_exactly_where_it_repeats_an_expert(record: dict[str, Any]):
    kernel = kreg.prepare(version_1.FUSED, world_size=2, transport="push")
    with world(2, "push", selection="two_level") as made:
        old = [_version_1_call(kernel, exchange) for exchange in made.ranks]
        repeats = differing = 0
        for number, (_, logits, bias) in enumerate(reference.corpus()):
            fused = Fused(made, torch.from_numpy(logits).cuda(), torch.from_numpy(bias).cuda(), number)
            made.each(fused.call)
            new = [tuple(t.clone() for t in out) for out in fused.outputs]
            fused.poison()
            made.each(lambda r, _, f=fused: old[r](_addresses(f, r)))
            ids = fused.outputs[0][2][0].tolist()
            repeated = len(set(ids)) < 16
            differs = [
                not all(same_bytes(a, b) for a, b in zip(x, y, strict=True))
                for x, y in zip(new, fused.outputs, strict=True)
            ]
            assert differs == [repeated] * 2, number
            repeats += repeated
            differing += differs[0]
    assert repeats
    record["fused: rows in which version 1 repeats an expert, rows that differ from version 2"] = [repeats, differing]


def _addresses(fused: Fused, rank: int) -> list[int]:
    return [t.data_ptr() for t in (fused.down[rank], fused.router[rank], fused.bias, *fused.outputs[rank])]


def _version_1_call(kernel: Any, exchange: Exchange) -> Any:
    """Return a call of the version-1 kernel on an exchange's own staging, flags and epochs."""
    now, exchange._fused = exchange._fused, kernel
    call = exchange._fused_call(0)
    exchange._fused = now
    exchange._calls.clear()
    return lambda addresses: call(*addresses)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_fused_graph_replays_equal_eager_bytewise(transport: str, record: dict[str, Any]):
    corpus = reference.corpus()
    ordinary, corners = corpus[:: len(corpus) // 9][:8], [corpus[i] for i in (5062, 5110, 5170, 5250)]
    with world(2, transport) as made:
        banks = [
            Fused(made, torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), n)
            for n, (_, a, b) in enumerate([*ordinary, *corners])
        ]
        for bank in banks:
            made.each(bank.call)
        expected = [[tuple(t.clone() for t in out) for out in bank.outputs] for bank in banks]
        graphs = [made.capture(bank.call) for bank in banks]
        mismatches = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2)]
        for number in range(REPLAYS):
            bank, wanted = banks[number % BANKS], expected[number % BANKS]
            for rank, stream in enumerate(made.streams):
                with torch.cuda.stream(stream):
                    for tensor in bank.outputs[rank]:
                        tensor.view(torch.uint8).fill_(0xA5)
            made.replay(graphs[number % BANKS])
            for rank, stream in enumerate(made.streams):
                with torch.cuda.stream(stream):
                    for tensor, right in zip(bank.outputs[rank], wanted[rank], strict=True):
                        mismatches[rank] += (tensor.view(torch.uint8) != right.view(torch.uint8)).any()
            if number % 500 == 499:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        found = [int(count) for count in mismatches]
        record[f"fused {transport}, world 2: graph replays on {BANKS} banks, mismatches by rank"] = [REPLAYS, found]
        assert found == [0, 0]
        made.each(banks[3].call)  # Eager again after replays: the epochs go on.
        assert all(
            same_bytes(a, b)
            for x, y in zip(banks[3].outputs, expected[3], strict=True)
            for a, b in zip(x, y, strict=True)
        )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_gather_mixes_eager_and_graph_in_order(transport: str):
    with world(4, transport) as made:
        first, second = slices(4, 2, 896, torch.bfloat16, 1), slices(4, 2, 224, torch.float32, 2)
        outs = [
            (torch.empty(2, 3584, dtype=torch.bfloat16, device="cuda"), torch.empty(2, 896, device="cuda"))
            for _ in range(4)
        ]
        call = lambda r, exchange: exchange.all_gather_pair(first[r], second[r], outs[r])  # noqa: E731
        made.each(call)
        graphs = made.capture(call)
        for number in range(200):
            for tensor in (*first, *second):
                tensor.view(torch.uint8).add_(number % 7)
            for out in outs:
                for tensor in out:
                    tensor.view(torch.uint8).fill_(0xA5)
            torch.cuda.synchronize()
            if number % 3:
                made.replay(graphs)
                torch.cuda.synchronize()
            else:
                made.each(call)
            for out in outs:
                assert same_bytes(out[0], torch.cat(first, dim=1))
                assert same_bytes(out[1], torch.cat(second, dim=1))


def test_two_exchanges_on_one_device_do_not_disturb_each_other():
    with world(2, "push") as left, world(2, "pull") as right:
        for number in range(50):
            for made in (left, right, left):
                gather_both(made, slices(2, 1, 1792, torch.bfloat16, number), slices(2, 1, 448, torch.float32, number))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_missing_peer_is_named_after_a_bounded_wait(transport: str):
    made = World(4, transport)
    first, second = slices(4, 1, 896, torch.bfloat16, 1), slices(4, 1, 224, torch.float32, 2)
    outs = [(first[0].new_empty(1, 3584), second[0].new_empty(1, 896)) for _ in range(4)]
    torch.cuda.synchronize()

    # While kernels wait, nothing but the exchange is called: torch would load a kernel of its own, and wait for them.
    def gather(rank: int, timeout: float | None = None) -> None:
        with torch.cuda.stream(made.streams[rank]):
            made.ranks[rank].all_gather_pair(first[rank], second[rank], outs[rank], timeout=timeout)

    gather(1)
    gather(3)
    expected = "rank 0 waited 0.2 s in vain for rank 2; close the exchange and make it anew"
    with pytest.raises(PeerTimeoutError, match=expected) as caught:
        gather(0, timeout=0.2)
    gather(2)  # It comes late, after all, and the ranks that waited for it end.
    torch.cuda.synchronize()
    assert caught.value.missing == (2,)
    for exchange in made.ranks:
        exchange.close()
    for rank in (1, 2, 3):
        assert same_bytes(outs[rank][0], torch.cat(first, dim=1))
        assert same_bytes(outs[rank][1], torch.cat(second, dim=1))
    with world(4, transport) as anew:
        gather_both(anew, first, second)


def test_bounded_wait_under_capture_is_refused():
    with world(2, "push") as made:
        first, second = slices(2, 1, 1792, torch.bfloat16, 1), slices(2, 1, 448, torch.float32, 2)
        first[0].add_(0)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            first[0].add_(0)  # An empty graph is worth a warning to torch.
            with pytest.raises(kreg.LaunchError, match="a bounded wait reports to the caller"):
                made.ranks[0].all_gather_pair(first[0], second[0], timeout=1.0)


def test_closed_exchange_is_refused():
    with world(2, "push") as made:
        pass
    first, second = slices(2, 1, 1792, torch.bfloat16, 1), slices(2, 1, 448, torch.float32, 2)
    with pytest.raises(kreg.LaunchError, match="the exchange of rank 1 is closed"):
        made.ranks[1].all_gather_pair(first[1], second[1])


def test_fused_in_a_world_that_does_not_divide_is_refused():
    with world(3, "push") as made, pytest.raises(kreg.LaunchError, match="224 packs do not divide by a world of 3"):
        made.ranks[0].all_gather_pair_kimi_topk(*(torch.empty(1, 16, device="cuda"),) * 3)
