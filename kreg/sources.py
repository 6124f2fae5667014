"""Source files: their digest, at the price of a stat each once it is known, and whether this process is behind them.

A digest is kept by what the file system says of each file: its number, size and times. A file that changed
within the last seconds is read again every time, since a second change could leave no mark.
"""

from __future__ import annotations

import os
import time

from kreg.digest import canonical, sha256
from kreg.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    Signature: TypeAlias = tuple[int, int, int, int, int]

_IMPORTED = time.time()
_TICK = 2.0
"""Seconds within which two changes may carry one file time: ext4's is a kernel tick, FAT's two seconds."""

_first: dict[str, Signature] = {}
_known: dict[tuple[str, tuple[str, ...]], tuple[list[Signature], Sources]] = {}


class Sources(Record):
    """The SHA-256 of each source file by its declared name, and ``digest``, that of them all with their names."""

    __slots__ = ("files", "digest")
    files: dict[str, str]
    digest: str

    def __init__(self, files: dict[str, str]) -> None:
        self._set(files=files, digest=sha256(canonical(files, "sources")))


def read_sources(file: str, names: tuple[str, ...]) -> Sources:
    """Digest the files called ``names`` in the folder of ``file``. Raises ``OSError``."""
    folder = os.path.dirname(file)
    paths = [f"{folder}/{name}" for name in names]
    signatures = [_signature(path) for path in paths]
    known = _known.get((file, names))
    if known is not None and known[0] == signatures:
        return known[1]
    found = Sources({name: sha256(_read(path)) for name, path in zip(names, paths, strict=True)})
    if _are_settled(signatures):
        _known[file, names] = signatures, found
    return found


def note(paths: Iterable[str]) -> None:
    """Note what the file system says of files, so that a change is told without a clock; one not there is no error."""
    for path in paths:
        if path not in _first:
            try:
                _first[path] = _signature(path)
            except OSError:
                continue


def changed_since_start(paths: Iterable[str]) -> bool:
    """Say whether a file was changed after this process began, which may have imported it as it was before.

    By its time, and, as a file server may have another clock than this host, by what was noted of it.
    """
    signatures = {path: _signature(path) for path in paths}
    start = (_started() - _TICK) * 1e9
    return any(found != _first.get(path, found) or found[-1] > start for path, found in signatures.items())


def _started() -> float:
    """Return when this process began, which may have imported device code before kreg; else when it imported this.

    Field 22 of /proc/self/stat is the start in clock ticks after boot (proc(5)).
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return min(_IMPORTED, time.time() - age)
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED


def _signature(path: str) -> Signature:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _are_settled(signatures: list[Signature]) -> bool:
    newest = max(max(mtime, ctime) for _, _, _, mtime, ctime in signatures)
    return newest < (time.time() - _TICK) * 1e9


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
