"""Configuration: argument, then environment, then default, and nowhere else.

This is the only module that reads ``os.environ``, each time it is asked, never at import. An empty variable counts
as unset. The variables are listed in the README.
"""

from __future__ import annotations

import os
import sys
from math import isnan

from kreg.errors import KregError

POLICIES = ("compile", "frozen")
"""``compile`` may compile what is missing; ``frozen`` never compiles."""


def variable(name: str) -> str | None:
    """Return an environment variable, or None if it is unset or blank."""
    return os.environ.get(name, "").strip() or None


def environment_names(prefix: str) -> list[str]:
    """Return the names of the set environment variables that begin with ``prefix``, sorted."""
    return sorted(name for name in os.environ if name.startswith(prefix) and os.environ[name] != "")


def policy(given: str | None = None) -> str:
    """Return the policy: ``given``, else ``KREG_POLICY``, else ``compile``."""
    chosen = given or variable("KREG_POLICY") or "compile"
    if chosen not in POLICIES:
        source = "policy" if given else "KREG_POLICY"
        raise KregError(f"{source} is {chosen!r}; it is one of {', '.join(POLICIES)}")
    return chosen


def named_root(given: str | os.PathLike[str] | None = None) -> str | None:
    """Return the absolute store directory that was asked for by argument or ``KREG_STORE``, if any."""
    chosen = os.fspath(given) if given is not None else variable("KREG_STORE")
    return os.path.abspath(os.path.expanduser(chosen)) if chosen else None


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
    text = variable("KREG_WAIT") or "600"
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if isnan(seconds):
        raise KregError(f"KREG_WAIT is {text!r}; it is a number of seconds")
    return max(0.0, seconds)
