"""Stand between the store and the system: count the calls that concern a folder, and do something at one of them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from typing import Any

import pytest

CALLS = (
    "open", "read", "pread", "write", "pwrite", "fsync", "ftruncate", "close", "fstat", "stat", "lstat", "rename",
    "replace", "unlink", "rmdir", "mkdir", "makedirs", "listdir", "scandir", "utime", "link",
)  # fmt: skip

FAILURES = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOLCK, errno.ENOSYS,
    errno.EINTR,
)  # fmt: skip
"""The ways in which a file system fails a call."""


class Calls:
    """The calls of ``os`` and ``fcntl`` that name something below ``folder``, in order.

    ``at`` is the number of the call, from 1, for which ``act`` is called with its name and first argument, before it
    is made; what ``act`` raises is what the call raises.
    """

    def __init__(self, folder: str, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._ours: set[int] = set()
        self.made: list[str] = []
        self.at = 0
        self.act: Callable[[str, Any], None] = lambda _name, _first: None
        for name in CALLS:
            patch.setattr(os, name, self._wrap(name, getattr(os, name)))
        patch.setattr(fcntl, "flock", self._wrap("flock", fcntl.flock))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *others: Any, **options: Any) -> Any:
            if not self._is_ours(first):
                return real(first, *others, **options)
            self.made.append(name)
            if len(self.made) == self.at:
                if name == "close":
                    real(first)  # Linux has closed it, whatever it returns.
                self.act(name, first)
            result = real(first, *others, **options)
            if name == "open":
                self._ours.add(result)
            if name == "close":
                self._ours.discard(first)
            return result

        return call

    def _is_ours(self, first: Any) -> bool:
        return first in self._ours if isinstance(first, int) else str(first).startswith(self._folder)


def count_calls(folder: str, action: Callable[[], object]) -> list[str]:
    """Return the names of the calls that ``action`` makes."""
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(folder, patch)
        action()
    return calls.made


def fail_at(folder: str, number: int, error: int, action: Callable[[], Any]) -> Any:
    """Return what ``action`` returns while its call ``number`` fails with ``error``."""

    def fail(_name: str, first: Any) -> None:
        raise OSError(error, os.strerror(error), str(first))

    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(folder, patch)
        calls.at, calls.act = number, fail
        return action()
