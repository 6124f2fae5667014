"""The first two lines of a stored manifest: enough to prove it whole and to find its cubin, without parsing JSON.

Line 1 has the format and the SHA-256 of every byte after it; line 2 the spec key, the toolchain key and the cubin's
digest. Both have a fixed shape, so a hit needs no JSON parser (2026-12-01: importing json took 13 ms, msgspec
60 ms, all else of a hit 20 ms). The whole is one JSON object.
"""

from __future__ import annotations

from kreg.digest import is_hex, sha256
from kreg.errors import StoreError

FORMAT = 1
"""Version of the manifest format; another number is another reader's."""

_KEYS = '"spec_key":"{}","toolchain_key":"{}","cubin_digest":"{}",\n'
_OPENING = f'{{"manifest":{FORMAT},"digest":"'.encode()
_BODY = len(_OPENING) + 64 + len('",\n')
_SPEC_KEY = len('"spec_key":"')
_TOOLCHAIN_KEY = _SPEC_KEY + 64 + len('","toolchain_key":"')
_CUBIN_DIGEST = _TOOLCHAIN_KEY + 64 + len('","cubin_digest":"')


class NewerFormat(StoreError):
    """A manifest of a format this kreg does not know: not an error of the store, and not to be touched."""


def read_header(data: bytes, where: str) -> tuple[str, str, str]:
    """Return (spec key, toolchain key, cubin digest) of a stored manifest, proven by its own digest.

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
    text = body[: _CUBIN_DIGEST + 64].decode("ascii", "replace")
    keys = (
        text[_SPEC_KEY : _SPEC_KEY + 64],
        text[_TOOLCHAIN_KEY : _TOOLCHAIN_KEY + 64],
        text[_CUBIN_DIGEST : _CUBIN_DIGEST + 64],
    )
    if not body.startswith(_KEYS.format(*keys).encode()) or not is_hex("".join(keys)):
        raise StoreError(f"manifest {where} has no keys where they belong")
    return keys


def write_header(keys: tuple[str, str, str], fields: str) -> bytes:
    """Return a stored manifest: the two lines for ``keys``, then ``fields``, JSON members without their brace."""
    body = (_KEYS.format(*keys) + fields + "}\n").encode()
    return _OPENING + sha256(body).encode() + b'",\n' + body
