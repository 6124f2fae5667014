"""Time versions 1 and 2 of the two-level selection in turn, standalone and fused: the fix must cost nothing.

KREG_STORE=DIR KREG_POLICY=frozen python tests/gpu/time_versions.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import version_1
from kreg.cache_tools.bench_gpu import Contender
from kreg.kernels.exchange import Exchange
from kreg.kernels.kimi_topk16 import kimi_topk16

import kreg
from kreg.launch import Launch, on_current_stream

ROUNDS = 31


def topk16(version: int) -> list[Callable[[], object]]:
    """Return the standalone call of a version, on one row."""
    logits, bias = torch.randn(1, 896, device="cuda"), torch.randn(896, device="cuda")
    out = (torch.empty(1, 16, device="cuda"), torch.empty(1, 16, dtype=torch.int32, device="cuda"))
    if version == 2:
        return [lambda: kimi_topk16(logits, bias, out, selection="two_level")]
    call = on_current_stream(Launch(kreg.prepare(version_1.TOPK16), (0, 0, 0, 0), changing=4), (1, 1, 1))
    held = (logits, bias, *out)
    return [lambda: call(*(tensor.data_ptr() for tensor in held))]


def fused(version: int, transport: str) -> list[Callable[[], object]]:
    """Return the fused call of a version on both ranks of a world of 2."""
    ranks = Exchange.simulate(2, transport, selection="two_level")
    down, router = torch.randn(1, 1792, device="cuda").bfloat16(), torch.randn(1, 448, device="cuda")
    bias = torch.randn(896, device="cuda")
    if version == 1:
        for exchange in ranks:
            exchange._fused = kreg.prepare(version_1.FUSED, world_size=2, transport=transport)

    def call(exchange: Exchange) -> Callable[[], object]:
        ids = torch.empty(1, 16, dtype=torch.int32, device="cuda")
        out = (down.new_empty(1, 3584), bias.new_empty(1, 16), ids)
        return lambda: exchange.all_gather_pair_kimi_topk(down, router, bias, out)

    return [call(exchange) for exchange in ranks]


def main() -> None:
    """Print medians in us and the ratio, round by round."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    pairs = {"top-16": [topk16(version) for version in (1, 2)]}
    pairs |= {f"fused {t}, world 2": [fused(version, t) for version in (1, 2)] for t in ("push", "pull")}
    contenders = {name: [Contender(name, calls, streams) for calls in versions] for name, versions in pairs.items()}
    for name, (old, new) in contenders.items():
        rounds = [(old.replay_seconds(), new.replay_seconds()) for _ in range(ROUNDS + 1)][1:]
        first, second = (statistics.median(times) * 1e6 for times in zip(*rounds, strict=True))
        ratio = statistics.median(b / a for a, b in rounds)
        print(f"{name}, two_level, graph: version 1 {first:.3f} us, version 2 {second:.3f} us, ratio {ratio:.4f}")


if __name__ == "__main__":
    main()
