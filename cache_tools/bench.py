"""``kreg bench``: what a hit, a compile and a look at a store cost, beside the limit measured in the same run.

Every figure is a median over runs. A figure and its limit, the same work without kreg, are measured in turn, and the
ratio is taken turn by turn, so that a drift of the machine's speed meets both.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import click
import msgspec

import kreg
from kreg import REGISTRY, Artifact, CompileSpec, Resolver, Store
from kreg.build import compile_artifact
from kreg.digest import sha256
from kreg.inventory import entries
from kreg.manifest import Manifest, decode, encode
from kreg.upkeep import Verifier
from kreg.warming import warm

from .options import json_option
from .output import print_columns, print_json

TARGET = "sm_90a"
_RACERS = 16


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured thing: medians in seconds of kreg and of its limit, the spread of kreg's, and the goal.

    ``ratio`` is the median of the ratios of each turn. ``goal`` is an upper bound on it, or on ``seconds`` where it
    ends in a unit of time; empty where none is set.
    """

    what: str
    seconds: float
    fastest: float
    slowest: float
    limit: str
    limit_seconds: float
    ratio: float
    goal: str


def in_turn(run: Callable[[], float], limit: Callable[[], float], runs: int) -> tuple[list[float], list[float]]:
    """Measure two things in turn, after one round that does not count."""
    pairs = [(run(), limit()) for _ in range(runs + 1)][1:]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def figure(what: str, times: Sequence[float], limit: str, limits: Sequence[float], goal: str) -> Figure:
    """Make a figure of times that were measured in turn."""
    return Figure(
        what=what,
        seconds=statistics.median(times),
        fastest=min(times),
        slowest=max(times),
        limit=limit,
        limit_seconds=statistics.median(limits),
        ratio=statistics.median(time / bare for time, bare in zip(times, limits, strict=True)),
        goal=goal,
    )


def timed(run: Callable[[], object]) -> float:
    """Return the seconds one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def per_call(run: Callable[[], object], calls: int) -> float:
    """Return the seconds a call takes, over many, the cost of the loop included."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def _bench_fresh(folder: str) -> Iterator[Figure]:
    """Measure a warm hit in a fresh process."""
    kernel = REGISTRY.get("kimi_topk16")
    store = Store(f"{folder}/fresh")
    warm([(kernel, kernel.spec(TARGET, {}))], store=store, jobs=1)
    files = [next(entries(store)).path, next(store.object_files())]
    hit = f"import kreg; kreg.resolve('kimi_topk16', target={TARGET!r}, store={store.root!r}).cubin"
    bare = f"import hashlib\nfor p in {files!r}:\n with open(p, 'rb') as f: hashlib.sha256(f.read()).hexdigest()"
    times, limits = in_turn(lambda: timed(lambda: _python(hit)), lambda: timed(lambda: _python(bare)), 25)
    yield figure("fresh process, warm hit", times, "start Python, read and hash both files", limits, "2x")


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


def _bench_hot(folder: str) -> Iterator[Figure]:
    """Measure hits in a hot process: through the store, and through memory."""
    model = _model()
    for size, calls, goal in ((4096, 500, "60 us"), (1 << 20, 30, "1.5x")):
        store = Store(f"{folder}/hot-{size}")
        spec, artifact = next(synthetic(model, 1, size, is_elf=False))
        entry = store.publish(artifact)
        paths = (entry, store.object_path(artifact.cubin_digest))
        times, limits = in_turn(
            lambda: per_call(lambda: store.read(spec, artifact.toolchain_key), calls),  # noqa: B023
            lambda: per_call(lambda: [_read_and_hash(path) for path in paths], calls),  # noqa: B023
            15,
        )
        yield figure(f"store hit, {size >> 10} KiB cubin", times, "read and hash both files", limits, goal)
    resolver = Resolver(store)
    kernel = REGISTRY.get("kimi_topk16")
    resolver._memory[spec.key] = artifact  # noqa: SLF001 - a hit of the resolver's memory needs no compiler
    yield _bench_call("memory hit, by spec", "resolve(kernel, spec)", "200 ns", resolve=resolver.resolve,
                      kernel=kernel, spec=spec)  # fmt: skip
    kreg.resolve("kimi_topk16", target=TARGET, store=f"{folder}/fresh")
    call = f"resolve('kimi_topk16', target={TARGET!r}, store=store)"
    yield _bench_call("memory hit, by name", call, "", resolve=kreg.resolve, store=f"{folder}/fresh")


def _bench_call(what: str, call: str, goal: str, **names: object) -> Figure:
    """Measure one expression, without the cost of a loop around it."""
    timer, empty = timeit.Timer(call, globals=names), timeit.Timer("nothing()", globals={"nothing": lambda: None})
    calls = 100_000
    times, limits = in_turn(lambda: timer.timeit(calls) / calls, lambda: empty.timeit(calls) / calls, 15)
    return figure(what, times, "call a function that does nothing", limits, goal)


def _bench_drift(_folder: str) -> Iterator[Figure]:
    """Measure what a hit pays to see that no source has changed, in a hot process."""
    for kernel in REGISTRY.kernels():
        paths = kernel.source_paths()
        times, limits = in_turn(
            lambda: per_call(kernel.source_digest, 2000),  # noqa: B023
            lambda: per_call(lambda: [os.stat(path) for path in paths], 2000),  # noqa: B023
            15,
        )
        yield figure(f"drift check, {len(paths)} sources", times, "stat them", limits, "2x")


def _read_and_hash(path: str) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _bench_race(folder: str) -> Iterator[Figure]:
    """Measure many processes that want one cold key at once."""
    context = multiprocessing.get_context("spawn")
    times: list[float] = []
    limits: list[float] = []
    for number in range(3):
        for racers, found in ((_RACERS, times), (1, limits)):
            with context.Manager() as shared:
                barrier = shared.Barrier(racers)
                with ProcessPoolExecutor(racers, context) as pool:
                    root = f"{folder}/race-{number}-{racers}"
                    done = list(pool.map(_race, [root] * racers, [barrier] * racers))
            compiles = sum(origin == "compiled" for _, origin in done)
            if compiles != 1:
                raise click.ClickException(f"{compiles} of {racers} processes compiled one key")
            found.append(max(seconds for seconds, _ in done))
    yield figure(f"{_RACERS} processes, one cold key, 1 compile", times, "one process, the same key", limits, "1.3x")


def _race(root: str, barrier: multiprocessing.synchronize.Barrier) -> tuple[float, str]:
    """Resolve one key with all others; return the seconds it took and where the artifact came from."""
    kernel = REGISTRY.get("kimi_topk16")
    barrier.wait()
    start = time.perf_counter()
    artifact = kreg.resolve(kernel, target=TARGET, store=root)
    return time.perf_counter() - start, artifact.origin


def _bench_scale(folder: str) -> Iterator[Figure]:
    """Measure ``list`` and ``verify`` on large stores."""
    model = _model()
    for count in (1_000, 10_000):
        store = Store(f"{folder}/scale-{count}")
        for _, artifact in synthetic(model, count, 4096):
            _put_unsynced(store, artifact)
        manifests, objects = list(store.entry_files()), list(store.object_files())
        times, limits = in_turn(
            lambda: timed(lambda: sum(1 for _ in entries(store))),  # noqa: B023
            lambda: timed(lambda: [decode(_read(path), path) for path in manifests]),  # noqa: B023
            5,
        )
        yield figure(f"list {count} entries", times, "read and parse their manifests", limits, "2x")
        times, limits = in_turn(
            lambda: timed(lambda: _verify(store)),  # noqa: B023
            lambda: timed(lambda: [_read_and_hash(path) for path in (*manifests, *objects)]),  # noqa: B023
            5,
        )
        yield figure(f"verify {count} entries", times, "read and hash their files", limits, "1.43x")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _verify(store: Store) -> None:
    verifier = Verifier(store)
    bad = [finding for finding in map(verifier.check, entries(store)) if finding is not None]
    if bad:
        raise click.ClickException(f"{bad[0].path}: {bad[0].reason}")


def _bench_warm(folder: str) -> Iterator[Figure]:
    """Measure ``warm`` on every variant of every kernel, with two jobs and with one."""
    variants = [(kernel, spec) for kernel in REGISTRY.kernels() for spec in kernel.specs()]

    def run(jobs: int) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as root:
            return warm(variants, store=root, jobs=jobs).seconds

    pairs = [(run(2), run(1)) for _ in range(3)]
    what = f"warm --jobs 2, {len(variants)} variants"
    yield figure(what, [two for two, _ in pairs], "warm --jobs 1", [one for _, one in pairs], "0.59x")


def synthetic(
    model: Artifact, count: int, size: int, *, start: int = 0, is_elf: bool = True
) -> Iterator[tuple[CompileSpec, Artifact]]:
    """Yield artifacts of a kernel that nobody declares, each with a cubin of its own, like ``model`` in all else.

    The cubin is the model's with a tail that no ELF reader looks at, ``size`` bytes or a little more; where ``is_elf``
    is False it is ``size`` random bytes, which the store does not mind.
    """
    for number in range(start, start + count):
        spec = CompileSpec(kernel="synthetic", version=1, params={"number": number}, target=model.manifest.target)
        tail = number.to_bytes(8, "little")
        cubin = model.cubin + tail.rjust(max(8, size - len(model.cubin)), b"\0") if is_elf else os.urandom(size)
        changed: Manifest = msgspec.structs.replace(
            model.manifest,
            kernel=spec.kernel,
            params=dict(spec.params),
            spec_key=spec.key,
            cubin_digest=sha256(cubin),
            cubin_bytes=len(cubin),
        )
        yield spec, Artifact(encode(changed), cubin, "synthetic")


def _model() -> Artifact:
    kernel = REGISTRY.get("kimi_topk16")
    return compile_artifact(kernel, kernel.spec(TARGET, {}))


def _put_unsynced(store: Store, artifact: Artifact) -> None:
    """Lay an artifact into a store without the syncs of ``publish``, to build large ones quickly."""
    manifest = artifact.manifest
    entry = store.entry_path(manifest.kernel, manifest.version, artifact.key, artifact.toolchain_key)
    for path, data in ((store.object_path(artifact.cubin_digest), artifact.cubin), (entry, artifact.manifest_bytes)):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


_SECTIONS = {
    "fresh": _bench_fresh,
    "hot": _bench_hot,
    "drift": _bench_drift,
    "race": _bench_race,
    "scale": _bench_scale,
    "warm": _bench_warm,
}


@click.command("bench")
@click.argument("sections", nargs=-1, type=click.Choice(list(_SECTIONS)))
@click.option("--gpu", is_flag=True, help="Measure launches on this machine's GPU instead.")
@json_option
def bench_command(sections: tuple[str, ...], gpu: bool, as_json: bool) -> None:
    """Measure what kreg costs, beside the same work without it. All SECTIONS by default; takes minutes."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="kreg-bench-") as folder:
        for item in _measure_gpu() if gpu else _measure(sections or tuple(_SECTIONS), folder):
            found.append(item)
            click.echo(f"{item.what}: {show_seconds(item.seconds)}", err=True)
    if as_json:
        print_json(found)
        return
    head = ("WHAT", "MEDIAN", "FASTEST", "SLOWEST", "LIMIT", "LIMIT IS TO", "RATIO", "GOAL")
    print_columns(head, [_row(item) for item in found], right=(1, 2, 3, 4, 6, 7))


def _measure(sections: tuple[str, ...], folder: str) -> Iterator[Figure]:
    for name in sections:
        yield from _SECTIONS[name](folder)


def _measure_gpu() -> Iterator[Figure]:
    from .bench_gpu import bench_gpu

    return bench_gpu()


def _row(item: Figure) -> tuple[str, ...]:
    times = [show_seconds(value) for value in (item.seconds, item.fastest, item.slowest)]
    return item.what, *times, show_seconds(item.limit_seconds), item.limit, f"{item.ratio:.2f}x", item.goal


def show_seconds(seconds: float) -> str:
    """Write a time with three digits: ``310 ns``, ``4.52 us``, ``12.3 ms``, ``1.70 s``."""
    for unit, size in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            value = seconds / size
            return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"
    return f"{seconds:.2f} s"
