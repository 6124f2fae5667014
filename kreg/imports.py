"""Objects named by a string, ``module:name``: backends, build functions, plug-ins."""

from __future__ import annotations

from importlib import import_module

from kreg.errors import DeclarationError


def load_object(path: str, what: str) -> object:
    """Import the module of ``module:name`` and return its object. Raises ``DeclarationError``: ``what`` and why."""
    module, _, name = path.partition(":")
    if not (module and name):
        raise DeclarationError(f"{what}: it is not 'module:name'")
    try:
        found: object = getattr(import_module(module), name)
    except Exception as error:  # A module's own code may raise anything.
        raise DeclarationError(f"{what}: {error}") from error
    return found
