"""Backends by name. Importing one imports no compiler."""

from __future__ import annotations

from importlib import import_module

from kreg.errors import DeclarationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.backends.protocol import Backend

_METHODS = ("toolchain", "missing", "compile")


def load_backend(name: str) -> Backend:
    """Return the backend called ``name``: a module of ``kreg.backends``, or any ``module:object``.

    Raises ``DeclarationError`` if there is none.
    """
    module, colon, attribute = name.partition(":")
    try:
        found = getattr(import_module(module if colon else f"kreg.backends.{module}"), attribute or "BACKEND")
    except (ImportError, AttributeError) as error:
        raise DeclarationError(f"there is no backend {name!r}: {error}") from error
    lacking = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if lacking:
        raise DeclarationError(f"{name!r} is not a backend: it has no method {lacking[0]}")
    return found  # type: ignore[no-any-return]
