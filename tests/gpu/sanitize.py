"""A short run of every kernel for compute-sanitizer, which runs one kernel at a time.

    compute-sanitizer --tool memcheck|racecheck|synccheck --error-exitcode 9 python tests/gpu/sanitize.py

So that no kernel waits for another, rank 1 goes first, sends, and gives up; rank 0 then finds everything there.
"""

from __future__ import annotations

import reference
import torch
from kreg.kernels.exchange import Exchange, PeerTimeoutError
from kreg.kernels.kimi_topk16 import kimi_topk16


def select(count: int) -> None:
    """Run both selections on rows of every class."""
    rows = reference.corpus()
    for _, logits, bias in rows[:: len(rows) // count]:
        row, base = torch.from_numpy(logits).cuda()[None], torch.from_numpy(bias).cuda()
        first, second = (kimi_topk16(row, base, selection=form) for form in ("two_level", "bound_rank"))
        assert torch.equal(first[1], second[1])


def exchange(transport: str, selection: str) -> None:
    """Run both gathers of a world of 2, rank after rank."""
    ranks = Exchange.simulate(2, transport, selection=selection)
    first, second = torch.ones(1, 1792, device="cuda").bfloat16(), torch.ones(1, 448, device="cuda")
    bias = torch.zeros(896, device="cuda")
    calls = (
        lambda rank, timeout: ranks[rank].all_gather_pair(first, second, timeout=timeout),
        lambda rank, timeout: ranks[rank].all_gather_pair_kimi_topk(first, second, bias, timeout=timeout),
    )
    for number, call in enumerate(calls):
        try:
            call(1, 0.2)
        except PeerTimeoutError:
            out = call(0, 20.0)
            assert out[0].float().min() == 1.0, (transport, number)
        else:
            raise AssertionError("rank 1 found a peer that had not come")
        ranks = Exchange.simulate(2, transport, selection=selection)


if __name__ == "__main__":
    select(40)
    for chosen in ("pull", "push"):
        for form in ("two_level", "bound_rank"):
            exchange(chosen, form)
    torch.cuda.synchronize()
    print("every kernel ran")
