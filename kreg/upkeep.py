"""Upkeep of a store: verify what it holds, clear what is named.

``verify`` changes nothing. ``clear`` removes the entries it is given and the objects that no entry names any more,
and leaves everything else alone, files that are not kreg's included.
"""

from __future__ import annotations

import os
import shutil

from kreg.apart import compile_current
from kreg.cubin import Cubin
from kreg.digest import sha256
from kreg.errors import KregError, StoreError
from kreg.files import Unreadable, read_file, read_file_and_stat, scan
from kreg.header import read_header
from kreg.inventory import Entry, entries, refuse_unknown, spec_text
from kreg.manifest import Manifest, check
from kreg.record import Record
from kreg.selector import is_stale
from kreg.store import CUBIN_LIMIT, MANIFEST_LIMIT, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from kreg.registry import Registry
    from kreg.selector import Selector


class Finding(Record):
    """Something wrong with a store: the file, the spec where it is known, and the reason."""

    __slots__ = ("path", "spec", "reason")
    path: str
    spec: str | None
    reason: str

    def __init__(self, *, path: str, spec: str | None, reason: str) -> None:
        self._set(path=path, spec=spec, reason=reason)


class MissingCubin(StoreError):
    """An entry's cubin is not there."""


class Verifier:
    """Recomputes every digest of a store's entries, and holds each cubin to its manifest."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def check(self, entry: Entry) -> Finding | None:
        """Return what is wrong with an entry, or None."""
        problem = self.problem(entry)
        if problem is None:
            return None
        spec = None if entry.manifest is None else spec_text(entry.manifest)
        return Finding(path=entry.path, spec=spec, reason=str(problem))

    def problem(self, entry: Entry) -> KregError | None:
        """Return the error that says what is wrong with an entry, or None; one of a newer kreg is left alone."""
        if entry.manifest is None:
            return None if entry.is_newer else entry.problem
        try:
            self._check_entry(entry.path, entry.manifest)
        except KregError as error:
            return error
        return None

    def _check_entry(self, path: str, manifest: Manifest) -> None:
        check(manifest, path)
        expected = self._store.entry_path(manifest.kernel, manifest.version, manifest.spec_key, manifest.toolchain_key)
        if path != expected:
            raise StoreError(f"it belongs at {expected}")
        self._check_cubin(manifest)

    def _check_cubin(self, manifest: Manifest) -> None:
        path = self._store.object_path(manifest.cubin_digest)
        cubin = read_file(path, CUBIN_LIMIT)
        if cubin is None:
            raise MissingCubin(f"its cubin {path} is missing")
        if sha256(cubin) != manifest.cubin_digest:
            raise StoreError(f"its cubin {path} does not match its digest")
        check_image(manifest, cubin, f"its cubin {path}")


def check_image(manifest: Manifest, cubin: bytes, what: str) -> None:
    """Check that a cubin is for its manifest's target and has its kernel. Raises ``StoreError``, ``CubinError``."""
    image = Cubin(cubin)
    if not image.matches(manifest.target):
        raise StoreError(f"{what} is for {image.describe_architecture()}")
    if not image.names(manifest.symbol):
        raise StoreError(f"{what} has no kernel {manifest.symbol!r}")


class Verification(Record):
    """What a verify saw: how many entries were ``checked``, and what was wrong.

    ``newer`` counts those of a newer kreg, left alone, and ``skipped`` those that could not be compiled again because
    they are no longer declared.
    """

    __slots__ = ("checked", "newer", "skipped", "findings")
    checked: int
    newer: int
    skipped: int
    findings: tuple[Finding, ...]

    def __init__(self, *, checked: int, newer: int, skipped: int, findings: tuple[Finding, ...]) -> None:
        self._set(checked=checked, newer=newer, skipped=skipped, findings=findings)


def verify(
    store: Store,
    chosen: Selector,
    registry: Registry,
    *,
    recompile: bool = False,
    report: Callable[[Finding], None] | None = None,
) -> Verification:
    """Check the entries that ``chosen`` means; with ``recompile``, also that the compiler gives their machine code.

    ``report`` is called with each finding as it comes. Raises ``SpecError`` for a kernel that nobody knows.
    """
    verifier = Verifier(store)
    checked = newer = skipped = 0
    findings: list[Finding] = []
    stored: set[str] = set()
    for entry in entries(store):
        manifest = entry.manifest
        stored.update([manifest.kernel] if manifest else [])
        newer += entry.is_newer
        if entry.is_newer or (chosen and (manifest is None or not chosen.matches(manifest, registry))):
            continue
        checked += 1
        finding = verifier.check(entry)
        if finding is None and recompile and manifest is not None:
            stale = is_stale(manifest, registry)
            skipped += stale
            finding = None if stale else _compare_code(entry.path, manifest, registry)
        if finding is not None:
            findings.append(finding)
            if report is not None:
                report(finding)
    if not checked:
        refuse_unknown(chosen, stored, registry)
    return Verification(checked=checked, newer=newer, skipped=skipped, findings=tuple(findings))


def _compare_code(path: str, manifest: Manifest, registry: Registry) -> Finding | None:
    """Compile an entry's spec again and compare the machine code."""
    kernel = registry.get(manifest.kernel)
    try:
        fresh = compile_current(kernel, kernel.spec(manifest.target, manifest.params)).manifest
    except KregError as error:
        return Finding(path=path, spec=spec_text(manifest), reason=str(error))
    if fresh.program_digest == manifest.program_digest:
        return None
    if fresh.toolchain_key != manifest.toolchain_key:
        how = "with another toolchain"
    elif fresh.source_digest != manifest.source_digest:
        how = "with changed sources"
    else:
        how = "from the same sources"
    reason = f"compiling again {how} gives other machine code"
    return Finding(path=path, spec=spec_text(manifest), reason=reason)


class ClearPlan(Record):
    """What a clear removes: entry files, the objects that nothing else names, and their bytes in all."""

    __slots__ = ("entries", "objects", "others", "size")
    entries: tuple[Entry, ...]
    objects: tuple[str, ...]
    others: tuple[str, ...]
    size: int

    def __init__(
        self, *, entries: tuple[Entry, ...], objects: tuple[str, ...], others: tuple[str, ...], size: int
    ) -> None:
        self._set(entries=entries, objects=objects, others=others, size=size)


def plan_clear(store: Store, chosen: Iterable[Entry]) -> ClearPlan:
    """Plan the removal of some entries. Raises ``StoreError`` if the directory is not a kreg store."""
    require_store(store)
    doomed = tuple(chosen)
    kept = referenced(store, without={entry.path for entry in doomed})
    digests = sorted({e.manifest.cubin_digest for e in doomed if e.manifest is not None} - kept)
    objects = tuple(path for path in map(store.object_path, digests) if os.path.lexists(path))
    size = sum(entry.size for entry in doomed) + sum(map(size_of, objects))
    return ClearPlan(entries=doomed, objects=objects, others=(), size=size)


def plan_clear_all(store: Store) -> ClearPlan:
    """Plan the removal of every entry and object, of what was set aside, and of logs."""
    require_store(store)
    doomed = tuple(entries(store))
    objects = tuple(store.object_files())
    others = tuple(file.path for folder in ("quarantine", "logs") for file in scan(f"{store.root}/{folder}"))
    size = sum(entry.size for entry in doomed) + sum(map(size_of, (*objects, *others)))
    return ClearPlan(entries=doomed, objects=objects, others=others, size=size)


def clear(store: Store, plan: ClearPlan) -> None:
    """Carry out a plan. An object that an entry has come to name in the meantime stays. Raises ``StoreError``."""
    with store.sweep_lock(shared=False):
        remove_all(entry.path for entry in plan.entries)
        kept = {store.object_path(digest) for digest in referenced(store)}
        remove_all((path for path in (*plan.objects, *plan.others) if path not in kept), trees=frozenset(plan.others))
        for path in sorted({os.path.dirname(p) for p in (*(e.path for e in plan.entries), *plan.objects)}):
            remove_empty_folder(path)


def remove_empty_folder(path: str) -> None:
    """Remove a directory if it is empty."""
    try:
        os.rmdir(path)
    except OSError:
        return  # Something lives there, or it is gone.


def require_store(store: Store) -> None:
    """Raise ``StoreError`` for a directory that does not say of itself that it is a kreg store, or leads out of it."""
    store.require_place()
    store.refuse_links()
    if os.path.isdir(store.root) and not store.is_marked():
        raise StoreError(f"{store.root} is not a kreg store (it has no CACHEDIR.TAG and entries); nothing is removed")


def referenced(store: Store, without: set[str] | frozenset[str] = frozenset()) -> set[str]:
    """Return the cubin digests that entries name, those of a newer format by the same field.

    Raises ``StoreError`` for an entry that cannot be read: nobody can tell which cubin it needs.
    """
    return {digest for path, digest in _references(store) if path not in without}


def _references(store: Store) -> Iterator[tuple[str, str]]:
    for path in store.entry_files():
        data = None
        try:
            found = read_file_and_stat(path, MANIFEST_LIMIT, unseen=True)
            if found is not None:
                data = found[0]
                yield path, read_header(data, path)[2]
        except Unreadable:
            raise
        except StoreError:
            _, _, rest = (data or b"").partition(b'"cubin_digest":"')
            yield path, rest[:64].decode("ascii", "replace")


def size_of(path: str) -> int:
    """Return the size of a file in bytes, 0 if it is gone."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def remove_all(paths: Iterable[str], *, trees: Collection[str] = ()) -> None:
    """Remove files, and ``trees`` with all that is in them; what is gone is no error.

    Raises ``StoreError`` that names the first that stays, after the others have been removed.
    """
    failed = [error for error in (_remove(path, is_tree=path in trees) for path in paths) if error is not None]
    if failed:
        more = f" ({len(failed)} in all)" if len(failed) > 1 else ""
        raise StoreError(f"cannot remove {failed[0].filename}: {failed[0].strerror}{more}") from failed[0]


def _remove(path: str, *, is_tree: bool) -> OSError | None:
    try:
        if is_tree and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return _remove_folder(path)
    except OSError as error:
        return error
    return None


def _remove_folder(path: str) -> OSError | None:
    """Remove an empty directory that lies where a file belongs."""
    try:
        os.rmdir(path)
    except OSError as error:
        return error
    return None
