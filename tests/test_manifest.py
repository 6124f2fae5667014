"""Manifests: typed, one JSON object, and refused whole if anything in them does not fit."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from builders import make_manifest, make_spec
from hypothesis import given
from hypothesis import strategies as st

from kreg.errors import StoreError
from kreg.header import NAMES, read_header
from kreg.manifest import Launch, Manifest, check, decode, encode

WHOLE = encode(make_manifest())


def test_manifest_is_read_back():
    manifest = make_manifest(
        spec=make_spec(params={"size": 2, "note": "two wörds", "on": True}, options={"opt_level": 3}),
        launch=Launch(block=(1, 2, 3), grid=("rows", 2, "batch"), shared_bytes=9, cluster=(2, 1, 1)),
    )
    assert decode(encode(manifest), "here") == manifest


def test_manifest_keeps_the_types_of_its_values():
    values = {"a": 1, "b": True, "c": "1", "d": "true", "e": False, "f": 0}
    assert [(value, type(value)) for value in decode(encode(make_manifest(params=values)), "x").params.values()] == [
        (value, type(value)) for value in values.values()
    ]


def test_manifest_is_one_json_object_with_a_field_a_line():
    fields = json.loads(WHOLE)
    assert set(fields) == {"manifest", "digest", *Manifest.__struct_fields__}
    assert WHOLE.count(b"\n") == 2 + len(Manifest.__struct_fields__) - len(NAMES)
    assert WHOLE.endswith(b"}\n")


def test_manifest_is_the_same_bytes_every_time():
    assert encode(make_manifest()) == encode(decode(WHOLE, "here")) == WHOLE


def test_manifest_carries_a_header_that_fits():
    manifest = make_manifest()
    assert read_header(WHOLE, "here") == tuple(getattr(manifest, name) for name in NAMES)


def test_manifest_names_its_spec():
    spec = make_spec(params={"size": 2}, options={"opt_level": 3})
    assert make_manifest(spec=spec).spec == spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "1"}, "Expected `int`, got `str` - at `$.version`"),
        ({"registers": None}, "Expected `int`, got `null` - at `$.registers`"),
        ({"params": {"size": 1.5}}, "Expected `bool | int | str`, got `float` - at `$.params[...]`"),
        ({"launch": {"block": [1, 1], "grid": [1, 1, 1], "shared_bytes": 0}}, "at `$.launch.block`"),
        ({"parameters": [[0]]}, "Expected `array` of length 2 - at `$.parameters[0]`"),
        ({"sources": "a"}, "Expected `object`, got `str` - at `$.sources`"),
    ],
)
def test_manifest_of_the_wrong_shape_is_refused(change: dict[str, object], message: str):
    data = json.dumps({**json.loads(WHOLE), **change}).encode()
    with pytest.raises(StoreError, match=f"^manifest here is not a manifest: .*{re.escape(message)}"):
        decode(data, "here")


@pytest.mark.parametrize("name", Manifest.__struct_fields__)
def test_manifest_without_a_field_is_refused(name: str):
    fields = json.loads(WHOLE)
    del fields[name]
    with pytest.raises(StoreError, match=f"^manifest here is not a manifest: .*`{name}`"):
        decode(json.dumps(fields).encode(), "here")


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, WHOLE[:-3]])
def test_manifest_that_is_none_is_refused(data: bytes):
    with pytest.raises(StoreError, match=r"^manifest here is not a manifest: "):
        decode(data, "here")


def test_manifest_with_a_flipped_byte_is_read_or_refused():
    refused = 0
    for position in range(len(WHOLE)):
        data = bytearray(WHOLE)
        data[position] ^= 0x80
        try:
            decode(bytes(data), "here")
        except StoreError:
            refused += 1
    assert refused > len(WHOLE) // 2


@given(st.binary(max_size=200))
def test_manifest_of_any_bytes_is_refused(data: bytes):
    with pytest.raises(StoreError):
        decode(data, "here")


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(),
        make_spec(params={}),
        make_spec(params={"size": 2, "note": 'say "no"', "on": True}, options={"opt_level": -3}),
        make_spec(params={"note": "Zürich \U0001f600 / \x7f"}),
    ],
)
def test_check_accepts_a_spec_that_is_its_key(spec: object):
    check(make_manifest(spec=spec), "here")


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "fakes"},
        {"version": 2},
        {"target": "sm_100a"},
        {"params": {"size": 2}},
        {"params": {"size": True}},
        {"options": {"opt_level": 3}},
    ],
)
def test_check_refuses_a_spec_that_is_another_key(change: dict[str, object]):
    manifest = msgspec.structs.replace(make_manifest(), **change)
    with pytest.raises(StoreError, match=f"^manifest here says {re.escape(str(manifest.spec))}, which is not its spec"):
        check(manifest, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "sm_90x"}, "target 'sm_90x' is not an architecture"),
        ({"params": {"size": 2**63}}, "spec.params.size is an integer beyond 64 bits"),
        ({"params": {"note": "u\u0308"}}, "which is not in Unicode normal form C"),
    ],
)
def test_check_refuses_a_spec_that_means_nothing(change: dict[str, object], message: str):
    manifest = msgspec.structs.replace(make_manifest(), **change)
    with pytest.raises(StoreError, match=f"^manifest here holds no valid spec: .*{re.escape(message)}"):
        check(manifest, "here")
