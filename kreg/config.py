"""Configuration: argument, then environment, then default, and nowhere else.

This is the only module that reads ``os.environ``, each time it is asked, never at import. An empty variable counts
as unset. The variables are listed in the README.
"""

from __future__ import annotations

import os
import sys
from math import isinf, isnan

from kreg.errors import KregError

POLICIES = ("compile", "locked", "frozen")
"""``compile`` may compile what is missing; ``locked`` may too, and takes nothing but what is pinned; ``frozen`` never
compiles."""

DRIFT = ("check", "rebuild", "ignore")
"""Where the sources are not those of an entry: compile and compare, take the new code, or take the entry."""

LOCKFILE = "kreg.lock"


def variable(name: str) -> str | None:
    """Return an environment variable, or None if it is unset or blank."""
    return os.environ.get(name, "").strip() or None


def environment_names(prefix: str) -> list[str]:
    """Return the names of the set environment variables that begin with ``prefix``, sorted."""
    return sorted(name for name in os.environ if name.startswith(prefix) and os.environ[name] != "")


def policy(given: str | None = None) -> str:
    """Return the policy: ``given``, else ``KREG_POLICY``, else ``compile``."""
    return _choose("policy", given, "KREG_POLICY", POLICIES)


def drift(given: str | None = None) -> str:
    """Return what is done about drift: ``given``, else ``KREG_DRIFT``, else ``check``."""
    return _choose("drift", given, "KREG_DRIFT", DRIFT)


def _choose(what: str, given: str | None, name: str, known: tuple[str, ...]) -> str:
    chosen = given or variable(name) or known[0]
    if chosen not in known:
        raise KregError(f"{what if given else name} is {chosen!r}; it is one of {', '.join(known)}")
    return chosen


def lockfile_in_force(policy: str, given: str | os.PathLike[str] | None = None) -> str | None:
    """Return the path of the lockfile that binds a resolve: any under ``locked``, a named one under ``frozen``."""
    if policy == "locked":
        return lockfile(given)
    return named_lockfile(given) if policy == "frozen" else None


def named_lockfile(given: str | os.PathLike[str] | None = None) -> str | None:
    """Return the absolute path of the lockfile that was asked for by argument or ``KREG_LOCKFILE``, if any."""
    chosen = os.fspath(given) if given is not None else variable("KREG_LOCKFILE")
    return _absolute(chosen) if chosen else None


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError:
        raise KregError(f"{path!r} is relative, and the current directory is gone; name an absolute path") from None


def lockfile(given: str | os.PathLike[str] | None = None) -> str:
    """Return the lockfile's path: what was asked for, else ``kreg.lock`` in the current directory."""
    return named_lockfile(given) or _absolute(LOCKFILE)


def named_root(given: str | os.PathLike[str] | None = None) -> str | None:
    """Return the absolute store directory that was asked for by argument or ``KREG_STORE``, if any."""
    chosen = os.fspath(given) if given is not None else variable("KREG_STORE")
    return _absolute(chosen) if chosen else None


def default_root() -> str:
    """Return the store directory used where none is named: ``kreg`` in the user's cache directory.

    On Linux that is the XDG base directory specification's ``$XDG_CACHE_HOME`` (absolute, or ignored) or
    ``~/.cache``, worked out here because importing platformdirs takes 43 ms (2026-12-01); platformdirs knows the
    others. Raises ``KregError`` where the user has no home directory.
    """
    if sys.platform != "linux":
        from platformdirs import user_cache_path

        return str(user_cache_path("kreg", appauthor=False))
    base = variable("XDG_CACHE_HOME")
    if base is None or not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        raise KregError("no home directory for the default store; set KREG_STORE to a directory")
    return os.path.join(base, "kreg")


def wait_seconds() -> float:
    """Return how long to wait for another process's compile before compiling too: ``KREG_WAIT``, or 600 s."""
    return max(0.0, _seconds("KREG_WAIT", "600"))


def compile_seconds() -> float:
    """Return how long one compile of many may take: ``KREG_COMPILE_LIMIT``, or 1800 s; 0 is no limit."""
    seconds = max(0.0, _seconds("KREG_COMPILE_LIMIT", "1800"))
    return 0.0 if isinf(seconds) else seconds


def _seconds(name: str, default: str) -> float:
    text = variable(name) or default
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if isnan(seconds):
        raise KregError(f"{name} is {text!r}; it is a number of seconds")
    return seconds
