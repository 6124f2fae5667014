"""Compile specs, targets, and how a spec is written and read."""

from __future__ import annotations

import re

import pytest
from builders import make_spec
from hypothesis import given
from hypothesis import strategies as st

from kreg.digest import sha256
from kreg.errors import SpecError
from kreg.spec import (
    CompileSpec,
    SpecText,
    format_params,
    format_value,
    is_name,
    parse_spec_text,
    parse_target,
    parse_value,
    parse_version,
)


@pytest.mark.parametrize("target", ["sm_50", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_121a"])
def test_target_is_returned_as_it_is(target: str):
    assert parse_target(target) == target


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "target '' is not an architecture such as 'sm_90a' or 'sm_100f'"),
        ("sm_", "target 'sm_' is not an architecture"),
        ("sm_90x", "target 'sm_90x' is not an architecture"),
        ("sm_90aa", "target 'sm_90aa' is not an architecture"),
        ("sm_100af", "target 'sm_100af' is not an architecture"),
        ("sm_90a ", "target 'sm_90a ' is not an architecture"),
        (" sm_90a", "target ' sm_90a' is not an architecture"),
        ("sm_090a", "target 'sm_090a' is not an architecture"),
        ("sm_9000", "target 'sm_9000' is not an architecture"),
        ("sm_-90", "target 'sm_-90' is not an architecture"),
        ("sm_٩٠", "target 'sm_٩٠' is not an architecture"),
        ("sm90a", "target 'sm90a' is not an architecture"),
        ("sm_20", "target 'sm_20' is not an architecture"),
        ("compute_90a", "target 'compute_90a' is not an architecture"),
        (
            "SM_90A",
            "target 'SM_90A' is not an architecture such as 'sm_90a' or 'sm_100f' (did you mean 'sm_90a'?)",
        ),
        ("sm_100F", "(did you mean 'sm_100f'?)"),
        ("sm_80a", "target 'sm_80a': sm_80 has no variant with the suffix 'a'"),
        ("sm_90f", "target 'sm_90f': sm_90 has no variant with the suffix 'f'"),
        (None, "target is NoneType None; it is a string such as 'sm_90a'"),
        (90, "target is int 90; it is a string such as 'sm_90a'"),
    ],
)
def test_target_is_refused(target: object, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_target(target)


def test_target_is_not_corrected_to_another_that_is_none():
    with pytest.raises(SpecError) as caught:
        parse_target("Hopper")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("size", True), ("_x", True), ("top16", True), ("a" * 64, True), ("a" * 65, False), ("", False),
        ("Size", False), ("16top", False), ("a-b", False), ("a b", False), ("grösse", False), ("a.b", False),
    ],
)  # fmt: skip
def test_is_name_takes_lower_case_identifiers(text: str, answer: bool):
    assert is_name(text) is answer


def test_key_is_the_digest_of_the_canonical_spec():
    spec = make_spec(params={"size": 2, "mode": "good"}, options={"b": True, "a": "x"})
    text = (
        '{"kernel":"fake","options":{"a":"x","b":true},"params":{"mode":"good","size":2},'
        '"schema":1,"target":"sm_90a","version":1}'
    )
    assert spec.key == sha256(text.encode())


BASELINE = make_spec(params={"size": 2, "mode": "good"}, options={"opt_level": 3})


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "fakes"},
        {"version": 2},
        {"params": {"size": 3, "mode": "good"}},
        {"params": {"size": "2", "mode": "good"}},
        {"params": {"size": 2, "mode": "Good"}},
        {"params": {"size": 2}},
        {"params": {"size": 2, "mode": "good", "more": False}},
        {"params": {"sizes": 2, "mode": "good"}},
        {"target": "sm_90"},
        {"target": "sm_100a"},
        {"options": {"opt_level": 2}},
        {"options": {"opt_level": True}},
        {"options": {"opt_level": 3, "line_info": False}},
        {"options": None},
    ],
)
def test_key_differs_on(change: dict[str, object]):
    given_fields = {"params": {"size": 2, "mode": "good"}, "options": {"opt_level": 3}, **change}
    assert make_spec(**given_fields).key != BASELINE.key


def test_key_differs_between_true_and_one():
    assert make_spec(params={"size": True}).key != make_spec(params={"size": 1}).key


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"params": {"mode": "good", "size": 2}},
    ],
)
def test_key_is_the_same_for(change: dict[str, object]):
    given_fields = {"params": {"size": 2, "mode": "good"}, "options": {"opt_level": 3}, **change}
    assert make_spec(**given_fields).key == BASELINE.key


def test_key_does_not_see_the_order_of_options():
    one = make_spec(options={"a": 1, "b": 2})
    assert one == make_spec(options={"b": 2, "a": 1})


def test_spec_refuses_what_has_no_canonical_form():
    with pytest.raises(SpecError, match=re.escape("spec.params.size is float 2.0; a key is made of")):
        make_spec(params={"size": 2.0})


def test_spec_refuses_a_target_that_is_none():
    with pytest.raises(SpecError, match="target 'sm_90x' is not an architecture"):
        make_spec(target="sm_90x")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (make_spec(params={}), "fake@1:sm_90a"),
        (
            make_spec(kernel="all_gather_pair", params={"world_size": 2, "transport": "pull"}),
            "all_gather_pair@1[world_size=2,transport=pull]:sm_90a",
        ),
        (make_spec(version=12, params={"on": True, "off": False}), "fake@12[on=true,off=false]:sm_90a"),
        (make_spec(params={"note": "two words"}), 'fake@1[note="two words"]:sm_90a'),
        (make_spec(params={"note": ""}), 'fake@1[note=""]:sm_90a'),
    ],
)
def test_spec_is_written(spec: CompileSpec, text: str):
    assert str(spec) == text


@pytest.mark.parametrize(
    ("text", "kernel", "version", "params", "target"),
    [
        ("fake", "fake", None, (), None),
        ("fake@3", "fake", 3, (), None),
        ("fake:sm_90a", "fake", None, (), "sm_90a"),
        ("fake@3[]:sm_90a", "fake", 3, (), "sm_90a"),
        ("fake[size=2]", "fake", None, (("size", "2"),), None),
        ("fake@1[a=1,b=x]:sm_100f", "fake", 1, (("a", "1"), ("b", "x")), "sm_100f"),
        ('fake[a="x,]y",b=1]', "fake", None, (("a", '"x,]y"'), ("b", "1")), None),
        (r'fake[a="\"]",b=1]', "fake", None, (("a", r'"\"]"'), ("b", "1")), None),
        ("fake[a=b=c]", "fake", None, (("a", "b=c"),), None),
    ],
)
def test_spec_text_is_split(text: str, kernel: str, version: int | None, params: tuple[object], target: str | None):
    assert parse_spec_text(text) == SpecText(kernel=kernel, version=version, params=params, target=target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "spec '': '' is not a kernel name"),
        ("Fake", "spec 'Fake': 'Fake' is not a kernel name"),
        ("fake@", "spec 'fake@': version '' is not a whole number from 1"),
        ("fake@0", "spec 'fake@0': version '0' is not a whole number from 1"),
        ("fake@1.0", "spec 'fake@1.0': version '1.0' is not a whole number from 1"),
        ("fake@1@2", "spec 'fake@1@2': version '1@2' is not a whole number from 1"),
        ("fake[size=2", "spec 'fake[size=2': '[' is never closed"),
        ('fake[size="]', "spec 'fake[size=\"]': '[' is never closed"),
        ("fake[size]", "spec 'fake[size]': 'size' is not 'name=value'"),
        ("fake[a=1,]", "spec 'fake[a=1,]': '' is not 'name=value'"),
        ("fake[=1]", "spec 'fake[=1]': '=1' is not 'name=value'"),
        ("fake[a=1]sm_90a", "spec 'fake[a=1]sm_90a': expected ':target' after ']', found 'sm_90a'"),
        ("fake:", "target '' is not an architecture"),
        ("fake:SM_90A", "(did you mean 'sm_90a'?)"),
    ],
)
def test_spec_text_is_refused(text: str, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_spec_text(text)


@given(st.text(max_size=30))
def test_spec_text_of_any_kind_is_read_or_refused(text: str):
    try:
        parts = parse_spec_text(text)
    except SpecError:
        return
    assert is_name(parts.kernel)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("2", int, 2), ("-2", int, -2), ("007", int, 7), ("true", bool, True), ("false", bool, False),
        ("2", str, "2"), ("true", str, "true"), ("two words", str, "two words"), ('"two words"', str, "two words"),
        ('""', str, ""),
    ],
)  # fmt: skip
def test_value_is_read(text: str, kind: type, value: object):
    found = parse_value(text, kind, "here")
    assert (found, type(found)) == (value, kind)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("2.0", int, "here: '2.0' is not of type int"),
        ("", int, "here: '' is not of type int"),
        ("-", int, "here: '-' is not of type int"),
        ("1_000", int, "here: '1_000' is not of type int"),
        ("٢", int, "here: '٢' is not of type int"),
        ("9" * 5000, int, "is not of type int"),
        ("true", int, "here: 'true' is not of type int"),
        ("1", bool, "here: '1' is not of type bool"),
        ("True", bool, "here: 'True' is not of type bool"),
        ('"open', str, "here: '\"open' is not a JSON string"),
        ('"a" b', str, "here: '\"a\" b' is not a JSON string"),
    ],
)
def test_value_is_refused(text: str, kind: type, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_value(text, kind, "here")


@given(st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text())
def test_value_is_read_back_as_it_was_written(value: str | int | bool):
    assert parse_value(format_value(value), type(value), "here") == value


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 9) | st.text(max_size=8)))
def test_params_are_read_back_as_they_were_written(params: dict[str, str | int]):
    shown = tuple(params.items())
    parts = parse_spec_text(f"fake{format_params(shown)}")
    found = [(name, parse_value(text, type(params[name]), "here")) for name, text in parts.params]
    assert found == list(shown)


def test_version_is_read():
    assert parse_version("12", "x") == 12
