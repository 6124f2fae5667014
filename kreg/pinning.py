"""Pinning: what today's sources and toolchain make of every variant, and the lockfile that says so.

The store answers where it holds a cubin compiled from exactly these sources by this toolchain; anything else is
compiled. Machine code that changed under an unchanged version is refused, as a resolve does.
"""

from __future__ import annotations

from kreg import config
from kreg import lockfile as locks
from kreg.apart import backend_bug, compile_current, worker_died
from kreg.artifact import Artifact
from kreg.backends import load_backend
from kreg.build import require_toolchain
from kreg.errors import CompileError, DriftError, KregError, LockfileError
from kreg.kernel import Kernel
from kreg.lockfile import Lockfile, Pin, Selection, pin_order
from kreg.record import Record
from kreg.resolver import Resolver
from kreg.selector import Selector
from kreg.spec import CompileSpec, parse_spec_text
from kreg.store import BadEntry, Store
from kreg.workers import usable_cpus, work_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kreg.registry import Registry


class Examined(Record):
    """What today's sources and toolchain make of one variant: ``artifact``, or the ``error`` that came instead.

    ``held`` is what the store has of the key for this toolchain, of whichever sources.
    """

    __slots__ = ("kernel", "spec", "artifact", "held", "error")
    kernel: Kernel
    spec: CompileSpec
    artifact: Artifact | None
    held: Artifact | None
    error: str | None

    def __init__(
        self,
        *,
        kernel: Kernel,
        spec: CompileSpec,
        artifact: Artifact | None = None,
        held: Artifact | None = None,
        error: str | None = None,
    ) -> None:
        self._set(kernel=kernel, spec=spec, artifact=artifact, held=held, error=error)


def examine(
    variants: Sequence[tuple[Kernel, CompileSpec]],
    store: Store,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Examined]:
    """Examine variants, in the order given; ``progress`` is told how many of how many are done. Publishes nothing."""
    found: dict[str, Examined] = {}
    for item in _examine(variants, store, jobs or usable_cpus()):
        found[item.spec.key] = item
        if progress is not None:
            progress(len(found), len(variants))
    return [found[spec.key] for _, spec in variants]


def _examine(variants: Iterable[tuple[Kernel, CompileSpec]], store: Store, jobs: int) -> Iterator[Examined]:
    resolver = Resolver(store)
    missing: list[tuple[Kernel, CompileSpec]] = []
    held: dict[str, Artifact | None] = {}
    for kernel, spec in variants:
        try:
            found = held[spec.key] = resolver.find(kernel, spec)
        except BadEntry:
            found = held[spec.key] = None
        if found is not None and found.manifest.built_from == kernel.source_digest():
            yield Examined(kernel=kernel, spec=spec, artifact=found, held=found)
        else:
            require_toolchain(kernel, spec)
            missing.append((kernel, spec))
    for item in _work(missing, jobs) if missing else ():
        yield Examined(
            kernel=item.kernel, spec=item.spec, artifact=item.artifact, held=held[item.spec.key], error=item.error
        )


def _work(missing: list[tuple[Kernel, CompileSpec]], jobs: int) -> Iterator[Examined]:
    return work_on(missing, _compile, _crashed, jobs=jobs, seconds=config.compile_seconds())


def _compile(variant: tuple[Kernel, CompileSpec]) -> Examined:
    """Compile one variant in a worker process."""
    kernel, spec = variant
    try:
        return Examined(kernel=kernel, spec=spec, artifact=compile_current(kernel, spec))
    except KregError as error:
        return Examined(kernel=kernel, spec=spec, error=str(error))
    except Exception as error:  # noqa: BLE001 - a bug of one backend must not cost the other variants
        return Examined(kernel=kernel, spec=spec, error=str(backend_bug(spec, error)))


def _crashed(variant: tuple[Kernel, CompileSpec]) -> Examined:
    kernel, spec = variant
    return Examined(kernel=kernel, spec=spec, error=worker_died(spec))


def lock(
    path: str,
    registry: Registry,
    store: Store,
    chosen: Selector | None = None,
    *,
    rebuild: bool = False,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Lockfile, bool]:
    """Pin every variant that ``chosen`` means in the lockfile ``path``, compiling and publishing what the store lacks.

    An empty selector means everything declared, None what the file says or, if there is none, everything. Receipts
    stay with their cubins. Returns the lockfile, and whether the file is another than before. Raises ``LockfileError``
    for a file that cannot be read or names kernels that are not installed, ``DriftError`` for machine code that
    changed under an unchanged version (unless ``rebuild``), and ``CompileError``; the file is then as it was.
    """
    old = locks.find_lockfile(path)
    if chosen is None:
        selection = old.selection if old else Selection()
        _refuse_unknown(old, registry, path)
    else:
        kernels, targets, params = chosen.texts()
        selection = Selection(kernels=kernels, targets=targets, params=params)
    done = examine(selected(selection, registry), store, jobs, progress)
    failed = [item.error for item in done if item.error is not None]
    if failed:
        raise CompileError(f"{len(failed)} of {len(done)} variants cannot be pinned, the first: {failed[0]}")
    if not rebuild:
        _refuse_drift(done, old)
    for item in done:
        if item.artifact is not None and item.artifact is not item.held:
            store.publish(item.artifact)
    new = _pin_all(done, selection, old)
    return new, locks.write_lockfile(path, new)


def _refuse_unknown(old: Lockfile | None, registry: Registry, path: str) -> None:
    known = registry.names()
    unknown = sorted({parse_spec_text(pin.spec).kernel for pin in old.pins} - set(known)) if old else []
    if unknown:
        raise LockfileError(
            f"{path} pins {', '.join(unknown)}, which is not installed here; install it, or drop it by naming what "
            f"the lockfile shall hold (--kernel, or --all for all that is declared)"
        )


def selected(selection: Selection, registry: Registry) -> list[tuple[Kernel, CompileSpec]]:
    """Return the declared variants that a lockfile is about. Raises ``SpecError`` for what is not declared."""
    chosen = Selector(kernels=selection.kernels, targets=selection.targets, params=selection.params)
    return chosen.specs(registry)


def _refuse_drift(done: list[Examined], old: Lockfile | None) -> None:
    pins = {pin.key: pin for pin in old.pins} if old else {}
    changed = [item for item in done if _has_changed(item, pins.get(item.spec.key), old)]
    if changed:
        names = sorted({item.kernel.label for item in changed})
        raise DriftError(
            f"the machine code of {', '.join(names)} changed and the version did not, as in `{changed[0].spec}`; bump "
            f"`version`, or for a kernel still in development run `kreg lock --rebuild`"
        )


def _has_changed(item: Examined, pin: Pin | None, old: Lockfile | None) -> bool:
    assert item.artifact is not None
    program = item.artifact.manifest.program_digest
    if item.held is not None and item.held.manifest.program_digest != program:
        return True
    if pin is None or old is None or old.toolchain(pin).fingerprint != item.artifact.toolchain_key:
        return False
    return pin.program != program


def _pin_all(done: list[Examined], selection: Selection, old: Lockfile | None) -> Lockfile:
    receipts = {pin.cubin: pin.receipt for pin in old.pins} if old else {}
    toolchains: dict[str, dict[str, str]] = {}
    pins = []
    for item in done:
        assert item.artifact is not None
        manifest = item.artifact.manifest
        label = _toolchain_label(item.kernel)
        toolchains[label] = dict(sorted(manifest.toolchain.items()))
        pins.append(locks.pin(str(item.spec), manifest, label, receipts.get(manifest.cubin_digest)))
    return Lockfile(
        revision=old.revision if old else locks.REVISION,
        selection=selection,
        toolchains=toolchains,
        hardware=old.hardware if old else (),
        pins=tuple(sorted(pins, key=lambda pin: pin_order(pin.spec))),
    )


def _toolchain_label(kernel: Kernel) -> str:
    toolchain = load_backend(kernel.backend).toolchain()
    return toolchain.backend if toolchain is not None else kernel.backend
