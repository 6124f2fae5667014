"""Toolchains: which compiler distributions, at which versions, build an artifact.

Versions are read from the names of the installed ``.dist-info`` directories, which is where ``importlib.metadata``
finds them: no compiler is imported, and neither is ``importlib.metadata`` (80 to 90 ms on the build machine,
2026-12-01). ``tests/test_toolchain.py`` holds the two to the same answer.
"""

from __future__ import annotations

import os
import sys

from kreg.digest import canonical, sha256
from kreg.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Toolchain(Record):
    """A backend's installed distributions and their ``fingerprint`` (64 hex digits)."""

    __slots__ = ("backend", "distributions", "fingerprint")
    backend: str
    distributions: tuple[tuple[str, str], ...]
    fingerprint: str

    def __init__(self, *, backend: str, distributions: Mapping[str, str]) -> None:
        fields = {"schema": 1, "backend": backend, "distributions": dict(distributions)}
        self._set(
            backend=backend,
            distributions=tuple(sorted(distributions.items())),
            fingerprint=sha256(canonical(fields, "toolchain")),
        )

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.distributions)

    @property
    def short(self) -> str:
        """The first distribution, and the beginning of the fingerprint, which stands for the others."""
        name, version = next(iter(self.distributions), (self.backend, ""))
        return f"{name} {version} ({self.fingerprint[:12]})"


def installed_versions(names: Iterable[str], path: Iterable[str] | None = None) -> dict[str, str]:
    """Return the versions of those distributions that are installed; the first on ``path`` (sys.path) wins.

    ``names`` are distribution names as on the package index; a name that is not installed is left out.
    """
    wanted = {_normal(name): name for name in names}
    found: dict[str, str] = {}
    for folder in sys.path if path is None else path:
        for name, version in _distributions(folder or "."):
            if name in wanted:
                found.setdefault(wanted[name], version)
    return found


def _distributions(folder: str) -> list[tuple[str, str]]:
    try:
        listed = sorted(os.listdir(folder))
    except OSError:
        return []
    stems = [name[: -len(".dist-info")] for name in listed if name.endswith(".dist-info")]
    return [(_normal(stem.partition("-")[0]), stem.partition("-")[2]) for stem in stems]


def _normal(name: str) -> str:
    """Normalise a distribution name for comparison (PyPA specification "Names and normalization")."""
    return name.lower().replace("-", "_").replace(".", "_")
