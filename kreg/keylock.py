"""Key locks: file locks by which processes avoid doing the same work twice.

No result depends on one. A lock that cannot be had in time, or on a file system without locks, costs at most a
second compile. The kernel drops the lock of a process that dies. Lock files are never unlinked, so that two
processes can't hold "the same" lock on two inodes; 256 files serve all keys.

Written on ``flock`` itself: importing filelock takes 90 to 110 ms on the build machine (2026-12-01), which 16
processes racing for one key would pay before the first of them compiles, and it unlinks on release.
"""

from __future__ import annotations

import errno
import os
import time

from kreg.files import close_quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_SECONDS = 0.02
_REPORT_SECONDS = 5.0


class FileLock:
    """Hold the lock file ``path`` during a ``with`` block, which gets whether it is really held.

    Waits up to ``wait`` seconds. Every 5 s of waiting ``report`` gets a line that says what is awaited and who
    holds it. False after the wait, or at once where locks do not work.
    """

    def __init__(
        self, path: str, *, shared: bool = False, wait: float, report: Callable[[str], None] | None = None
    ) -> None:
        self._path = path
        self._shared = shared
        self._wait = wait
        self._report = report
        self._descriptor: int | None = None
        self._process = 0

    def __enter__(self) -> bool:
        self._descriptor = _open(self._path)
        self._process = os.getpid()
        if self._descriptor is None:
            return False
        try:
            return _acquire(self._descriptor, self._path, self._shared, self._wait, self._report)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            # Closing drops the lock unless a forked child still has the descriptor, so unlock by name first; but a
            # child that leaves the block has the lock of its parent, which goes on.
            if os.getpid() == self._process:
                _unlock(self._descriptor)
            close_quietly(self._descriptor)
            self._descriptor = None


def _open(path: str) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags, 0o666)
    except OSError:
        return None


def _acquire(descriptor: int, path: str, shared: bool, wait: float, report: Callable[[str], None] | None) -> bool:
    import fcntl

    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    start = time.monotonic()
    next_report = start + _REPORT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, mode)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                return False
        else:
            if not shared:
                _sign(descriptor)
            return True
        now = time.monotonic()
        if now - start >= wait:
            return False
        if report is not None and now >= next_report:
            next_report = now + _REPORT_SECONDS
            report(f"waiting for {path} for {now - start:.0f} s, held by {_holder(descriptor)}")
        time.sleep(min(_POLL_SECONDS, max(0.0, start + wait - now)))


def _unlock(descriptor: int) -> None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        pass


def _sign(descriptor: int) -> None:
    """Leave "pid host" in the lock file, for the message of whoever waits."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)
    except OSError:
        pass


def _holder(descriptor: int) -> str:
    try:
        pid, _, host = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip().partition(" ")
    except OSError:
        pid = host = ""
    return f"process {pid} on {host}" if pid and host else "another process"
