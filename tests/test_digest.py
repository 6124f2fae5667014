"""Canonical bytes: one form for each value, and a path for what has none."""

from __future__ import annotations

import enum
import json
import re
import unicodedata
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreg.digest import INT64_MAX, INT64_MIN, canonical, describe, is_hex, sha256
from kreg.errors import SpecError


class Number(enum.IntEnum):
    """An int that is more than an int."""

    TWO = 2


class Text(str):
    """A str that is more than a str."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("pull", '"pull"'),
        ("", '""'),
        ('say "no"', r'"say \"no\""'),
        ("back\\slash", r'"back\\slash"'),
        ("tab\t", r'"tab\t"'),
        ("Zürich", r'"Z\u00fcrich"'),
        ("😀", r'"\ud83d\ude00"'),
        (0, "0"),
        (-7, "-7"),
        (INT64_MAX, "9223372036854775807"),
        (INT64_MIN, "-9223372036854775808"),
        (True, "true"),
        (False, "false"),
        ([], "[]"),
        ([1, "a", [True]], '[1,"a",[true]]'),
        ((1, 2), "[1,2]"),
        ({}, "{}"),
        ({"b": 1, "a": {"d": [2], "c": "x"}}, '{"a":{"c":"x","d":[2]},"b":1}'),
    ],
)
def test_canonical_form(value: object, text: str):
    assert canonical(value) == text.encode()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "value is float 1.5; a key is made of str, int, bool, lists and dicts only"),
        (2.0, "value is float 2.0; a key is made of str, int, bool, lists and dicts only"),
        (float("nan"), "value is float nan; a key is made of str, int, bool, lists and dicts only"),
        (float("inf"), "value is float inf; a key is made of str, int, bool, lists and dicts only"),
        (None, "value is NoneType None; a key is made of str, int, bool, lists and dicts only"),
        (b"x", "value is bytes b'x'; a key is made of str, int, bool, lists and dicts only"),
        ({1}, "value is set {1}; a key is made of str, int, bool, lists and dicts only"),
        (1j, "value is complex 1j; a key is made of str, int, bool, lists and dicts only"),
        (Number.TWO, "value is test_digest.Number <Number.TWO: 2>; a key is made of"),
        (Text("x"), "value is test_digest.Text 'x'; a key is made of"),
        (Decimal(1), "value is decimal.Decimal Decimal('1'); a key is made of"),
        (Path("a"), "Path('a'); a key is made of"),
        (np.int64(2), "value is numpy.int64 np.int64(2); a key is made of"),
        (np.bool_(True), "value is numpy.bool np.True_; a key is made of"),
        (np.float32(2), "value is numpy.float32 np.float32(2.0); a key is made of"),
        (np.zeros(2), "value is numpy.ndarray array([0., 0.]); a key is made of"),
        (object, "value is type <class 'object'>; a key is made of"),
        (2**63, "value is an integer beyond 64 bits and cannot be part of a key"),
        (-(2**63) - 1, "value is an integer beyond 64 bits and cannot be part of a key"),
        ({"a": [0, {"b": 0.5}]}, "value.a[1].b is float 0.5; a key is made of"),
        ({"a": {1: 2}}, "value.a has a name that is int 1; names are str"),
        ({"a": {Text("x"): 2}}, "value.a has a name that is test_digest.Text 'x'; names are str"),
        ("u\u0308", r"value is the string 'u\u0308', which is not in Unicode normal form C"),
        ({"u\u0308": 1}, r"value is the string 'u\u0308', which is not in Unicode normal form C"),
        ("a\ud800", r"value is the string 'a\ud800', which holds a lone surrogate"),
    ],
)
def test_canonical_refuses_with_the_path(value: object, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        canonical(value)


def test_canonical_names_the_path_it_is_given():
    with pytest.raises(SpecError, match=re.escape("spec.params.size is float 1.0;")):
        canonical({"size": 1.0}, "spec.params")


def test_canonical_refuses_a_tensor():
    torch = pytest.importorskip("torch")
    with pytest.raises(SpecError, match=re.escape("value is torch.Tensor tensor(2); a key is made of")):
        canonical(torch.tensor(2))


TEXTS = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: unicodedata.is_normalized("NFC", text))
PLAIN = st.recursive(
    st.booleans() | st.integers(INT64_MIN, INT64_MAX) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_canonical_is_what_json_writes_with_sorted_names(value: object):
    assert canonical(value) == json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


@given(PLAIN, PLAIN)
def test_canonical_is_equal_exactly_for_equal_data(one: object, other: object):
    # repr tells True from 1, as a key must; sorted dicts, as order must not count.
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical(one) == canonical(other)) == same


def test_sha256_of_a_known_input():
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("text", "answer"), [("", True), ("09af", True), ("AF", False), ("0g", False), ("0 1", False), ("\u0663", False)]
)
def test_is_hex_knows_lower_case_digits_alone(text: str, answer: bool):
    assert is_hex(text) is answer


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "int 1"),
        ("x" * 38, f"str '{'x' * 38}'"),
        ("x" * 39, "str"),
        (np.zeros((2, 2)), "numpy.ndarray"),
    ],
)
def test_describe_shows_short_values_and_types_of_long_ones(value: object, text: str):
    assert describe(value) == text
