"""Canonical bytes and SHA-256: the only way anything in kreg becomes a key.

Two values have the same canonical bytes exactly if they are the same plain data, in every process, on every
machine and Python version. What has no such form is refused with its path; nothing is converted.
"""

from __future__ import annotations

import hashlib

from kreg.errors import SpecError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def sha256(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def is_hex(text: str) -> bool:
    """Say whether ``text`` is made of lower-case hex digits alone."""
    whole = text + "0" * (len(text) % 2)
    try:  # A fifth of the time that a look at each character takes.
        return len(bytes.fromhex(whole)) * 2 == len(whole) and whole == whole.lower()
    except ValueError:
        return False


def canonical(value: object, path: str = "value") -> bytes:
    """Return the canonical bytes of plain data: JSON with sorted names, ASCII only, no blanks.

    ``value`` is built of str (NFC), int (64 bits, signed), bool, list, tuple and dict with str names.
    Anything else, floats and None included, raises ``SpecError`` that names ``path`` down to the culprit.
    """
    return _encode(value, path).encode("ascii")


def _encode(value: object, path: str) -> str:
    # Exact types: a bool is no int here, and a subclass or numpy scalar is nothing at all.
    if type(value) is str:
        return _encode_str(value, path)
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        if not INT64_MIN <= value <= INT64_MAX:
            raise SpecError(f"{path} is an integer beyond 64 bits and cannot be part of a key")
        return str(value)
    if type(value) is dict:
        for name in value:
            if type(name) is not str:
                raise SpecError(f"{path} has a name that is {describe(name)}; names are str")
        items = [f"{_encode_str(name, path)}:{_encode(value[name], f'{path}.{name}')}" for name in sorted(value)]
        return "{" + ",".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([_encode(item, f"{path}[{i}]") for i, item in enumerate(value)]) + "]"
    raise SpecError(f"{path} is {describe(value)}; a key is made of str, int, bool, lists and dicts only")


def _encode_str(text: str, path: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    import json
    import unicodedata

    if not unicodedata.is_normalized("NFC", text):
        raise SpecError(f"{path} is the string {text!a}, which is not in Unicode normal form C")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise SpecError(f"{path} is the string {text!a}, which holds a lone surrogate")
    return json.dumps(text)


def describe(value: object) -> str:
    """Name a value that was refused: its type, and its repr where that is short."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shown = repr(value)
    return f"{name} {shown}" if len(shown) <= 40 and "\n" not in shown else name
