"""Entries and selectors: what a store holds, and which part of it is meant."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from builders import (
    OTHER_TOOLCHAIN,
    entry_path,
    flip,
    make_artifact,
    make_kernel,
    make_manifest,
    make_spec,
    raises_os_error,
)
from fake_backend import KERNEL

from kreg import Param, Registry, Store
from kreg.errors import SpecError
from kreg.header import write_header
from kreg.inventory import entries, select, spec_text
from kreg.selector import Selector, is_stale

PAIR = make_kernel(
    name="pair",
    version=3,
    params=(
        Param("size", int, allowed=(1, 2, 3, 100), warm=(1, 2)),
        Param("transport", str, allowed=("pull", "push")),
    ),
    targets=("sm_90a", "sm_120a"),
)
REGISTRY = Registry([KERNEL, PAIR], discover=False)


def chosen(**texts: list[str]) -> list[str]:
    """Return the specs that a selector means, as texts."""
    return [str(spec) for _, spec in Selector(**texts).specs(REGISTRY)]


def test_specs_of_no_selector_are_all_that_is_warmed():
    assert chosen() == [str(spec) for kernel in (KERNEL, PAIR) for spec in kernel.specs()]


@pytest.mark.parametrize(
    ("texts", "specs"),
    [
        (
            {"kernels": ["fake"], "targets": ["sm_90a"]},
            ["fake@1[size=1]:sm_90a", "fake@1[size=2]:sm_90a"],
        ),
        (
            {"kernels": ["fake@1"], "params": ["size=1"], "targets": ["sm_90a", "sm_120a"]},
            ["fake@1[size=1]:sm_90a", "fake@1[size=1]:sm_120a"],
        ),
        (
            {"kernels": ["pair"], "params": ["size=2", "size=1", "transport=push"], "targets": ["sm_120a"]},
            ["pair@3[size=2,transport=push]:sm_120a", "pair@3[size=1,transport=push]:sm_120a"],
        ),
        # A value that is named need not be one that is warmed.
        (
            {"params": ["size=3", "transport=pull"]},
            ["pair@3[size=3,transport=pull]:sm_90a", "pair@3[size=3,transport=pull]:sm_120a"],
        ),
        # A kernel that lacks what is named is not meant.
        ({"targets": ["sm_100a"]}, ["fake@1[size=1]:sm_100a", "fake@1[size=2]:sm_100a"]),
        ({"params": ["note=two words", "size=1"], "targets": ["sm_90a"]}, ['fake@1[size=1,note="two words"]:sm_90a']),
        ({"params": ['note="two words"', "size=1"], "targets": ["sm_90a"]}, ['fake@1[size=1,note="two words"]:sm_90a']),
        (
            {"params": ["size=100"]},
            [f"pair@3[size=100,transport={way}]:{target}" for target in PAIR.targets for way in ("pull", "push")],
        ),
    ],
)
def test_specs_of_a_selector(texts: dict[str, list[str]], specs: list[str]):
    assert chosen(**texts) == specs


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"kernels": ["fak"]}, "no kernel is called 'fak' (did you mean 'fake'?); known: fake, pair"),
        ({"kernels": ["fake@2"]}, "fake@2 is not declared; the declared version is 1"),
        ({"kernels": ["fake@one"]}, "spec 'fake@one': version 'one' is not a whole number from 1"),
        ({"kernels": ["fake@"]}, "spec 'fake@': version '' is not a whole number from 1"),
        ({"targets": ["sm_90"]}, "no selected kernel is declared for sm_90 (did you mean 'sm_90a'?)"),
        ({"targets": ["sm_90x"]}, "target 'sm_90x' is not an architecture"),
        ({"params": ["sise=1"]}, "no selected kernel has a parameter 'sise' (did you mean 'size'?)"),
        ({"params": ["size"]}, "'size' is not 'name=value'"),
        ({"params": ["=1"]}, "'=1' is not 'name=value'"),
        ({"params": ["size="]}, "'size=' is not 'name=value'"),
        ({"kernels": ["fake"], "params": ["size=100"]}, "fake@1: size=100 is not one of 1, 2, 3"),
        ({"params": ["size=77"]}, "size=77 is not one of"),
        ({"params": ["size=x"]}, "size: 'x' is not of type int"),
        ({"params": ["transport=pul"]}, "pair@3: transport=pul is not one of pull, push (did you mean 'pull'?)"),
        ({"params": ["note=plain", "transport=pull"]}, "no declared variant matches all selectors"),
        ({"kernels": ["pair"], "targets": ["sm_100a"]}, "no selected kernel is declared for sm_100a"),
    ],
)
def test_selector_that_means_nothing_is_refused(texts: dict[str, list[str]], message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        chosen(**texts)


def test_selector_is_true_if_it_says_anything():
    assert not Selector()
    for texts in ({"kernels": ["fake"]}, {"targets": ["sm_90a"]}, {"params": ["size=1"]}):
        assert Selector(**texts)


@pytest.fixture
def mixed(store: Store) -> Store:
    """Return a store with entries of several kernels, versions, targets and toolchains."""
    for spec in (
        make_spec(params={"size": 2}),
        make_spec(params={"size": 10}),
        make_spec(params={"size": 1, "note": "two words"}),
        make_spec(params={"size": 1}, target="sm_100a"),
        make_spec(kernel="pair", version=3, params={"size": 1, "transport": "pull"}),
        make_spec(kernel="pair", version=2, params={"size": 1, "transport": "pull"}),
        make_spec(kernel="gone", params={}),
    ):
        store.publish(make_artifact(spec=spec))
    store.publish(make_artifact(spec=make_spec(params={"size": 2}), toolchain_key=OTHER_TOOLCHAIN.fingerprint))
    return store


def found(store: Store, **texts: list[str]) -> list[str]:
    """Return the specs of the entries that a selector means."""
    return [spec_text(entry.manifest) for entry in select(store, Selector(**texts), REGISTRY)]


def test_entries_are_ordered_as_people_count(mixed: Store):
    assert found(mixed) == [
        "fake@1[size=1]:sm_100a",
        'fake@1[size=1,note="two words"]:sm_90a',
        "fake@1[size=2]:sm_90a",
        "fake@1[size=2]:sm_90a",
        "fake@1[size=10]:sm_90a",
        "gone@1:sm_90a",
        "pair@2[size=1,transport=pull]:sm_90a",
        "pair@3[size=1,transport=pull]:sm_90a",
    ]


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        ({"kernels": ["fake"]}, 5),
        ({"kernels": ["pair"]}, 2),
        ({"kernels": ["pair@2"]}, 1),
        ({"kernels": ["pair@3", "gone"]}, 2),
        ({"kernels": ["pair@9"]}, 0),
        ({"targets": ["sm_100a"]}, 1),
        ({"targets": ["sm_100a", "sm_90a"]}, 8),
        ({"targets": ["sm_120a"]}, 0),
        ({"params": ["size=1"]}, 4),
        ({"params": ["size=1", "size=2"]}, 6),
        ({"params": ["size=1", "transport=pull"]}, 2),
        ({"params": ["note=two words"]}, 1),
        ({"params": ['note="two words"']}, 1),
        ({"params": ["size=01"]}, 4),
        # A declared default is what an entry means that does not mention it; a stale entry has none.
        ({"params": ["note=plain"]}, 4),
        ({"params": ["colour=red"]}, 0),
        ({"kernels": ["fake"], "targets": ["sm_90a"], "params": ["size=2"]}, 2),
    ],
)
def test_entries_of_a_selector(mixed: Store, texts: dict[str, list[str]], count: int):
    assert len(found(mixed, **texts)) == count


def test_kernel_that_nobody_knows_is_refused(mixed: Store):
    with pytest.raises(SpecError, match=re.escape("no kernel is called 'gon'; known: fake, pair")):
        found(mixed, kernels=["gon"])
    assert found(mixed, kernels=["gone"]) == ["gone@1:sm_90a"]


def test_entries_of_a_store_that_is_not_there_are_none(store: Store):
    assert list(entries(store)) == []
    assert found(store) == []


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({}, False),
        ({"params": {"size": 64, "note": "bright"}}, False),
        ({"version": 2}, True),
        ({"kernel": "gone"}, True),
        ({"target": "sm_90"}, True),
        ({"params": {"size": 65}}, True),
        ({"params": {"size": 1, "gone": 1}}, True),
        ({"params": {"size": True}}, True),
        ({"params": {"size": "1"}}, True),
        ({"options": {"opt_level": 2}}, True),
    ],
)
def test_stale_is_what_the_registry_does_not_declare(change: dict[str, object], answer: bool):
    assert is_stale(make_manifest(**change), REGISTRY) is answer


def test_entry_without_a_parameter_that_is_required_by_now_is_stale():
    assert is_stale(make_manifest(params={}), REGISTRY)


def test_entry_that_spells_out_a_default_is_stale():
    # Its key is no longer asked for by anybody.
    assert is_stale(make_manifest(params={"size": 1, "note": "plain"}), REGISTRY)


def test_stale_sees_the_options_of_the_declaration():
    registry = Registry([make_kernel(options={"opt_level": 2})], discover=False)
    assert is_stale(make_manifest(), registry)
    assert not is_stale(make_manifest(options={"opt_level": 2}), registry)


def test_entry_has_size_and_time(full: Store):
    artifact = make_artifact(1)
    path = entry_path(full, artifact)
    os.utime(path, (1000.5, 2000.5))
    entry = next(entry for entry in entries(full) if entry.path == str(path))
    assert (entry.size, entry.modified, entry.problem) == (len(artifact.manifest_bytes), 2000.5, None)
    assert entry.manifest == artifact.manifest


def problems(store: Store) -> list[str]:
    """Return what is wrong with the entries of a store that cannot be read."""
    return [str(entry.problem) for entry in entries(store) if entry.manifest is None]


def test_entry_that_is_damaged_is_listed_with_its_problem(full: Store):
    path = entry_path(full, make_artifact(1))
    flip(path, 500)
    assert problems(full) == [f"manifest {path} does not match its own digest"]
    assert len(list(entries(full))) == 2
    assert len(found(full)) == 1


def test_entry_that_is_no_file_is_listed_with_its_problem(full: Store):
    path = entry_path(full, make_artifact(1))
    path.unlink()
    os.mkfifo(path)
    assert problems(full) == [f"{path} is not a regular file"]


def test_entry_of_a_newer_format_is_told_apart(full: Store):
    path = entry_path(full, make_artifact(1))
    path.write_bytes(path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    assert [entry.is_newer for entry in entries(full)].count(True) == 1


def test_entry_whose_fields_contradict_its_header_is_listed_with_its_problem(full: Store):
    # JSON parsers take the last of two fields of one name; the header is the first.
    artifact = make_artifact(1)
    fields = artifact.manifest_bytes.split(b"\n", 2)[2].decode().rstrip().removesuffix("}")
    keys = (artifact.key, artifact.toolchain_key, artifact.cubin_digest, artifact.source_digest)
    path = entry_path(full, artifact)
    path.write_bytes(write_header(keys, f'{fields},\n"cubin_digest":"{"/../" * 4}"'))
    assert len(problems(full)) == 1


def test_entry_that_vanishes_meanwhile_is_passed_over(full: Store):
    listed = entries(full)
    first = next(listed)
    for path in list(full.entry_files()):
        if path != first.path:
            os.unlink(path)
    assert list(listed) == []


def test_entry_that_cannot_be_read_is_listed_with_its_problem(full: Store, monkeypatch: pytest.MonkeyPatch):
    path = str(entry_path(full, make_artifact(1)))
    monkeypatch.setattr(os, "open", raises_os_error(5, lambda opened, *_: opened == path, os.open))
    assert problems(full) == [f"cannot read {path}: Input/output error"]


def test_files_that_are_no_manifests_are_passed_over(full: Store):
    folder = entry_path(full, make_artifact(1)).parent
    (folder / "notes.txt").write_text("mine")
    Path(full.root, "entries-v1", "loose.json").write_text("mine")
    assert len(list(entries(full))) == 2
