"""Why a spec is a hit or not: what a resolve would try, in its order, and what the nearest entries differ in.

Nothing is changed: a bad entry is named and left where it is. The error of a miss and ``kreg why`` say the same.
"""

from __future__ import annotations

from kreg.backends import load_backend
from kreg.drift import changed_files
from kreg.inventory import Entry, entries, spec_text
from kreg.kernel import Kernel
from kreg.lockfile import Lockfile, Pin, pin_order
from kreg.manifest import Manifest
from kreg.record import Record
from kreg.spec import CompileSpec, format_value
from kreg.store import Store
from kreg.toolchain import Toolchain
from kreg.upkeep import Verifier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HIT, MISS, BAD, DRIFT, MISMATCH = "hit", "miss", "bad", "drift", "mismatch"
_NEAREST = 3


class Near(Record):
    """An entry that was not asked for, and what it differs in from what was."""

    __slots__ = ("spec", "path", "differences")
    spec: str
    path: str
    differences: tuple[str, ...]

    def __init__(self, *, spec: str, path: str, differences: tuple[str, ...]) -> None:
        self._set(spec=spec, path=path, differences=differences)


class Explanation(Record):
    """What a resolve of ``spec`` would find in the store ``root``.

    ``result`` is hit, miss, bad (an entry that fails its proof), drift (one of other sources) or mismatch (not the
    cubin that is pinned). ``tried`` lists what was looked at, in order, ``near`` the nearest other entries of a miss,
    ``command`` what fixes it.
    """

    __slots__ = ("spec", "root", "result", "tried", "near", "command")
    spec: CompileSpec
    root: str
    result: str
    tried: tuple[str, ...]
    near: tuple[Near, ...]
    command: str | None

    def __init__(
        self,
        *,
        spec: CompileSpec,
        root: str,
        result: str,
        tried: tuple[str, ...],
        near: tuple[Near, ...],
        command: str | None,
    ) -> None:
        self._set(spec=spec, root=root, result=result, tried=tried, near=near, command=command)

    def miss(self, why: str) -> str:
        """Return the message of a miss; ``why`` it cannot be made good here."""
        near = f"; the nearest entry differs: {', '.join(self.near[0].differences)}" if self.near else ""
        return (
            f"no artifact for `{self.spec}` ({self.spec.key[:12]}) in `{self.root}`, and {why}{near}; "
            f"run `{self.command}`"
        )


def explain(
    kernel: Kernel, spec: CompileSpec, store: Store, pinned: tuple[Lockfile, Pin | None] | None = None
) -> Explanation:
    """Say what a resolve of ``spec`` finds; ``pinned`` is the lockfile in force, if one is, with its pin.

    Raises ``KregError`` where a resolve could not look either.
    """
    backend = load_backend(kernel.backend)
    installed = backend.toolchain()
    found = list(entries(store, kernel.name))
    pin = pinned[1] if pinned is not None else None
    toolchain, tried = installed, []
    if pinned is not None:
        toolchain = pinned[0].toolchain(pin) if pin is not None else installed
        tried.append(
            f"lockfile: pins the cubin {pin.cubin[:12]}, made by {toolchain.short}"
            if pin and toolchain
            else "lockfile: no pin"
        )
    result, said = _look_up(kernel, spec, store, found, toolchain, pin)
    tried.append(said)
    if result != HIT:
        tried.append(
            f"compiler: {installed.short}" if installed else f"compiler: not installed (`{backend.missing()}`)"
        )
    is_unpinned = pinned is not None and pin is None
    if is_unpinned:
        result = MISS
    return Explanation(
        spec=spec,
        root=store.root,
        result=result,
        tried=tuple(tried),
        near=_nearest(kernel, spec, found, toolchain) if result == MISS and not is_unpinned else (),
        command=_command(kernel, spec, store, result, is_unpinned),
    )


def _command(kernel: Kernel, spec: CompileSpec, store: Store, result: str, is_unpinned: bool) -> str | None:
    if is_unpinned:
        return "kreg lock"
    if result == MISMATCH:
        return "kreg check"
    return None if result == HIT else warm_command(kernel, spec, store)


def _look_up(
    kernel: Kernel, spec: CompileSpec, store: Store, found: list[Entry], toolchain: Toolchain | None, pin: Pin | None
) -> tuple[str, str]:
    where = f"store {store.root}"
    start = store.entry_path(spec.kernel, spec.version, spec.key, toolchain.fingerprint if toolchain else "")
    mine = [entry for entry in found if entry.path.startswith(start.removesuffix(".json"))]
    if not mine:
        of = f" made by {toolchain.short}" if toolchain else ""
        return MISS, f"{where}: no entry{of}"
    if len(mine) > 1:
        return MISS, f"{where}: entries of {len(mine)} toolchains, and no compiler here to choose by"
    return _judge(kernel, store, mine[0], pin)


def _judge(kernel: Kernel, store: Store, entry: Entry, pin: Pin | None) -> tuple[str, str]:
    where = f"store {store.root}"
    finding = Verifier(store).check(entry)
    if finding is not None:
        return BAD, f"{where}: its entry is bad: {finding.reason}"
    manifest = entry.manifest
    if manifest is None:
        return MISS, f"{where}: its entry is of a newer kreg"
    if pin is not None and manifest.cubin_digest != pin.cubin:
        return MISMATCH, f"{where}: its entry has the cubin {manifest.cubin_digest[:12]}"
    if kernel.source_digest() not in (manifest.source_digest, pin.source if pin else ""):
        return DRIFT, f"{where}: its entry is of other sources ({changed_files(kernel, manifest)})"
    return HIT, f"{where}: {entry.path}"


def _nearest(kernel: Kernel, spec: CompileSpec, found: list[Entry], toolchain: Toolchain | None) -> tuple[Near, ...]:
    near = [
        Near(spec=spec_text(e.manifest), path=e.path, differences=_differences(kernel, spec, e.manifest, toolchain))
        for e in found
        if e.manifest is not None
    ]
    return tuple(sorted(near, key=lambda n: (len(n.differences), pin_order(n.spec)))[:_NEAREST])


def _differences(kernel: Kernel, spec: CompileSpec, manifest: Manifest, toolchain: Toolchain | None) -> tuple[str, ...]:
    said = []
    if manifest.version != spec.version:
        said.append(f"version {manifest.version} there, {spec.version} declared")
    if manifest.target != spec.target:
        said.append(f"target {manifest.target} there, {spec.target} asked")
    asked = kernel.arguments(spec)
    there = {**kernel.defaults(), **manifest.params}
    said += _differing(asked, there, "asked")
    said += _differing(dict(spec.options), manifest.options, "declared")
    if toolchain is not None:
        said += _differing(dict(toolchain.distributions), manifest.toolchain, "here", " ")
    return tuple(said)


def _differing(wanted: Mapping[str, object], there: Mapping[str, object], by: str, between: str = "=") -> list[str]:
    return [
        f"{name}{between}{_show(there.get(name))} there, {_show(wanted.get(name))} {by}"
        for name in sorted({*wanted, *there})
        if wanted.get(name) != there.get(name)
    ]


def _show(value: object) -> str:
    return format_value(value) if isinstance(value, (bool, int, str)) else "nothing"


def warm_command(kernel: Kernel, spec: CompileSpec, store: Store) -> str:
    """Return the exact command that puts ``spec`` into ``store``, and nothing else."""
    from shlex import join

    words = ["kreg", "warm", "--kernel", spec.kernel, "--target", spec.target]
    values = kernel.arguments(spec)
    for param in kernel.params:
        if param.warm != (values[param.name],):
            words += ["--param", f"{param.name}={format_value(values[param.name])}"]
    return join(words if store.is_configured else [*words, "--store", store.root])
