"""Checking: hold the declarations, their sources and the installed toolchain to a lockfile.

Nothing is written but artifacts that are what the lockfile pins, so that the next check finds them in the store.
"""

from __future__ import annotations

from kreg.lockfile import Lockfile, Pin, read_lockfile, variant_of
from kreg.pinning import Examined, examine, selected
from kreg.record import Record
from kreg.selector import Selector
from kreg.spec import parse_spec_text
from kreg.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kreg.registry import Registry


class KernelCheck:
    """How one kernel compares with its pins. The lists hold spec texts.

    ``versions`` are those pinned and declared, None for none; ``compared`` counts variants that have a pin.
    ``changed``: machine code, parameters, resources or launch differ. ``other_bytes``: the cubin differs in nothing
    that a device sees. ``moved``: the key differs under the same version. ``unpinned``: declared, not pinned.
    ``gone``: the reverse. ``failed``: what the compiler said. ``untested``: no receipt where there must be one.
    ``by_toolchain``: another toolchain is installed than the lockfile's. ``older_sources``: pins of other sources
    with the same code.
    """

    def __init__(self, name: str, versions: tuple[int | None, int | None]) -> None:
        self.name = name
        self.versions = versions
        self.compared = 0
        self.changed: list[str] = []
        self.other_bytes: list[str] = []
        self.moved: list[str] = []
        self.unpinned: list[str] = []
        self.gone: list[str] = []
        self.failed: list[str] = []
        self.untested: list[str] = []
        self.by_toolchain = False
        self.older_sources = 0

    @property
    def is_same(self) -> bool:
        """Say whether nothing differs."""
        lists = (self.changed, self.other_bytes, self.moved, self.unpinned, self.gone, self.failed, self.untested)
        return self.versions[0] == self.versions[1] and not any(lists)

    def describe(self) -> str:
        """Say in one line how the kernel compares, and what to do about it."""
        pinned, declared = self.versions
        if declared is None:
            return f"{self.name}@{pinned}: {_count(len(self.gone), 'pin')}, and no such kernel is installed"
        label = f"{self.name}@{declared}" if pinned in (None, declared) else f"{self.name} {pinned} -> {declared}"
        said = "; ".join(self._differences()) or f"unchanged, {_count(self.compared, 'variant')}"
        return f"{label}: {said}"

    def _differences(self) -> Iterator[str]:
        yield from self._changes()
        if self.other_bytes:
            yield f"machine code is the same, other bytes of {_count(len(self.other_bytes), 'cubin')} are not"
        if self.moved:
            yield f"{_count(len(self.moved), 'key')} moved: other compile options or defaults"
        if self.unpinned:
            yield f"{_count(len(self.unpinned), 'variant')} not pinned"
        if self.gone:
            yield f"{_count(len(self.gone), 'pin')} of what is no longer declared"
        if self.failed:
            yield f"{_count(len(self.failed), 'variant')} cannot be compiled, the first: {self.failed[0]}"
        if self.untested:
            yield f"{_count(len(self.untested), 'cubin')} without a receipt: nobody has run this machine code"

    def _changes(self) -> Iterator[str]:
        pinned, declared = self.versions
        count = len(self.changed)
        of = _count(count, "variant") if count == self.compared else f"{count} of {self.compared} variants"
        if pinned not in (None, declared):
            if count:
                yield f"{of} changed"
            elif self.compared:
                yield "machine code is the same: bump not needed"
        elif count and self.by_toolchain:
            yield f"{of} changed with the toolchain"
        elif count:
            yield f"machine code changed, version did not: bump it ({of})"


class Check(Record):
    """How the declarations compare with a lockfile: the kernels, and a line for each toolchain that is another.

    ``tested`` counts the pins with a receipt, ``not_run`` those of each target that never ran on hardware.
    """

    __slots__ = ("kernels", "toolchains", "tested", "not_run")
    kernels: tuple[KernelCheck, ...]
    toolchains: tuple[str, ...]
    tested: int
    not_run: dict[str, int]

    def __init__(
        self,
        *,
        kernels: tuple[KernelCheck, ...],
        toolchains: tuple[str, ...],
        tested: int,
        not_run: dict[str, int],
    ) -> None:
        self._set(kernels=kernels, toolchains=toolchains, tested=tested, not_run=not_run)

    @property
    def is_same(self) -> bool:
        """Say whether nothing differs."""
        return not self.toolchains and all(kernel.is_same for kernel in self.kernels)


def check(
    path: str,
    registry: Registry,
    store: Store,
    chosen: Selector | None = None,
    *,
    receipts: bool = False,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Check:
    """Compare what is declared with the lockfile ``path``, all of it or what ``chosen`` means.

    With ``receipts``, a pin whose target has been run on hardware must carry a receipt for the cubin that today's
    sources give. Raises ``LockfileError``, and ``ToolchainError`` where a compiler is needed and not installed.
    """
    lockfile = read_lockfile(path)
    variants = selected(lockfile.selection, registry)
    pins = list(lockfile.pins)
    if chosen:
        keys = {spec.key for _, spec in chosen.specs(registry)}
        pins = [pin for pin in pins if pin.key in keys or chosen.means(pin.spec, registry)]
        variants = [(kernel, spec) for kernel, spec in variants if spec.key in keys]
    done = examine(variants, store, jobs, progress)
    kernels = [
        _check_kernel(name, registry, lockfile, [p for p in pins if _kernel(p) == name], _of(done, name), store)
        for name in sorted({_kernel(pin) for pin in pins} | {item.kernel.name for item in done})
    ]
    if receipts:
        today = {item.spec.key: item.artifact.cubin_digest for item in done if item.artifact is not None}
        for kernel in kernels:
            kernel.untested = [pin.spec for pin in pins if _kernel(pin) == kernel.name and _lacks(pin, lockfile, today)]
    return Check(
        kernels=tuple(kernels),
        toolchains=tuple(_toolchain_lines(lockfile, done, kernels)),
        tested=sum(pin.receipt is not None for pin in pins),
        not_run=_not_run(lockfile, pins),
    )


def _kernel(pin: Pin) -> str:
    return parse_spec_text(pin.spec).kernel


def _target(pin: Pin) -> str:
    return parse_spec_text(pin.spec).target or ""


def _of(done: Iterable[Examined], name: str) -> list[Examined]:
    return [item for item in done if item.kernel.name == name]


def _check_kernel(
    name: str, registry: Registry, lockfile: Lockfile, pins: list[Pin], done: list[Examined], store: Store
) -> KernelCheck:
    declared = registry.get(name).version if name in registry.names() else None
    pinned = max((parse_spec_text(pin.spec).version or 0 for pin in pins), default=None)
    found = KernelCheck(name, (pinned, declared))
    by_key = {pin.key: pin for pin in pins}
    by_variant = {variant_of(pin.spec): pin for pin in pins}
    met = set()
    for item in done:
        pin = by_key.get(item.spec.key) or by_variant.get(variant_of(str(item.spec)))
        if pin is not None:
            met.add(pin.key)
        _compare(found, item, pin, lockfile, store)
    found.gone = [pin.spec for pin in pins if pin.key not in met]
    return found


def _compare(found: KernelCheck, item: Examined, pin: Pin | None, lockfile: Lockfile, store: Store) -> None:
    spec = str(item.spec)
    if item.artifact is None:
        found.failed.append(str(item.error))
        return
    if pin is None:
        found.unpinned.append(spec)
        return
    manifest = item.artifact.manifest
    found.compared += 1
    found.by_toolchain |= lockfile.toolchain(pin).fingerprint != item.artifact.toolchain_key
    is_bumped = found.versions[0] != found.versions[1]
    if pin.program != manifest.program_digest:
        found.changed.append(spec)
    elif pin.cubin != manifest.cubin_digest and not is_bumped:
        found.other_bytes.append(spec)
    else:
        found.older_sources += pin.source != manifest.source_digest
    if pin.key != item.spec.key and not is_bumped:
        found.moved.append(spec)
    if (pin.key, pin.cubin) == (item.spec.key, manifest.cubin_digest) and item.artifact is not item.held:
        store.publish(item.artifact)


def _lacks(pin: Pin, lockfile: Lockfile, today: dict[str, str]) -> bool:
    """Say whether a pin lacks the receipt it must have: for the pinned cubin, which must be today's."""
    return _target(pin) in lockfile.hardware and (pin.receipt is None or today.get(pin.key) != pin.receipt.cubin)


def _not_run(lockfile: Lockfile, pins: Iterable[Pin]) -> dict[str, int]:
    found: dict[str, int] = {}
    for target in sorted(_target(pin) for pin in pins):
        if target not in lockfile.hardware:
            found[target] = found.get(target, 0) + 1
    return found


def _toolchain_lines(lockfile: Lockfile, done: list[Examined], kernels: list[KernelCheck]) -> Iterator[str]:
    by_key = {pin.key: pin for pin in lockfile.pins}
    for label, pinned in sorted(lockfile.toolchains.items()):
        installed = next(
            (
                item.artifact.manifest.toolchain
                for item in done
                if item.artifact is not None and item.spec.key in by_key and by_key[item.spec.key].toolchain == label
            ),
            pinned,
        )
        moved = [
            f"{name} {pinned.get(name, 'none')} -> {installed.get(name, 'none')}"
            for name in sorted({*pinned, *installed})
            if pinned.get(name) != installed.get(name)
        ]
        if moved:
            changed = sum(len(kernel.changed) for kernel in kernels if kernel.by_toolchain)
            compared = sum(kernel.compared for kernel in kernels if kernel.by_toolchain)
            yield f"toolchain {', '.join(moved)}: {changed} of {compared} changed"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
