"""Backends by name. Importing one imports no compiler."""

from __future__ import annotations

from kreg.errors import DeclarationError
from kreg.imports import load_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.backends.protocol import Backend

_METHODS = ("toolchain", "missing", "compile")


def load_backend(name: str) -> Backend:
    """Return the backend called ``name``: a module of ``kreg.backends``, or any ``module:object``.

    Raises ``DeclarationError`` if there is none.
    """
    path = name if ":" in name or not name else f"kreg.backends.{name}:BACKEND"
    found = load_object(path, f"there is no backend {name!r}")
    lacking = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if lacking:
        raise DeclarationError(f"{name!r} is not a backend: it has no method {lacking[0]}")
    return found  # type: ignore[return-value]
