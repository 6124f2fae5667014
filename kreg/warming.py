"""Warming: compiling many variants ahead of use, in worker processes.

What is in the store already is not compiled again, so an interrupted run goes on where it was. A variant that fails,
or whose compile kills its process, costs that variant alone; its log is kept in the store.
"""

from __future__ import annotations

import time

from kreg import config
from kreg.apart import backend_bug, compile_current, worker_died
from kreg.build import require_toolchain
from kreg.drift import is_settled, settle
from kreg.errors import CompileError, KregError, StoreError
from kreg.kernel import Kernel
from kreg.record import Record
from kreg.resolver import Resolver, say
from kreg.spec import CompileSpec
from kreg.store import BadEntry, Store
from kreg.workers import usable_cpus, work_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kreg.artifact import Artifact

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
    drift: str | None = None,
) -> Report:
    """Compile what the store lacks of ``variants``, with ``jobs`` processes (default: one per usable CPU).

    ``progress`` is called with each outcome as it comes. A failed variant is an outcome, not an exception. ``drift``
    says what becomes of an entry of other sources than today's: ``check`` (the default) compiles it again and fails
    the variant if the machine code differs, ``rebuild`` takes the new code, ``ignore`` takes the entry. Raises
    ``StoreError`` if the store cannot be written at all, and ``ToolchainError`` if a compiler is not installed.
    """
    start = time.perf_counter()
    opened = store if isinstance(store, Store) else Store(store)
    opened.prepare()
    outcomes: dict[str, Outcome] = {}
    for outcome in _outcomes(variants, opened, jobs or usable_cpus(), config.drift(drift)):
        outcomes[outcome.spec.key] = outcome
        if progress is not None:
            progress(outcome)
    ordered = tuple(outcomes[spec.key] for _, spec in variants)
    return Report(outcomes=ordered, seconds=time.perf_counter() - start)


def _outcomes(variants: Iterable[tuple[Kernel, CompileSpec]], store: Store, jobs: int, drift: str) -> Iterator[Outcome]:
    resolver = Resolver(store)
    missing = []
    for kernel, spec in {spec.key: (kernel, spec) for kernel, spec in variants}.values():
        held = _held(resolver, kernel, spec)
        if held is not None and is_settled(kernel, held, drift):
            yield Outcome(spec=spec, status=HIT, cubin_digest=held.cubin_digest)
        else:
            missing.append((kernel, spec))
    if missing:
        _require_compilers(missing)
        compile_one = _Compile(store.root, drift)
        limit = config.compile_seconds()
        yield from work_on(missing, compile_one, compile_one.crashed, jobs=jobs, seconds=limit)


def _require_compilers(missing: list[tuple[Kernel, CompileSpec]]) -> None:
    asked: set[str] = set()
    for kernel, spec in missing:
        if kernel.backend not in asked:
            asked.add(kernel.backend)
            require_toolchain(kernel, spec)


def _held(resolver: Resolver, kernel: Kernel, spec: CompileSpec) -> Artifact | None:
    try:
        return resolver.find(kernel, spec)
    except BadEntry:
        return None  # It is set aside by now, and is compiled again like any other miss.


class _Compile:
    """The work on one variant: make sure that the store holds it, under its key lock. Runs in a worker process."""

    def __init__(self, root: str, drift: str) -> None:
        self._root = root
        self._drift = drift

    def __call__(self, variant: tuple[Kernel, CompileSpec]) -> Outcome:
        kernel, spec = variant
        store = Store(self._root)
        try:
            with store.key_lock(spec.key, config.wait_seconds(), say):
                return self._make(store, kernel, spec)
        except KregError as error:
            return _failure(store, spec, error)
        except Exception as error:  # noqa: BLE001 - a bug of one backend must not cost the other variants
            return _failure(store, spec, backend_bug(spec, error))

    def _make(self, store: Store, kernel: Kernel, spec: CompileSpec) -> Outcome:
        held = _held(Resolver(store), kernel, spec)
        if held is not None and is_settled(kernel, held, self._drift):
            return Outcome(spec=spec, status=HIT, cubin_digest=held.cubin_digest)
        artifact = compile_current(kernel, spec)
        if held is not None:
            artifact = settle(kernel, spec, held, artifact, self._drift)
        store.publish(artifact)
        is_new = held is None or artifact.cubin_digest != held.cubin_digest
        return Outcome(spec=spec, status=COMPILED if is_new else HIT, cubin_digest=artifact.cubin_digest)

    def crashed(self, variant: tuple[Kernel, CompileSpec]) -> Outcome:
        """Return the outcome of a variant whose compile killed its process."""
        _, spec = variant
        error = CompileError(worker_died(spec), "no log")
        return _failure(Store(self._root), spec, error)


def _failure(store: Store, spec: CompileSpec, error: KregError) -> Outcome:
    path = None
    if isinstance(error, CompileError):
        try:
            path = store.save_log(spec.key, error.log)
        except StoreError:
            path = None
    return Outcome(spec=spec, status=FAILED, error=str(error), log_path=path)
