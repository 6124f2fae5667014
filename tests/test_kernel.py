"""Declarations: plain data, checked when they are made, that gives every variant its key."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import fake_backend
import numpy as np
import pytest
from builders import HERE, make_kernel, make_param, make_spec

from kreg import Kernel, Param
from kreg.digest import sha256
from kreg.errors import DeclarationError, KregError, SpecError
from kreg.kernel import REQUIRED
from kreg.spec import parse_spec_text

KERNEL = fake_backend.KERNEL
PAIR = make_kernel(
    name="pair",
    params=(
        Param("world_size", int, allowed=range(2, 17), warm=(2, 4)),
        Param("transport", str, allowed=("pull", "push")),
        Param("traced", bool, allowed=(False, True), warm=(False,), default=False),
    ),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Size"}, "parameter name 'Size' is reserved or not a lower-case identifier"),
        ({"name": "target"}, "parameter name 'target' is reserved or not a lower-case identifier"),
        ({"name": "kernel"}, "parameter name 'kernel' is reserved"),
        ({"name": "store"}, "parameter name 'store' is reserved"),
        ({"name": "policy"}, "parameter name 'policy' is reserved"),
        ({"kind": float}, "parameter 'size' has kind type <class 'float'>; it is int, bool or str"),
        ({"allowed": (1, 2.0)}, "parameter 'size': float 2.0 is not among its allowed values"),
        ({"allowed": (1, True)}, "parameter 'size': bool True is not among its allowed values"),
        ({"allowed": ("1",)}, "parameter 'size': str '1' is not among its allowed values"),
        ({"warm": (1, 3)}, "parameter 'size': int 3 is not among its allowed values"),
        ({"warm": (True,)}, "parameter 'size': bool True is not among its allowed values"),
        ({"default": 3}, "parameter 'size': int 3 is not among its allowed values"),
        ({"default": None}, "parameter 'size': NoneType None is not among its allowed values"),
        ({"default": 1.0}, "parameter 'size': float 1.0 is not among its allowed values"),
    ],
)
def test_param_is_refused(change: dict[str, object], message: str):
    with pytest.raises(DeclarationError, match=re.escape(message)):
        make_param(**change)


def test_param_warms_all_that_is_allowed_unless_told_otherwise():
    assert make_param().warm == (1, 2, 4)
    assert make_param(warm=(4,)).warm == (4,)
    assert make_param(warm=()).warm == ()
    assert make_param().default is REQUIRED


@pytest.mark.parametrize(
    ("param", "value", "message"),
    [
        (make_param(), 2.0, "here: size is float 2.0; it takes int"),
        (make_param(), float("nan"), "here: size is float nan; it takes int"),
        (make_param(), True, "here: size is bool True; it takes int"),
        (make_param(), "2", "here: size is str '2'; it takes int"),
        (make_param(), None, "here: size is NoneType None; it takes int"),
        (make_param(), {2}, "here: size is set {2}; it takes int"),
        (make_param(), [2], "here: size is list [2]; it takes int"),
        (make_param(), Fraction(2), "here: size is fractions.Fraction Fraction(2, 1); it takes int"),
        (make_param(), np.int64(2), "here: size is numpy.int64 np.int64(2); it takes int"),
        (make_param(), np.array([2]), "here: size is numpy.ndarray array([2]); it takes int"),
        (make_param(), 3, "here: size=3 is not one of 1, 2, 4"),
        (make_param(kind=bool, allowed=(True, False)), 1, "here: size is int 1; it takes bool"),
        (make_param(kind=bool, allowed=(True, False)), np.True_, "here: size is numpy.bool np.True_; it takes bool"),
        (make_param(kind=str, allowed=("pull", "push")), 2, "here: size is int 2; it takes str"),
        (
            make_param(kind=str, allowed=("pull", "push")),
            "pul",
            "here: size=pul is not one of pull, push (did you mean 'pull'?)",
        ),
        (make_param(kind=str, allowed=("pull", "push")), "zzz", "here: size=zzz is not one of pull, push"),
    ],
)
def test_value_is_refused(param: Param, value: object, message: str):
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        param.check(value, "here")


def test_value_that_is_a_tensor_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(SpecError, match=re.escape("here: size is torch.Tensor tensor(2); it takes int")):
        make_param().check(torch.tensor(2), "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Fake"}, "kernel name 'Fake' is not a lower-case ASCII identifier of 64 at most"),
        ({"name": "a" * 65}, "is not a lower-case ASCII identifier of 64 at most"),
        ({"name": "fake-1"}, "kernel name 'fake-1' is not"),
        ({"name": 7}, "kernel name 7 is not"),
        ({"version": 0}, "fake: version is int 0; it is a whole number from 1"),
        ({"version": True}, "fake: version is bool True; it is a whole number from 1"),
        ({"version": 1.0}, "fake: version is float 1.0; it is a whole number from 1"),
        ({"version": "1"}, "fake: version is str '1'; it is a whole number from 1"),
        ({"version": 10**9}, "fake: version is int 1000000000; it is a whole number from 1"),
        ({"params": (make_param(), make_param())}, "fake@1: the same parameter is declared twice"),
        ({"targets": ("sm_90a", "sm_90a")}, "fake@1: the same target is declared twice"),
        ({"targets": ()}, "fake@1 declares no target or no source file"),
        ({"sources": ()}, "fake@1 declares no target or no source file"),
        ({"targets": ("sm_90x",)}, "target 'sm_90x' is not an architecture"),
        ({"options": {"fast": 0.5}}, "fake: option 'fast' is float 0.5; it is an int, bool or str"),
    ],
)
def test_declaration_is_refused(change: dict[str, object], message: str):
    with pytest.raises(KregError, match=re.escape(message)):
        make_kernel(**change)


def test_declaration_is_a_value():
    assert make_kernel() == KERNEL
    assert make_kernel(version=2) != KERNEL
    assert len({make_kernel(), KERNEL}) == 1


def test_declaration_knows_its_folder_however_it_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(HERE)
    assert make_kernel(file="fake_backend.py") == KERNEL


@pytest.mark.parametrize(
    ("target", "params", "text"),
    [
        ("sm_90a", {"world_size": 3, "transport": "push"}, "pair@1[world_size=3,transport=push]:sm_90a"),
        ("sm_100a", {"transport": "pull", "world_size": 2}, "pair@1[world_size=2,transport=pull]:sm_100a"),
        (
            "sm_90a",
            {"world_size": 2, "transport": "pull", "traced": True},
            "pair@1[world_size=2,transport=pull,traced=true]:sm_90a",
        ),
        (
            "sm_90a",
            {"traced": False, "world_size": 2, "transport": "pull"},
            "pair@1[world_size=2,transport=pull]:sm_90a",
        ),
    ],
)
def test_spec_has_the_declared_order_and_no_defaults(target: str, params: dict[str, object], text: str):
    assert str(PAIR.spec(target, params)) == text


@pytest.mark.parametrize(
    ("target", "params", "message"),
    [
        ("sm_90a", {"world_size": 2}, "pair@1 needs the parameter transport (one of pull, push)"),
        (
            "sm_90a",
            {"wrld_size": 2, "transport": "pull"},
            (
                "pair@1 has no parameter 'wrld_size' (did you mean 'world_size'?); "
                "its parameters are world_size, transport, traced"
            ),
        ),
        ("sm_90a", {"world_size": 17, "transport": "pull"}, "pair@1: world_size=17 is not one of 2, 3, 4,"),
        ("sm_90a", {"world_size": 2.0, "transport": "pull"}, "pair@1: world_size is float 2.0; it takes int"),
        ("sm_90a", {"world_size": 2, "transport": "Pull"}, "pair@1: transport=Pull is not one of pull, push (did"),
        (
            "sm_90",
            {"world_size": 2, "transport": "pull"},
            "pair@1 is declared for sm_90a, sm_100a, sm_120a, not for sm_90 (did you mean 'sm_90a'?)",
        ),
        ("sm_90x", {}, "target 'sm_90x' is not an architecture"),
        ("", {}, "target '' is not an architecture"),
        (None, {}, "target is NoneType None; it is a string such as 'sm_90a'"),
    ],
)
def test_spec_is_refused(target: object, params: dict[str, object], message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        PAIR.spec(target, params)


def test_spec_of_a_kernel_without_parameters_says_that_it_has_none():
    with pytest.raises(SpecError, match=re.escape("fake@1 has no parameter 'size'; it has no parameters")):
        make_kernel(params=()).spec("sm_90a", {"size": 1})


def test_arguments_have_every_parameter():
    spec = PAIR.spec("sm_90a", {"world_size": 2, "transport": "pull"})
    assert PAIR.arguments(spec) == {"world_size": 2, "transport": "pull", "traced": False}


def test_specs_are_the_warmed_ones_for_every_target():
    texts = [str(spec) for spec in PAIR.specs()]
    assert texts[:5] == [
        "pair@1[world_size=2,transport=pull]:sm_90a",
        "pair@1[world_size=2,transport=push]:sm_90a",
        "pair@1[world_size=4,transport=pull]:sm_90a",
        "pair@1[world_size=4,transport=push]:sm_90a",
        "pair@1[world_size=2,transport=pull]:sm_100a",
    ]
    assert len(set(texts)) == len(texts) == 12
    assert len(list(PAIR.specs(["sm_90a"]))) == 4


@pytest.mark.parametrize(
    ("text", "target", "written"),
    [
        ("pair[transport=pull,world_size=2]:sm_90a", None, "pair@1[world_size=2,transport=pull]:sm_90a"),
        ("pair@1[world_size=2,transport=pull]", "sm_100a", "pair@1[world_size=2,transport=pull]:sm_100a"),
        ("pair[world_size=2,transport=pull]:sm_90a", "sm_100a", "pair@1[world_size=2,transport=pull]:sm_90a"),
        (
            "pair[world_size=2,transport=pull,traced=true]:sm_90a",
            None,
            "pair@1[world_size=2,transport=pull,traced=true]:sm_90a",
        ),
    ],
)
def test_text_is_given_its_meaning(text: str, target: str | None, written: str):
    assert str(PAIR.parse(parse_spec_text(text), target)) == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pair@2[world_size=2,transport=pull]:sm_90a", "pair@2 is not declared; the declared version is 1"),
        ("pair[world_size=2,transport=pull]", "pair@1 needs a target, one of sm_90a, sm_100a, sm_120a"),
        ("pair[world_size=2,world_size=2,transport=pull]:sm_90a", "pair@1: world_size is given twice"),
        ("pair[world_size=two,transport=pull]:sm_90a", "pair@1: world_size: 'two' is not of type int"),
        ("pair[world_size=2,transport=pull,traced=1]:sm_90a", "pair@1: traced: '1' is not of type bool"),
        ("pair[size=2]:sm_90a", "pair@1 has no parameter 'size'"),
    ],
)
def test_text_is_refused(text: str, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        PAIR.parse(parse_spec_text(text))


@pytest.mark.parametrize("spec", [*KERNEL.specs(), KERNEL.spec("sm_90a", {"size": 3, "note": "two words"})])
def test_text_of_a_spec_is_read_back(spec: object):
    assert KERNEL.parse(parse_spec_text(str(spec))) == spec


def test_source_digest_is_over_names_and_contents(tmp_path: Path):
    (tmp_path / "a.py").write_bytes(b"one")
    (tmp_path / "b.py").write_bytes(b"two")
    kernel = make_kernel(file=str(tmp_path / "declared.py"), sources=("a.py", "b.py"))
    assert kernel.source_digest() == sha256(f'{{"a.py":"{sha256(b"one")}","b.py":"{sha256(b"two")}"}}'.encode())
    before = kernel.source_digest()
    (tmp_path / "b.py").write_bytes(b"two # with a comment")
    assert kernel.source_digest() != before
    assert kernel.spec("sm_90a", {"size": 1}) == make_spec()


def test_source_that_is_missing_is_named(tmp_path: Path):
    kernel = make_kernel(file=str(tmp_path / "declared.py"), sources=("../gone.py",))
    with pytest.raises(DeclarationError) as caught:
        kernel.source_digest()
    path = tmp_path.parent / "gone.py"
    assert str(caught.value) == f"fake@1 declares the source '../gone.py', but {path} is not a file"


def test_source_that_is_a_folder_is_refused(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(DeclarationError, match=r"folder is not a file$"):
        make_kernel(file=str(tmp_path / "declared.py"), sources=("folder",)).source_paths()


def test_baseline_of_these_tests_is_the_fake_kernel():
    assert isinstance(KERNEL, Kernel)
    assert KERNEL.spec("sm_90a", {"size": 1}) == make_spec()
