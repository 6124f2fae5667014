"""Two ranks in two processes on one GPU, their memory shared by CUDA IPC."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

RANK = """
import os, sys, torch, torch.distributed as dist, kreg
import reference
from kreg.kernels.exchange import Exchange, PeerTimeoutError
from kreg.kernels.kimi_topk16 import kimi_topk16
rank, transport, story = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
dist.init_process_group("gloo")
exchange = Exchange.connect(transport, device=0)
def parts(seed, width, dtype):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    whole = torch.randn(2, 2, width, device="cuda", generator=generator).to(dtype)
    return whole[rank].contiguous(), torch.cat([whole[0], whole[1]], dim=1)
def gather(seed):
    (first, all_first), (second, all_second) = parts(seed, 1792, torch.bfloat16), parts(seed + 1, 448, torch.float32)
    a, b = exchange.all_gather_pair(first, second, timeout=60)
    assert torch.equal(a, all_first) and torch.equal(b, all_second)
for seed in range(20):
    gather(seed)
if story == "whole":
    for _, logits, bias in reference.corpus()[::265]:
        row, base = torch.from_numpy(logits).cuda()[None], torch.from_numpy(bias).cuda()
        down = torch.ones(1, 1792, device="cuda").bfloat16()
        part = row.chunk(2, dim=1)[rank].contiguous()
        _, weights, ids = exchange.all_gather_pair_kimi_topk(down, part, base, timeout=60)
        right, right_ids = kimi_topk16(row, base)
        assert torch.equal(ids, right_ids) and torch.equal(weights.view(torch.int32), right.view(torch.int32))
elif rank == 1:
    os._exit(0)
else:
    first, second = parts(0, 1792, torch.bfloat16)[0], parts(1, 448, torch.float32)[0]
    try:
        exchange.all_gather_pair(first, second, timeout=1.0)
    except PeerTimeoutError as error:
        assert error.missing == (1,), error.missing
    else:
        raise AssertionError("the dead rank was not missed")
exchange.close()
print("rank", rank, "done")
os._exit(0) if story == "dies" else dist.destroy_process_group()
"""


def run_ranks(*arguments: str) -> list[subprocess.CompletedProcess[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "PYTHONPATH": path}
    started = [
        subprocess.Popen([sys.executable, "-c", RANK, *arguments], env={**common, "RANK": str(rank)}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]  # fmt: skip
    try:
        return [subprocess.CompletedProcess(p.args, p.wait(timeout=240), *p.communicate()) for p in started]
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("transport", ["pull", "push"])
def test_two_processes_gather_and_select(transport: str, record: dict[str, Any]):
    for done in run_ranks(transport, "whole"):
        assert done.returncode == 0, done.stderr[-2000:]
    record[f"two processes on one GPU, {transport}: gathers, fused rows"] = [20, 20]


def test_process_that_dies_is_named_by_the_other():
    done = run_ranks("push", "dies")
    assert [process.returncode for process in done] == [0, 0], done[0].stderr[-2000:]
    assert "rank 0 done" in done[0].stdout
