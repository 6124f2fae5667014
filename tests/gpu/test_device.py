"""Loading on a GPU: resident at once, once per cubin and device, in torch's context, and never under capture."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import torch
import version_1
from cuda.bindings import driver
from kreg.kernels.kimi_topk16 import kimi_topk16

import kreg
from kreg import loader
from kreg.digest import sha256
from kreg.launch import Launch, on_current_stream
from kreg.manifest import encode

HERE = Path(__file__).parent


def artifact(name: str = "kimi_topk16", **params: object) -> kreg.Artifact:
    return kreg.resolve(name, target="sm_90a", **params)


def test_load_makes_the_kernel_resident_once_per_cubin_and_device():
    kernel = loader.load(artifact())
    assert kernel is loader.load(artifact())
    error, state = driver.cuFuncIsLoaded(kernel.function)
    assert error == driver.CUresult.CUDA_SUCCESS
    assert state == driver.CUfunctionLoadingState.CU_FUNCTION_LOADING_STATE_LOADED


def test_load_from_many_threads_gives_one_kernel():
    found = []
    threads = [threading.Thread(target=lambda: found.append(loader.load(artifact()))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(kernel) for kernel in found}) == 1


def test_load_leaves_the_current_context_as_it_was():
    before = int(driver.cuCtxGetCurrent()[1])
    loader.load(artifact(selection="bound_rank"))
    assert int(driver.cuCtxGetCurrent()[1]) == before


def test_load_for_another_architecture_names_artifact_target_and_device():
    message = r"`kimi_topk16@1:sm_120a` \(\w{12}\) is for sm_120a; device 0 runs sm_90a, sm_90"
    with pytest.raises(kreg.LoadError, match=message):
        loader.load(rebuilt(artifact(), cubin=artifact().cubin + b"0", target="sm_120a"))


def test_load_of_an_image_that_is_cut_short_does_not_reach_the_driver():
    message = r"cannot load `kimi_topk16@1:sm_90a` \(\w{12}\) for sm_90a on device 0: cubin is cut short"
    with pytest.raises(kreg.LoadError, match=message):
        loader.load(rebuilt(artifact(), cubin=artifact().cubin[:2000]))


def test_load_on_a_device_that_is_not_there():
    with pytest.raises(kreg.LoadError, match="cannot find device 99: CUDA_ERROR_INVALID_DEVICE"):
        loader.load(artifact(), 99)


def rebuilt(model: kreg.Artifact, *, cubin: bytes, target: str = "sm_90a") -> kreg.Artifact:
    """Return ``model`` with another cubin, which its manifest vouches for, and another target."""
    changed = {"cubin_digest": sha256(cubin), "cubin_bytes": len(cubin), "target": target}
    return kreg.Artifact(encode(msgspec.structs.replace(model.manifest, **changed)), cubin, "test")


def test_large_shared_memory_is_allowed():
    kernel = kreg.prepare(version_1.LARGE)
    call = on_current_stream(Launch(kernel, (0, 0), changing=2))
    given = torch.randn(24576, device="cuda")
    for _ in range(3):
        out = torch.full_like(given, float("nan"))
        call(given.data_ptr(), out.data_ptr())
        assert torch.equal(out, given.flip(0))


def test_cold_kernel_under_capture_is_an_error_and_the_process_goes_on():
    code = """
import torch, kreg
from kreg.kernels.kimi_topk16 import kimi_topk16
logits, bias = torch.randn(1, 896, device="cuda"), torch.randn(896, device="cuda")
torch.cuda.synchronize()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        kimi_topk16(logits, bias)
except kreg.LaunchError as error:
    assert str(error).startswith("kimi_topk16 is not loaded, and a graph is being captured; call kreg.prepare('kimi")
else:
    raise AssertionError("nothing was raised")
out = kimi_topk16(logits, bias)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = kimi_topk16(logits, bias)
graph.replay()
torch.cuda.synchronize()
assert torch.equal(out[1], captured[1])
"""
    assert run_python(code).returncode == 0


def test_frozen_process_reads_nothing_from_disk_for_what_was_prepared():
    code = """
import builtins, os, torch, kreg
from kreg.kernels.kimi_topk16 import kimi_topk16
from kreg.kernels.exchange import Exchange
logits, bias = torch.randn(1, 896, device="cuda"), torch.randn(896, device="cuda")
texts = ["kimi_topk16[selection=bound_rank]", "kimi_topk16", "all_gather_pair[world_size=2,transport=push]"]
assert len(kreg.prepare(texts)) == 3
kimi_topk16(logits, bias)
kreg.freeze()
def refuse(*arguments, **options):
    raise AssertionError(f"opened {arguments}")
os.open = builtins.open = os.listdir = refuse
for selection in ("two_level", "bound_rank"):
    kimi_topk16(logits, bias, selection=selection)
kreg.prepare("all_gather_pair", world_size=2, transport="push")
torch.cuda.synchronize()
"""
    assert run_python(code).returncode == 0


def test_two_kernels_that_wait_for_each_other_end_on_their_first_launch_under_lazy_loading():
    code = """
import torch, kreg
from kreg.kernels.exchange import Exchange
ranks = Exchange.simulate(2, "push")
streams = [torch.cuda.Stream() for _ in ranks]
first, second = torch.ones(1, 1792, device="cuda").bfloat16(), torch.ones(1, 448, device="cuda")
torch.cuda.synchronize()
for exchange, stream in zip(ranks, streams):
    with torch.cuda.stream(stream):
        exchange.all_gather_pair(first, second)
for exchange, stream in zip(ranks, streams):
    with torch.cuda.stream(stream):
        exchange.all_gather_pair_kimi_topk(first, second, torch.zeros(896, device="cuda"))
torch.cuda.synchronize()
"""
    assert run_python(code, CUDA_MODULE_LOADING="LAZY").returncode == 0


def test_host_without_torch_or_compiler_launches():
    code = """
import sys, kreg
from cuda.bindings import driver
from kreg.loader import load
from kreg.launch import Launch
from kreg.memory import DeviceMemory
for name in ("cutlass", "torch"):
    sys.modules[name] = None
kernel = load(kreg.resolve("kimi_topk16", target="sm_90a"))
memory = DeviceMemory(0, 16384)
launch = Launch(kernel, (memory.address, memory.address + 4096, memory.address + 8192, memory.address + 12288))
launch.bind((1, 1, 1), int)()
ids = memory.read(12288, 64)
assert [int.from_bytes(ids[4 * i : 4 * i + 4], "little") for i in range(16)] == list(range(16)), ids
"""
    assert run_python(code).returncode == 0


def test_launch_from_threads_that_never_touched_cuda():
    logits, bias = torch.randn(1, 896, device="cuda"), torch.randn(896, device="cuda")
    _, expected = kimi_topk16(logits, bias)
    out = [(torch.empty(1, 16, device="cuda"), torch.empty(1, 16, dtype=torch.int32, device="cuda")) for _ in range(16)]
    torch.cuda.synchronize()
    errors = []

    def run(mine: tuple[torch.Tensor, torch.Tensor]) -> None:
        try:
            for _ in range(200):
                kimi_topk16(logits, bias, mine)
        except kreg.KregError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(mine,)) for mine in out]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not errors
    assert all(torch.equal(ids, expected) for _, ids in out)


def test_launch_with_another_context_current_leaves_it_current():
    logits, bias = torch.randn(1, 896, device="cuda"), torch.randn(896, device="cuda")
    weights, ids = kimi_topk16(logits, bias)
    expected = ids.clone()
    ids.fill_(-1)
    torch.cuda.synchronize()
    _, other = driver.cuCtxCreate(None, 0, driver.cuDeviceGet(0)[1])
    try:
        kimi_topk16(logits, bias, (weights, ids))
        assert int(driver.cuCtxGetCurrent()[1]) == int(other)
    finally:
        driver.cuCtxDestroy(other)
    torch.cuda.synchronize()
    assert torch.equal(ids, expected)


def test_launch_on_the_current_stream_is_ordered_with_it():
    logits, bias = torch.randn(1, 896, device="cuda"), torch.randn(896, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(50):
            torch.cuda._sleep(100_000)
            logits.normal_()
            _, ids = kimi_topk16(logits, bias)
            assert torch.equal(ids, kimi_topk16(logits.clone(), bias, selection="two_level")[1])


def test_many_kernels_dropped_under_capture_do_not_break_it():
    import gc

    logits, bias = torch.randn(1, 896, device="cuda"), torch.randn(896, device="cuda")
    kimi_topk16(logits, bias)
    kernels = [
        loader.load(artifact("all_gather_pair", world_size=w, transport=t)) for w in (2, 4, 8) for t in ("pull", "push")
    ]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        del kernels
        gc.collect()
        _, ids = kimi_topk16(logits, bias)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(ids, kimi_topk16(logits, bias)[1])


def test_launch_with_the_wrong_number_of_arguments():
    kernel = loader.load(artifact())
    with pytest.raises(kreg.LaunchError, match="kimi_topk16 takes 4 arguments, not 3"):
        Launch(kernel, (0, 0, 0))


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that is killed if it hangs."""
    full = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]), **environment}
    return subprocess.run([sys.executable, "-c", code], timeout=120, check=False, env=full, text=True)
