"""Compile specs: everything asked of a compiler, its canonical form and its key.

A spec key never depends on a path, an environment variable, a hash seed, the order of arguments, or anything
installed. A parameter at its declared default is left out of the spec, so that adding a parameter with a
default keeps every key that exists. This module knows no kernel; ``kreg.kernel`` makes specs from declarations.
"""

from __future__ import annotations

from kreg.digest import canonical, describe, sha256
from kreg.errors import SpecError
from kreg.record import Record

SCHEMA = 1
"""First field of the canonical form. Another number means that every key has changed."""

TEXT_LIMIT = 1 << 16
"""Characters of the longest spec text that is read."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    Value: TypeAlias = "str | int | bool"

_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-")


def parse_target(target: object) -> str:
    """Return ``target`` if it is a GPU architecture as ptxas names it, such as ``sm_90a``.

    The suffix belongs to the name: ``a`` (this chip alone, from sm_90 on) and ``f`` (its family, from sm_100
    on) make other targets than the plain one (CUDA C++ Programming Guide, "Compute capabilities").
    Raises ``SpecError``.
    """
    if type(target) is not str:
        raise SpecError(f"target is {describe(target)}; it is a string such as 'sm_90a'")
    if not _is_target(target):
        hint = f" (did you mean {target.lower()!r}?)" if _is_target(target.lower()) else ""
        raise SpecError(f"target {target!r} is not an architecture such as 'sm_90a' or 'sm_100f'{hint}")
    number, suffix = target[3:].rstrip("af"), target.lstrip("sm_0123456789")
    if int(number) < {"": 0, "a": 90, "f": 100}[suffix]:
        raise SpecError(f"target {target!r}: sm_{number} has no variant with the suffix {suffix!r}")
    return target


def _is_target(text: str) -> bool:
    digits = text[3:].rstrip("af")
    number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 3 else 0
    is_written_so = text in (f"sm_{number}", f"sm_{number}a", f"sm_{number}f")
    return is_written_so and number >= 50


def is_name(text: str) -> bool:
    """Say whether ``text`` can name a kernel or a parameter: an ASCII lower-case identifier, 64 at most."""
    return text.isascii() and text.isidentifier() and text == text.lower() and len(text) <= 64


class CompileSpec(Record):
    """Kernel, version, variant, target and compile options, with ``key``, their SHA-256.

    ``params`` holds (name, value) in the order of declaration, without those at their default.
    ``options`` holds (name, value) sorted by name.
    """

    __slots__ = ("kernel", "version", "params", "target", "options", "key")
    kernel: str
    version: int
    params: tuple[tuple[str, Value], ...]
    target: str
    options: tuple[tuple[str, Value], ...]
    key: str

    def __init__(
        self,
        *,
        kernel: str,
        version: int,
        params: Mapping[str, Value],
        target: str,
        options: Mapping[str, Value] | None = None,
    ) -> None:
        chosen = dict(options or {})
        fields = {
            "schema": SCHEMA,
            "kernel": kernel,
            "version": version,
            "params": dict(params),
            "target": parse_target(target),
            "options": chosen,
        }
        self._set(
            kernel=kernel,
            version=version,
            params=tuple(params.items()),
            target=target,
            options=tuple(sorted(chosen.items())),
            key=sha256(canonical(fields, "spec")),
        )

    def __str__(self) -> str:
        return f"{self.kernel}@{self.version}{format_params(self.params)}:{self.target}"


def format_params(params: tuple[tuple[str, Value], ...]) -> str:
    """Write a variant as it stands in spec texts: ``[world_size=2,transport=pull]``, or nothing."""
    if not params:
        return ""
    return "[" + ",".join(f"{name}={format_value(value)}" for name, value in params) + "]"


def reading_order(
    kernel: str, version: int, target: str, params: Iterable[tuple[str, object]]
) -> tuple[str, int, str, list[tuple[str, str]]]:
    """Return what to sort variants by as people read them: numbers by value, in every kernel, version and target."""
    return kernel, version, target, [(name, str(value).rjust(20)) for name, value in params]


def format_value(value: Value) -> str:
    """Write one parameter value: ``2``, ``true``, ``pull``, or a JSON string where a bare word will not do."""
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is str and not (value and _BARE.issuperset(value)):
        import json

        return json.dumps(value)
    return str(value)


def parse_value(text: str, kind: type, where: str) -> Value:
    """Read a value of type ``kind`` (int, bool or str) back from its text. Raises ``SpecError``."""
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int:
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdecimal() and len(digits) <= 19:
            return int(text)
    if kind is str:
        return _parse_str(text, where)
    raise SpecError(f"{where}: {text!r} is not of type {kind.__name__}")


def _parse_str(text: str, where: str) -> str:
    if not text.startswith('"'):
        return text
    import json

    try:
        value = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{where}: {text!r} is not a JSON string") from error
    return str(value)


class SpecText(Record):
    """The parts of a spec as written, before any declaration has been asked what they mean."""

    __slots__ = ("kernel", "version", "params", "target")
    kernel: str
    version: int | None
    params: tuple[tuple[str, str], ...]
    target: str | None

    def __init__(
        self, *, kernel: str, version: int | None, params: tuple[tuple[str, str], ...], target: str | None
    ) -> None:
        self._set(kernel=kernel, version=version, params=params, target=target)


def parse_spec_text(text: str) -> SpecText:
    """Split ``name[@version][[param=value,...]][:target]`` into its parts. Raises ``SpecError``."""
    if len(text) > TEXT_LIMIT:
        raise SpecError(f"spec {text[:40]!r}... has {len(text)} characters; no spec has more than {TEXT_LIMIT}")
    head, bracket, rest = text.partition("[")
    params: tuple[tuple[str, str], ...] = ()
    if bracket:
        body, tail = _split_bracket(rest, text)
        params = tuple(_split_assignment(item, text) for item in _split_items(body)) if body else ()
    else:
        head, colon, target = head.partition(":")
        tail = colon + target
    if tail and not tail.startswith(":"):
        raise SpecError(f"spec {text!r}: expected ':target' after ']', found {tail!r}")
    name, at, version = head.partition("@")
    if not is_name(name):
        raise SpecError(f"spec {text!r}: {name!r} is not a kernel name")
    target_text = parse_target(tail[1:]) if tail else None
    return SpecText(
        kernel=name, version=parse_version(version, text) if at else None, params=params, target=target_text
    )


def parse_version(text: str, where: str) -> int:
    """Read a kernel version, a whole number from 1. Raises ``SpecError``."""
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 9 and int(text) >= 1):
        raise SpecError(f"spec {where!r}: version {text!r} is not a whole number from 1")
    return int(text)


def _split_bracket(rest: str, text: str) -> tuple[str, str]:
    quoted = escaped = False
    for i, char in enumerate(rest):
        if char == "]" and not quoted:
            return rest[:i], rest[i + 1 :]
        quoted ^= char == '"' and not escaped
        escaped = char == "\\" and not escaped
    raise SpecError(f"spec {text!r}: '[' is never closed")


def _split_items(body: str) -> list[str]:
    items, start = [], 0
    quoted = escaped = False
    for i, char in enumerate(body):
        if char == "," and not quoted:
            items.append(body[start:i])
            start = i + 1
        quoted ^= char == '"' and not escaped
        escaped = char == "\\" and not escaped
    return [*items, body[start:]]


def _split_assignment(item: str, text: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals or not is_name(name):
        raise SpecError(f"spec {text!r}: {item!r} is not 'name=value'")
    return name, value
