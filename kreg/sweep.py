"""gc: remove what nothing needs, what fails its proof, and entries beyond limits of age, use, number and size.

No limit takes a pinned entry, and nothing of a format that this kreg does not know goes unless asked. What may still
be written to, a temporary file or a cubin whose entry is on its way, is left for an hour; its age is told by the clock
of the store's file system, whatever the clock of this host says. One gc runs at a time; a reader that loses an entry
has a miss, never a wrong or partial artifact.
"""

from __future__ import annotations

import os

from kreg.errors import StoreError
from kreg.files import GRACE, Unreadable, scan, touch_quietly, unlink_quietly, write_synced
from kreg.inventory import Entry, entries
from kreg.record import Record
from kreg.root import FOLDERS, temporary_path
from kreg.store import Store
from kreg.upkeep import MissingCubin, Verifier, referenced, remove_all, remove_empty_folder, require_store, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_KEPT_BESIDE = 7 * 86400.0
"""Seconds for which what was set aside, and the log of a failed compile, are kept."""


class Limits(Record):
    """How much a store may hold: seconds since an entry was written (``age``) or read (``unused``), entries, bytes."""

    __slots__ = ("age", "unused", "entries", "size")
    age: float | None
    unused: float | None
    entries: int | None
    size: int | None

    def __init__(
        self,
        *,
        age: float | None = None,
        unused: float | None = None,
        entries: int | None = None,
        size: int | None = None,
    ) -> None:
        self._set(age=age, unused=unused, entries=entries, size=size)


class Sweep(Record):
    """What a gc removes: entries, cubins that nothing names then, leftovers and other formats, and their bytes in all.

    ``left`` counts the entries that stay, ``pinned`` those of them that no limit can take. ``ahead`` are entries dated
    in the future, by another clock: their age begins now.
    """

    __slots__ = ("entries", "objects", "leftovers", "others", "size", "left", "pinned", "ahead")
    entries: tuple[Entry, ...]
    objects: tuple[str, ...]
    leftovers: tuple[str, ...]
    others: tuple[str, ...]
    size: int
    left: int
    pinned: int
    ahead: tuple[str, ...]

    def __init__(
        self,
        *,
        entries: tuple[Entry, ...],
        objects: tuple[str, ...],
        leftovers: tuple[str, ...],
        others: tuple[str, ...],
        size: int,
        left: int,
        pinned: int,
        ahead: tuple[str, ...],
    ) -> None:
        self._set(
            entries=entries,
            objects=objects,
            leftovers=leftovers,
            others=others,
            size=size,
            left=left,
            pinned=pinned,
            ahead=ahead,
        )


def gc(
    store: Store,
    limits: Limits,
    *,
    pinned: Collection[str] = (),
    other_formats: bool = False,
    grace: float = GRACE,
    dry_run: bool = False,
) -> Sweep:
    """Remove from a store what nothing needs and what is beyond ``limits``, and return what that was.

    ``pinned`` holds entry keys that stay. ``other_formats`` also removes entries and directories of formats that this
    kreg does not know. Raises ``StoreError`` for a directory that is not a kreg store or a file that cannot be removed.
    """
    require_store(store)
    if dry_run:
        return _plan(store, limits, frozenset(pinned), other_formats, grace)
    with store.sweep_lock(shared=False):
        sweep = _plan(store, limits, frozenset(pinned), other_formats, grace)
        _carry_out(sweep)
    for path in sweep.ahead:
        touch_quietly(path)
    return sweep


def leftovers(store: Store) -> list[str]:
    """Return the files of a store that no entry needs, of whatever age: temporary files, set aside, unnamed cubins."""
    kept = {store.object_path(digest) for digest in referenced(store)}
    beside = [path for folder in ("tmp", "quarantine") for path in _files(f"{store.root}/{folder}")]
    return [*beside, *(path for path in store.object_files() if path not in kept)]


def _plan(store: Store, limits: Limits, pinned: frozenset[str], other_formats: bool, grace: float) -> Sweep:
    now = _clock(store)
    every = list(entries(store))
    verifier = Verifier(store)
    broken, sound = [], []
    for entry in every:
        if _is_broken(entry, verifier, now - grace) or (other_formats and entry.is_newer):
            broken.append(entry)
        elif entry.manifest is not None:
            sound.append(entry)
    unpinned = [entry for entry in sound if _key(entry) not in pinned]
    doomed = [*broken, *_beyond(unpinned, _Sizes(sound), limits, now)]
    objects = _unneeded_objects(store, doomed, now - grace)
    old = [*_older(f"{store.root}/tmp", now - grace), *_older(f"{store.root}/quarantine", now - _KEPT_BESIDE)]
    old += _older(f"{store.root}/logs", now - _KEPT_BESIDE)
    others = _unknown_folders(store) if other_formats else []
    return Sweep(
        entries=tuple(doomed),
        objects=tuple(objects),
        leftovers=tuple(old),
        others=tuple(others),
        size=sum(entry.size for entry in doomed) + sum(map(size_of, (*objects, *old))),
        left=len(every) - len(doomed),
        pinned=len(sound) - len(unpinned),
        ahead=tuple(entry.path for entry in sound if max(entry.modified, entry.used) > now + GRACE),
    )


def _clock(store: Store) -> float:
    """Return the time by the clock that gives the store's files theirs: a server's, on a network."""
    path = temporary_path(store.root)
    try:
        write_synced(path, b"")
        return os.stat(path).st_mtime
    except OSError as error:
        raise StoreError(f"cannot write to {store.root}: {error.strerror}") from error
    finally:
        unlink_quietly(path)


def _key(entry: Entry) -> str:
    return os.path.basename(entry.path).removesuffix(".json")


def _is_broken(entry: Entry, verifier: Verifier, before: float) -> bool:
    """Say whether an entry can never be a hit: it, or its cubin, is not what it says.

    Of an entry that was written after ``before``, another host of a network file system may not see the cubin yet;
    and a file that could not be read may be sound.
    """
    problem = verifier.problem(entry)
    if isinstance(problem, MissingCubin):
        return entry.modified <= before
    return problem is not None and not isinstance(problem, Unreadable)


def _beyond(unpinned: list[Entry], sizes: _Sizes, limits: Limits, now: float) -> Iterator[Entry]:
    """Yield the entries that the limits take: those too old or too long unused, then the least used."""
    left = []
    for entry in sorted(unpinned, key=lambda entry: (entry.used, entry.path)):
        is_old = limits.age is not None and max(0.0, now - entry.modified) >= limits.age
        if is_old or (limits.unused is not None and max(0.0, now - entry.used) >= limits.unused):
            sizes.drop(entry)
            yield entry
        else:
            left.append(entry)
    for entry in left:
        too_many = limits.entries is not None and sizes.count > limits.entries
        if not too_many and not (limits.size is not None and sizes.total > limits.size):
            return
        sizes.drop(entry)
        yield entry


class _Sizes:
    """The number and bytes of entries and their cubins; a cubin that several entries name counts once."""

    def __init__(self, found: list[Entry]) -> None:
        self._users: dict[str, int] = {}
        self.count = 0
        self.total = 0
        for entry in found:
            self._add(entry, 1)

    def drop(self, entry: Entry) -> None:
        """Take an entry out of the count."""
        self._add(entry, -1)

    def _add(self, entry: Entry, sign: int) -> None:
        assert entry.manifest is not None
        self.count += sign
        digest = entry.manifest.cubin_digest
        before = self._users.get(digest, 0)
        self._users[digest] = before + sign
        self.total += sign * entry.size
        if 0 in {before, before + sign}:
            self.total += sign * entry.manifest.cubin_bytes


def _unneeded_objects(store: Store, doomed: list[Entry], before: float) -> list[str]:
    """Return the cubins that no other entry names: those of doomed entries, and any that were written before a time."""
    kept = {store.object_path(digest) for digest in referenced(store, without={entry.path for entry in doomed})}
    named = {store.object_path(entry.manifest.cubin_digest) for entry in doomed if entry.manifest is not None}
    return [path for path in store.object_files() if path not in kept and (path in named or _is_older(path, before))]


def _files(folder: str) -> list[str]:
    return [file.path for file in scan(folder)]


def _older(folder: str, before: float) -> list[str]:
    return [path for path in _files(folder) if _is_older(path, before)]


def _is_older(path: str, before: float) -> bool:
    try:
        return os.lstat(path).st_mtime <= before
    except OSError:
        return False


def _unknown_folders(store: Store) -> list[str]:
    """Return the directories of a store that have a name as kreg gives them, with another format's number."""
    found = []
    for file in scan(store.root):
        kind, _, number = file.name.partition("-v")
        is_format = kind in {"entries", "objects"} and number.isdecimal()
        if is_format and file.name not in FOLDERS and file.is_dir(follow_symlinks=False):
            found.append(file.path)
    return found


def _carry_out(sweep: Sweep) -> None:
    """Remove entries before the cubins they name, so that an end in between leaves no entry without its cubin."""
    remove_all(entry.path for entry in sweep.entries)
    trees = frozenset((*sweep.leftovers, *sweep.others))
    remove_all((*sweep.objects, *sweep.leftovers, *sweep.others), trees=trees)
    for folder in sorted({os.path.dirname(path) for path in (*(e.path for e in sweep.entries), *sweep.objects)}):
        remove_empty_folder(folder)
