"""The first two lines of a manifest: they prove the rest."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreg.digest import sha256
from kreg.errors import StoreError
from kreg.header import NAMES, NewerFormat, read_header, write_header

KEYS = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
WHOLE = write_header(KEYS, '"kernel":"fake",\n"note":"ü"')


def test_header_is_read_back():
    assert read_header(WHOLE, "here") == KEYS


def test_header_is_the_beginning_of_one_json_object():
    digest = sha256(WHOLE.partition(b"\n")[2])
    keys = dict(zip(NAMES, KEYS, strict=True))
    assert json.loads(WHOLE) == {"manifest": 1, "digest": digest, **keys, "kernel": "fake", "note": "ü"}


def test_header_has_two_lines_of_fixed_shape():
    first, second, *_ = WHOLE.decode().splitlines()
    assert re.fullmatch(r'\{"manifest":1,"digest":"[0-9a-f]{64}",', first)
    assert re.fullmatch(
        r'"spec_key":"[0-9a-f]{64}","toolchain_key":"[0-9a-f]{64}","cubin_digest":"[0-9a-f]{64}",'
        r'"source_digest":"[0-9a-f]{64}",',
        second,
    )


def is_refused(data: bytes) -> bool:
    """Say whether a header is refused as bad."""
    try:
        read_header(data, "here")
    except StoreError as error:
        return str(error).startswith("manifest here ")
    return False


def test_header_of_a_manifest_that_is_cut_short_is_refused():
    assert [length for length in range(len(WHOLE)) if not is_refused(WHOLE[:length])] == []


def test_header_with_a_flipped_bit_is_refused():
    accepted = []
    for position in range(len(WHOLE)):
        for bit in range(8):
            data = bytearray(WHOLE)
            data[position] ^= 1 << bit
            if not is_refused(bytes(data)):
                accepted.append((position, bit))
    assert accepted == []


@pytest.mark.parametrize("number", ["2", "17", "999999999"])
def test_header_of_a_newer_format_is_another_reader_s(number: str):
    data = WHOLE.replace(b'"manifest":1', f'"manifest":{number}'.encode())
    with pytest.raises(NewerFormat, match=f"^manifest here has format {number}; this kreg reads format 1$"):
        read_header(data, "here")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\0" * 400, b'{"manifest":0,"digest":"', b'{"manifest":-2,', b'{"manifest":"2",', b"[]"]
)
def test_header_of_something_else_is_refused(data: bytes):
    with pytest.raises(StoreError, match=r"^manifest here does not begin as a manifest$") as caught:
        read_header(data, "here")
    assert not isinstance(caught.value, NewerFormat)


@pytest.mark.parametrize(
    "body",
    [
        b"{}\n",
        b"",
        b'"spec_key":"x"}\n',
        WHOLE.partition(b"\n")[2].replace(b"a" * 64, b"A" * 64),
        WHOLE.partition(b"\n")[2].replace(b"a" * 64, b"a" * 63 + b'"'),
        WHOLE.partition(b"\n")[2].replace(b"spec_key", b"spec-key"),
    ],
)
def test_header_with_a_right_digest_over_wrong_keys_is_refused(body: bytes):
    data = b'{"manifest":1,"digest":"' + sha256(body).encode() + b'",\n' + body
    with pytest.raises(StoreError, match=r"^manifest here has no keys where they belong$"):
        read_header(data, "here")


@given(st.binary(max_size=400), st.booleans())
def test_header_of_any_bytes_is_refused(data: bytes, begins_well: bool):
    with pytest.raises(StoreError):
        read_header(WHOLE[:24] + data if begins_well else data, "here")
