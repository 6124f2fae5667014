"""Warming: compiling many variants ahead of use, in worker processes.

What is in the store already is not compiled again, so an interrupted run goes on where it was. A variant that fails,
or whose compile kills its process, costs that variant alone; its log is kept in the store.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from kreg import config
from kreg.build import compile_artifact, require_toolchain
from kreg.errors import CompileError, KregError, StoreError
from kreg.kernel import Kernel
from kreg.record import Record
from kreg.resolver import Resolver
from kreg.spec import CompileSpec
from kreg.store import BadEntry, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

COMPILED, HIT, FAILED = "compiled", "hit", "failed"


class Outcome(Record):
    """What became of one variant: ``status`` is compiled, hit or failed; ``error`` and ``log_path`` if it failed."""

    __slots__ = ("spec", "status", "cubin_digest", "error", "log_path")
    spec: CompileSpec
    status: str
    cubin_digest: str | None
    error: str | None
    log_path: str | None

    def __init__(
        self,
        *,
        spec: CompileSpec,
        status: str,
        cubin_digest: str | None = None,
        error: str | None = None,
        log_path: str | None = None,
    ) -> None:
        self._set(spec=spec, status=status, cubin_digest=cubin_digest, error=error, log_path=log_path)


class Report(Record):
    """The outcomes of a warm run, in the order of the request, and its duration in seconds."""

    __slots__ = ("outcomes", "seconds")
    outcomes: tuple[Outcome, ...]
    seconds: float

    def __init__(self, *, outcomes: tuple[Outcome, ...], seconds: float) -> None:
        self._set(outcomes=outcomes, seconds=seconds)

    def count(self, status: str) -> int:
        """Return how many variants ended as ``status``."""
        return sum(outcome.status == status for outcome in self.outcomes)


def warm(
    variants: Sequence[tuple[Kernel, CompileSpec]],
    *,
    store: Store | str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: Callable[[Outcome], None] | None = None,
) -> Report:
    """Compile what the store lacks of ``variants``, with ``jobs`` processes (default: one per usable CPU).

    ``progress`` is called with each outcome as it comes. A failed variant is an outcome, not an exception. Raises
    ``StoreError`` if the store cannot be written at all, and ``ToolchainError`` if a compiler is not installed.
    """
    start = time.perf_counter()
    opened = store if isinstance(store, Store) else Store(store)
    opened.prepare()
    outcomes: dict[str, Outcome] = {}
    for outcome in _outcomes(variants, opened, jobs or usable_cpus()):
        outcomes[outcome.spec.key] = outcome
        if progress is not None:
            progress(outcome)
    ordered = tuple(outcomes[spec.key] for _, spec in variants)
    return Report(outcomes=ordered, seconds=time.perf_counter() - start)


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _outcomes(variants: Iterable[tuple[Kernel, CompileSpec]], store: Store, jobs: int) -> Iterator[Outcome]:
    resolver = Resolver(store)
    missing = []
    for kernel, spec in {spec.key: (kernel, spec) for kernel, spec in variants}.values():
        held = _find(resolver, kernel, spec)
        if held is not None:
            yield held
        else:
            missing.append((kernel, spec))
    if missing:
        _require_compilers(missing)
        yield from _compile_all(missing, store.root, min(jobs, len(missing)))


def _require_compilers(missing: list[tuple[Kernel, CompileSpec]]) -> None:
    asked: set[str] = set()
    for kernel, spec in missing:
        if kernel.backend not in asked:
            asked.add(kernel.backend)
            require_toolchain(kernel, spec)


def _find(resolver: Resolver, kernel: Kernel, spec: CompileSpec) -> Outcome | None:
    try:
        held = resolver.find(kernel, spec)
    except BadEntry:
        return None  # It is set aside by now, and is compiled again like any other miss.
    return None if held is None else Outcome(spec=spec, status=HIT, cubin_digest=held.cubin_digest)


def _compile_all(missing: list[tuple[Kernel, CompileSpec]], root: str, jobs: int) -> Iterator[Outcome]:
    if multiprocessing.current_process().daemon:  # A daemonic process may not have children.
        yield from (_compile_one(kernel, spec, root) for kernel, spec in missing)
        return
    suspects = []
    with _Pool(jobs) as pool:
        futures = {pool.submit(_compile_one, kernel, spec, root): (kernel, spec) for kernel, spec in missing}
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                suspects.append(futures[future])
    # One of them killed its worker, and with it the pool: each gets a process of its own.
    yield from (_compile_alone(kernel, spec, root) for kernel, spec in suspects)


def _compile_alone(kernel: Kernel, spec: CompileSpec, root: str) -> Outcome:
    with _Pool(1) as pool:
        try:
            return pool.submit(_compile_one, kernel, spec, root).result()
        except BrokenProcessPool:
            error = CompileError(f"cannot compile {spec}: the compiler killed its process", "no log")
            return _failure(Store(root), spec, error)


def _compile_one(kernel: Kernel, spec: CompileSpec, root: str) -> Outcome:
    """Make sure that the store holds ``spec``, under its key lock. Runs in a worker process."""
    store = Store(root)
    try:
        with store.key_lock(spec.key, config.wait_seconds()):
            held = _find(Resolver(store), kernel, spec)
            if held is not None:
                return held
            artifact = compile_artifact(kernel, spec)
            store.publish(artifact)
    except KregError as error:
        return _failure(store, spec, error)
    except Exception as error:  # noqa: BLE001 - a bug of one backend must not cost the other variants
        what = f"cannot compile {spec}: its backend raised {type(error).__name__}: {error}"
        return _failure(store, spec, CompileError(what, "".join(traceback.format_exception(error))))
    return Outcome(spec=spec, status=COMPILED, cubin_digest=artifact.cubin_digest)


def _failure(store: Store, spec: CompileSpec, error: KregError) -> Outcome:
    path = None
    if isinstance(error, CompileError):
        try:
            path = store.save_log(spec.key, error.log)
        except StoreError:
            path = None
    return Outcome(spec=spec, status=FAILED, error=str(error), log_path=path)


class _Pool:
    """A pool of spawned workers that drops what it has not begun when the block is left early."""

    def __init__(self, jobs: int) -> None:
        self._pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare_worker)

    def __enter__(self) -> ProcessPoolExecutor:
        return self._pool

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and keep what compilers print away from the parent's standard output."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
