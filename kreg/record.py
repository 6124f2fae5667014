"""Immutable values with slots, for the path that must not import ``dataclasses``.

Importing ``dataclasses`` (with ``inspect`` and ``re``) took 26 to 35 ms on the build machine, as long as starting
Python and reading an artifact together (2026-12-01). A subclass names its fields in ``__slots__``, annotates
them, and passes them to ``_set`` once, in ``__init__``. Equality, hash, repr and pickling go by the fields.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


class Record:
    """Base of a value that never changes after ``__init__``."""

    __slots__: tuple[str, ...] = ()

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._fields() == self._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[Callable[..., Record], tuple[type[Record], tuple[object, ...]]]:
        return _restore, (type(self), self._fields())


def _restore(cls: type[Record], fields: tuple[object, ...]) -> Record:
    value = cls.__new__(cls)
    value._set(**dict(zip(cls.__slots__, fields, strict=True)))  # noqa: SLF001
    return value
