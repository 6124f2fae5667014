"""``kreg bench --gpu``: what launches cost on the device and on the host, beside the floors of the same run.

Device times are of CUDA-graph replay, many launches a graph, and of eager launches; all contenders take turns in one
process, since a process that uses several streams pays more for every node than one that uses one. Ranks of a
world are streams of one GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from cuda.bindings import driver
from kreg.kernels.exchange import Exchange
from kreg.kernels.kimi_topk16 import kimi_topk16

import kreg
from kreg.launch import Launch, check_tensor, on_current_stream
from kreg.loader import InContext, LoadedKernel, check, choose_target, load

from .bench import Figure, figure, in_turn, synthetic, timed
from .floors import ARGUMENTS, FLOOR

_LAUNCHES = 200
_ROUNDS = 21
_CHANGING = 6

Call = Callable[[], object]


class Contender:
    """Something timed: one call per rank, captured many times over in a graph per rank."""

    def __init__(self, name: str, calls: Sequence[Call], streams: Sequence[torch.cuda.Stream]) -> None:
        self.name = name
        self.held: object = None
        self.calls = calls
        self.streams = streams[: len(calls)]
        torch.cuda.synchronize()
        self.eager()
        torch.cuda.synchronize()
        self.graphs = [self._capture(call, stream) for call, stream in zip(calls, self.streams, strict=True)]

    @staticmethod
    def _capture(call: Call, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(_LAUNCHES):
                call()
        return graph

    def eager(self, times: int = 1) -> None:
        """Call on every rank's stream in turn."""
        before = torch.cuda.current_stream()
        for _ in range(times):
            for call, stream in zip(self.calls, self.streams, strict=True):
                torch.cuda.set_stream(stream)
                call()
        torch.cuda.set_stream(before)

    def replay_seconds(self) -> float:
        """Return the seconds per launch of one replay of every rank's graph, started together."""
        start = torch.cuda.Event(enable_timing=True)
        ends = [torch.cuda.Event(enable_timing=True) for _ in self.streams]
        with torch.cuda.stream(self.streams[0]):
            torch.cuda._sleep(2_000_000 + 500_000 * len(self.streams))  # noqa: SLF001 - until all is launched
            start.record()
        for stream in self.streams[1:]:
            stream.wait_event(start)
        for graph, stream, end in zip(self.graphs, self.streams, ends, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                end.record()
        torch.cuda.synchronize()
        return float(max(start.elapsed_time(end) for end in ends)) / 1e3 / _LAUNCHES

    def eager_seconds(self) -> float:
        """Return the seconds per round of eager calls on all ranks, host and device together."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.eager(_LAUNCHES)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / _LAUNCHES


def bench_gpu() -> Iterator[Figure]:
    """Measure everything. Yields figures as they are done."""
    streams = [torch.cuda.Stream() for _ in range(8)]
    yield from _bench_device(streams)
    yield from _bench_launch()
    yield from _bench_load()
    yield from _bench_start()


def _bench_device(streams: Sequence[torch.cuda.Stream]) -> Iterator[Figure]:
    empty, swap = _empty(streams), _swap(streams)
    pytorch = _pytorch(streams)
    goals = dict(_device_contenders(streams))
    everything = [empty, swap, pytorch, *goals]
    rounds = [{c.name: c.replay_seconds() for c in everything} for _ in range(_ROUNDS + 1)][1:]
    times = {c.name: [found[c.name] for found in rounds] for c in everything}
    for contender, (limit, goal) in {empty: (empty, ""), swap: (empty, ""), pytorch: (empty, ""), **goals}.items():
        yield figure(f"{contender.name}, graph", times[contender.name], limit.name, times[limit.name], goal)
        if limit is empty and "top-16" in contender.name:
            yield figure(f"{contender.name}, graph", times[contender.name], pytorch.name, times[pytorch.name], "0.11x")
    for contender in (*goals, pytorch):
        times_eager = [contender.eager_seconds() for _ in range(8)][1:]
        yield figure(f"{contender.name}, eager", times_eager, "graph", times[contender.name][:7], "")


def _floor(entry: str) -> LoadedKernel:
    target = choose_target(FLOOR.targets, torch.cuda.current_device())
    with tempfile.TemporaryDirectory() as store:
        artifact = kreg.resolve(FLOOR, entry=entry, target=target, store=store, policy="compile")
    return load(artifact, torch.cuda.current_device())


def _empty(streams: Sequence[torch.cuda.Stream]) -> Contender:
    return Contender("empty node", [on_current_stream(Launch(_floor("empty"), ()))], streams)


def _swap(streams: Sequence[torch.cuda.Stream]) -> Contender:
    words = torch.zeros(4, 64, dtype=torch.int32, device="cuda")
    mine, theirs, first, second = (row.data_ptr() for row in words)
    kernel = _floor("swap")
    ranks = [Launch(kernel, arguments) for arguments in ((mine, theirs, first), (theirs, mine, second))]
    contender = Contender("flag swap, relaxed", [on_current_stream(rank) for rank in ranks], streams)
    contender.held = words
    return contender


def _pytorch(streams: Sequence[torch.cuda.Stream]) -> Contender:
    logits, bias = torch.randn(1, 896, device="cuda"), torch.randn(896, device="cuda")

    def run() -> torch.Tensor:
        scores = torch.sigmoid(logits)
        weights = scores.gather(1, torch.topk(scores + bias, 16).indices)
        return weights / (weights.sum(1, keepdim=True) + 1e-20)

    return Contender("PyTorch sigmoid, topk, normalise", [run], streams)


def _device_contenders(streams: Sequence[torch.cuda.Stream]) -> Iterator[tuple[Contender, tuple[Contender, str]]]:
    """Yield what is timed with its limit and goal."""
    empty, swap = _empty(streams), _swap(streams)
    for selection in ("bound_rank", "two_level"):
        fast = selection == "bound_rank"
        for rows in (1, 8, 64):
            call = _topk(torch.randn(rows, 896, device="cuda"), selection)
            goal = "3.5x" if fast and rows < 64 else ""
            yield Contender(f"top-16 {selection}, {rows} rows", [call], streams), (empty, goal)
        for name, logits in _hard_rows():
            yield Contender(f"top-16 {selection}, {name}", [_topk(logits, selection)], streams), (empty, "")
    for transport, plain, fused in (("push", "1.45x", "1.9x"), ("pull", "2.0x", "2.6x")):
        for size in (2, 4, 8):
            first = size == 2
            yield (
                Contender(f"gather {transport}, world {size}", _gather(size, transport), streams),
                (swap, plain if first else ""),
            )
            row = torch.randn(896, device="cuda")
            calls = _fused(size, transport, row)
            yield Contender(f"fused {transport}, world {size}", calls, streams), (swap, fused if first else "")
        calls = _fused(2, transport, torch.full((896,), float("nan"), device="cuda"))
        yield Contender(f"fused {transport}, world 2, all -inf", calls, streams), (swap, "")


def _hard_rows() -> Iterator[tuple[str, torch.Tensor]]:
    yield "sorted", torch.randn(1, 896, device="cuda").sort().values
    yield "all -inf", torch.full((1, 896), float("nan"), device="cuda")
    yield "saturated", torch.full((1, 896), 60.0, device="cuda")


def _topk(logits: torch.Tensor, selection: str) -> Call:
    bias = 0.1 * torch.randn(896, device="cuda")
    out = kimi_topk16(logits, bias, selection=selection)
    return lambda: kimi_topk16(logits, bias, out, selection=selection)


def _gather(size: int, transport: str) -> list[Call]:
    first = torch.randn(1, 3584 // size, device="cuda").bfloat16()
    second = torch.randn(1, 896 // size, device="cuda")

    def call(exchange: Exchange) -> Call:
        out = (first.new_empty(1, 3584), second.new_empty(1, 896))
        return lambda: exchange.all_gather_pair(first, second, out)

    return [call(exchange) for exchange in Exchange.simulate(size, transport)]


def _fused(size: int, transport: str, row: torch.Tensor) -> list[Call]:
    down = torch.randn(1, 3584 // size, device="cuda").bfloat16()
    bias = 0.1 * torch.randn(896, device="cuda")

    def call(exchange: Exchange) -> Call:
        router = row.view(1, 896).chunk(size, dim=1)[exchange.rank].contiguous()
        ids = torch.empty(1, 16, dtype=torch.int32, device="cuda")
        out = (down.new_empty(1, 3584), bias.new_empty(1, 16), ids)
        return lambda: exchange.all_gather_pair_kimi_topk(down, router, bias, out)

    return [call(exchange) for exchange in Exchange.simulate(size, transport)]


def _bench_launch() -> Iterator[Figure]:
    """Measure the host's cost of a launch with many arguments, six of them changing."""
    kernel = _floor("many")
    words = torch.empty(1024, device="cuda")
    call = on_current_stream(Launch(kernel, (words.data_ptr(),) * ARGUMENTS, changing=_CHANGING))
    addresses = (words.data_ptr(),) * _CHANGING
    a, b, c, d = (torch.empty(1, 16, device="cuda") for _ in range(4))
    device, calls = torch.cuda.current_device(), 20_000

    def unchecked() -> None:
        call(*addresses)

    def checked() -> None:
        call(
            check_tensor("a", a, torch.float32, (1, 16), device),
            check_tensor("b", b, torch.float32, (1, 16), device),
            check_tensor("c", c, torch.float32, (1, 16), device),
            check_tensor("d", d, torch.float32, (1, 16), device),
            0,
            0,
        )

    in_c = _launch_loop_in_c(kernel)
    runs = {
        "launch, 42 arguments, 6 changing": (_per_call(unchecked, calls), "1.4x"),
        "the same, 4 tensors checked": (_per_call(checked, calls), "2.2x"),
        "cuda.core launch, 42 arguments": (_per_call(_cuda_core_launch(kernel, words), calls), ""),
        "torch.add(out=)": (_per_call(lambda: torch.add(a, b, out=c), calls), ""),
    }
    for what, (run, goal) in runs.items():
        times, limits = in_turn(run, lambda: in_c(calls), 9)
        yield figure(what, times, "a C loop of cuLaunchKernel", limits, goal)


def _per_call(call: Call, calls: int) -> Callable[[], float]:
    def run() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls // 20):
            for _ in range(20):
                call()
        seconds = (time.perf_counter() - start) / calls
        torch.cuda.synchronize()
        return seconds

    return run


def _cuda_core_launch(kernel: LoadedKernel, words: torch.Tensor) -> Call:
    from cuda.core import Device, LaunchConfig, ObjectCode, launch

    device = Device(kernel.device)
    device.set_current()
    stream = device.create_stream()
    function = ObjectCode.from_cubin(kernel.artifact.cubin).get_kernel(kernel.artifact.symbol)
    config = LaunchConfig(grid=1, block=1)
    arguments = (words.data_ptr(),) * ARGUMENTS
    return lambda: launch(stream, config, function, *arguments)


_C_LOOP = """
#include <time.h>
typedef unsigned u;
typedef int (*launch_t)(void*, u, u, u, u, u, u, u, void*, void**, void**);
double loop(launch_t launch, void* function, void* stream, int arguments, int changing, int calls) {
  void *values[64], *parameters[64];
  struct timespec a, b;
  for (int i = 0; i < arguments; i++) { values[i] = 0; parameters[i] = &values[i]; }
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (int n = 0; n < calls; n++) {
    for (int i = 0; i < changing; i++) values[i] = (void*)(long)n;
    if (launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0)) return -1;
  }
  clock_gettime(CLOCK_MONOTONIC, &b);
  return ((b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec)) / calls;
}
"""


def _launch_loop_in_c(kernel: LoadedKernel) -> Callable[[int], float]:
    """Return a loop of bare driver calls, compiled with the machine's C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = f"{folder}/loop.c", f"{folder}/loop.so"
        with open(source, "w", encoding="utf-8") as file:
            file.write(_C_LOOP)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)  # noqa: S603, S607
        loop = ctypes.CDLL(library).loop
    loop.restype = ctypes.c_double
    pointer = ctypes.c_void_p
    loop.argtypes = [pointer, pointer, pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    entry = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, pointer)
    function, stream = int(kernel.function), torch.cuda.current_stream().cuda_stream

    def run(calls: int) -> float:
        torch.cuda.synchronize()
        return float(loop(entry, function, stream, ARGUMENTS, _CHANGING, calls))

    return run


def _bench_load() -> Iterator[Figure]:
    """Measure loading 64 cubins from the store, digests verified, against loading them from memory."""
    device = torch.cuda.current_device()
    model = _shipped()
    times: list[float] = []
    limits: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(5):
            store = kreg.Store(f"{folder}/{number}")
            made = list(synthetic(model, 64, 0, start=1000 * number))
            for _, artifact in made:
                store.publish(artifact)
            images = [artifact.cubin + b"\0" for _, artifact in made]
            limits.append(timed(lambda: [_load_bare(image, model.symbol, device) for image in images]))  # noqa: B023
            key = model.toolchain_key
            times.append(timed(lambda: [_load_stored(store, spec, key, device) for spec, _ in made]))  # noqa: B023
    yield figure("load 64 cubins from the store", times, "cuModuleLoadData from memory", limits, "1.5x")


def _shipped() -> kreg.Artifact:
    target = choose_target(kreg.REGISTRY.get("kimi_topk16").targets, torch.cuda.current_device())
    return kreg.resolve("kimi_topk16", target=target)


def _load_bare(image: bytes, symbol: str, device: int) -> object:
    with InContext(device):
        module = check(driver.cuModuleLoadData(image), "load")
        return check(driver.cuModuleGetFunction(module, symbol.encode()), "find the kernel")


def _load_stored(store: kreg.Store, spec: kreg.CompileSpec, toolchain_key: str, device: int) -> LoadedKernel:
    artifact = store.read(spec, toolchain_key)
    assert artifact is not None
    return load(artifact, device)


_START = """
import sys
from cuda.bindings import driver
{load}
pointer = int(driver.cuMemAlloc(16384)[1])
{launch}
assert driver.cuCtxSynchronize()[0] == 0
"""

_START_BARE = _START.format(
    load="""
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1])
with open({path!r}, "rb") as file:
    module = driver.cuModuleLoadData(file.read())[1]
function = driver.cuModuleGetFunction(module, {symbol!r})[1]
""",
    launch="""
import ctypes
values = (ctypes.c_void_p * 4)(*(pointer + 4096 * i for i in range(4)))
parameters = (ctypes.c_void_p * 4)(*(ctypes.addressof(values) + 8 * i for i in range(4)))
assert driver.cuLaunchKernel(function, 1, 1, 1, {block}, 1, 1, {shared}, 0, ctypes.addressof(parameters), 0)[0] == 0
""",
)

_START_KREG = _START.format(
    load="""
import kreg
from kreg.launch import Launch
from kreg.loader import load
kernel = load(kreg.resolve("kimi_topk16", target={target!r}))
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1])
""",
    launch="Launch(kernel, [pointer + 4096 * i for i in range(4)]).bind((1, 1, 1), int)()",
)


def _bench_start() -> Iterator[Figure]:
    """Measure a process from its start to the end of its first launch, without torch."""
    model = _shipped()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(model.cubin)
        file.flush()
        bare = _START_BARE.format(
            path=file.name, symbol=model.symbol.encode(), block=model.launch.block[0], shared=model.launch.shared_bytes
        )
        ours = _START_KREG.format(target=model.manifest.target)
        times, limits = in_turn(lambda: timed(lambda: _run(ours)), lambda: timed(lambda: _run(bare)), 7)
    yield figure("process start to first launch", times, "the same with cuda.bindings alone", limits, "1.3x")


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603
