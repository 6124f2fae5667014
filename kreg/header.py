"""The first two lines of a stored manifest: enough to prove it whole, find its cubin and see drift, without JSON.

Line 1 has the format and the SHA-256 of every byte after it; line 2 the spec key, the toolchain key, the cubin's
digest and the source digest. Both have a fixed shape, so a hit needs no JSON parser (2026-12-01: importing json took
13 ms, msgspec 60 ms, all else of a hit 20 ms). The whole is one JSON object.
"""

from __future__ import annotations

from kreg.digest import is_hex, sha256
from kreg.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Keys: TypeAlias = tuple[str, str, str, str]

FORMAT = 1
"""Version of the manifest format; another number is another reader's."""

NAMES = ("spec_key", "toolchain_key", "cubin_digest", "source_digest")
"""What the second line holds, each 64 hex digits."""

_KEYS = ",".join(f'"{name}":"{{}}"' for name in NAMES) + ",\n"
_OPENING = f'{{"manifest":{FORMAT},"digest":"'.encode()
_BODY = len(_OPENING) + 64 + len('",\n')
_LINE = len(_KEYS) + 62 * len(NAMES)
"""Length of the second line: 64 digits stand where the pattern has two braces."""


class NewerFormat(StoreError):
    """A manifest of a format this kreg does not know: not an error of the store, and not to be touched."""


def read_header(data: bytes, where: str) -> Keys:
    """Return (spec key, toolchain key, cubin digest, source digest) of a stored manifest, proven by its own digest.

    Raises ``NewerFormat`` for another format and ``StoreError`` for anything that is not a whole manifest.
    """
    if not data.startswith(_OPENING):
        number = data[len(b'{"manifest":') :].partition(b",")[0]
        if data.startswith(b'{"manifest":') and number.isdigit() and int(number[:9]) > FORMAT:
            raise NewerFormat(f"manifest {where} has format {int(number[:9])}; this kreg reads format {FORMAT}")
        raise StoreError(f"manifest {where} does not begin as a manifest")
    body = data[_BODY:]
    if data[len(_OPENING) : _BODY] != sha256(body).encode() + b'",\n':
        raise StoreError(f"manifest {where} does not match its own digest")
    line = body[:_LINE].decode("ascii", "replace")
    keys = line.split('"')[3::4]
    if len(keys) != len(NAMES) or line != _KEYS.format(*keys) or not is_hex("".join(keys)):
        raise StoreError(f"manifest {where} has no keys where they belong")
    spec_key, toolchain_key, cubin_digest, source_digest = keys
    if not len(spec_key) == len(toolchain_key) == len(cubin_digest) == len(source_digest):
        raise StoreError(f"manifest {where} has no keys where they belong")
    return spec_key, toolchain_key, cubin_digest, source_digest


def has_keys(data: bytes, keys: Keys) -> bool:
    """Say whether the second line of a stored manifest has these keys."""
    return data.startswith(_KEYS.format(*keys).encode(), _BODY)


def write_header(keys: Keys, fields: str) -> bytes:
    """Return a stored manifest: the two lines for ``keys``, then ``fields``, JSON members without their brace."""
    body = (_KEYS.format(*keys) + fields + "}\n").encode()
    return _OPENING + sha256(body).encode() + b'",\n' + body
