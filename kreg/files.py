"""Files as a shared store needs them: read whole or refused, written whole and synced.

Nothing here follows a symbolic link in the last place of a path, waits for a FIFO, or reads more than it was told to.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from kreg.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


GRACE = 3600.0
"""Seconds for which a temporary file may belong to a process that is still at work."""

_TEMPORARY = ".kreg-tmp"
_RENAMES = 10

_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.ENOTDIR)
"""What opening a symbolic link, a socket, or a path below a file gives."""


class NotAFile(StoreError):
    """Something other than a regular file of bearable size lies where a file belongs."""


class Unreadable(StoreError):
    """The system could not read a file, which says nothing of what is in it."""


def read_file(path: str, limit: int) -> bytes | None:
    """Read a regular file of at most ``limit`` bytes, or return None if there is none.

    Never follows a symbolic link at ``path``, never waits for a FIFO. Raises ``StoreError``.
    """
    found = read_file_and_stat(path, limit)
    return None if found is None else found[0]


def read_file_and_stat(path: str, limit: int, *, unseen: bool = False) -> tuple[bytes, os.stat_result] | None:
    """Read a file as ``read_file`` does, with what the file system said of it before.

    ``unseen`` leaves the access time as it is, where the user may: a look at a file is no use of it.
    """
    try:
        descriptor = _open_unseen(path) if unseen else os.open(path, _READ_FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise NotAFile(f"{path} is not a regular file") from error
        raise Unreadable(f"cannot read {path}: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotAFile(f"{path} is not a regular file")
        if found.st_size > limit:
            raise NotAFile(f"{path} has {found.st_size} bytes, more than the {limit} allowed")
        return _read_all(descriptor, found.st_size), found
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}") from error
    finally:
        close_quietly(descriptor)


def _open_unseen(path: str) -> int:
    try:
        return os.open(path, _READ_FLAGS | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        return os.open(path, _READ_FLAGS)  # Only the owner of a file may leave its access time alone.


def _read_all(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size)
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            break
        data += more
    return data


def write_synced(path: str, data: bytes) -> None:
    """Write a new file and sync it to disk. Raises ``OSError``, for one that exists too."""
    _write_parts(path, (data,))


def _write_parts(path: str, parts: Iterable[bytes]) -> None:
    descriptor = os.open(path, _WRITE_FLAGS, 0o666)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: str, parts: Iterable[bytes]) -> None:
    """Put a new file in the place of ``path``, whole or not at all. Raises ``OSError``.

    What an earlier writer that was killed left beside it, an hour ago or more, is removed.
    """
    temporary = f"{path}.{os.urandom(8).hex()}{_TEMPORARY}"
    try:
        _write_parts(temporary, parts)
        os.replace(temporary, path)
    except BaseException:
        unlink_quietly(temporary)
        raise
    sync_folder(os.path.dirname(path))
    _remove_abandoned(path)


def _remove_abandoned(path: str) -> None:
    try:
        now = os.stat(path).st_mtime
        for file in scan(os.path.dirname(path)):
            is_ours = file.path.startswith(f"{path}.") and file.path.endswith(_TEMPORARY)
            if is_ours and now - file.stat(follow_symlinks=False).st_mtime > GRACE:
                unlink_quietly(file.path)
    except (OSError, StoreError):
        pass


def sync_folder(path: str) -> None:
    """Sync a directory, so that a rename in it survives a crash, where the file system can.

    Some network file systems refuse, and the directory may be gone by now; the rename itself has succeeded.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        close_quietly(descriptor)


def close_quietly(descriptor: int) -> None:
    """Close a descriptor through which nothing was written; what the file system says of that is of no use."""
    try:
        os.close(descriptor)
    except OSError:
        pass


def unlink_quietly(path: str) -> None:
    """Remove a file if it is there and can be removed."""
    try:
        os.unlink(path)
    except OSError:
        pass


def scan(folder: str) -> list[os.DirEntry[str]]:
    """List a directory in order of name; one that is not there is empty. Raises ``StoreError``."""
    try:
        try:
            return _scan(folder)
        except FileNotFoundError:
            # A network file system may say so of what has just been made, and what is listed as empty is removed.
            return [] if _is_gone(folder) else _scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot list {folder}: {error.strerror}") from error


def _is_gone(path: str) -> bool:
    """Say whether the system knows that nothing lies at ``path``; where it cannot tell, something may."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _scan(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name)


def is_same_file(read: os.stat_result) -> Callable[[os.stat_result], bool]:
    """Return a function that says whether what the file system says of a file is said of the one that was read."""
    return lambda moved: (moved.st_dev, moved.st_ino) == (read.st_dev, read.st_ino)


def is_file(moved: os.stat_result, limit: int) -> bool:
    """Say whether it is a regular file of at most ``limit`` bytes."""
    return stat.S_ISREG(moved.st_mode) and moved.st_size <= limit


def put_back(place: str, path: str) -> None:
    """Move a file back to ``path``, unless there is another by now. Raises ``OSError``."""
    try:
        os.link(place, path)
    except FileExistsError:
        pass  # A newer one yet.
    os.unlink(place)


def touch_quietly(path: str) -> None:
    """Set the times of a file to now, if that can be done."""
    try:
        os.utime(path)
    except OSError:
        pass


def mark_used(path: str, status: os.stat_result) -> None:
    """Set the access time, also where the file system does not keep it; a store that is read-only stays as it is."""
    try:
        os.utime(path, ns=(time.time_ns(), status.st_mtime_ns), follow_symlinks=False)
    except OSError:
        pass


def refuse_link(folder: str) -> None:
    """Raise ``OSError`` for a symbolic link: what is written to or removed from its directory may be anybody's."""
    if os.path.islink(folder):
        raise OSError(errno.ELOOP, "a directory of a store may not be a symbolic link", folder)


def rename_into(temporary: str, path: str) -> None:
    """Rename into a folder that is made if it is not there, and may be removed, empty, by a ``clear`` at any time."""
    for attempt in range(_RENAMES):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except FileExistsError:
            pass  # Another process made it, and a third removed it before it could be seen.
        try:
            os.rename(temporary, path)
        except FileNotFoundError:
            if attempt == _RENAMES - 1:
                raise
        else:
            return
