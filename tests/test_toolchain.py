"""Toolchains: what is installed, without importing it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
from builders import TOOLCHAIN

from kreg.backends.cute import DISTRIBUTIONS
from kreg.toolchain import Toolchain, installed_versions


def install(folder: Path, *names: str) -> str:
    """Make a folder that looks as if these distributions were installed in it."""
    for name in names:
        (folder / f"{name}.dist-info").mkdir(parents=True)
        stem, _, version = name.partition("-")
        (folder / f"{name}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {stem}\nVersion: {version}\n"
        )
    return str(folder)


def from_metadata(names: list[str], path: list[str]) -> dict[str, str]:
    """Return what ``importlib.metadata`` says of these distributions."""
    found = {}
    for name in names:
        for distribution in importlib.metadata.distributions(name=name, path=path):
            found[name] = distribution.version
            break
    return found


def test_versions_of_the_compilers_are_those_of_importlib_metadata():
    assert installed_versions(DISTRIBUTIONS) == from_metadata(list(DISTRIBUTIONS), sys.path)


def test_versions_of_everything_installed_are_those_of_importlib_metadata():
    names = sorted({distribution.name for distribution in importlib.metadata.distributions()})
    assert len(names) > 5
    assert installed_versions(names) == from_metadata(names, sys.path)


def test_first_on_the_path_wins(tmp_path: Path):
    one = install(tmp_path / "one", "compiler-1.0", "other-5")
    two = install(tmp_path / "two", "compiler-2.0", "passes-3.1+cpu")
    names = ["compiler", "passes", "absent"]
    assert installed_versions(names, [one, two]) == {"compiler": "1.0", "passes": "3.1+cpu"}
    assert installed_versions(names, [two, one]) == {"compiler": "2.0", "passes": "3.1+cpu"}
    assert installed_versions(names, [one, two]) == from_metadata(names, [one, two])


@pytest.mark.parametrize("written", ["Some_Compiler-4.8.1", "some.compiler-4.8.1", "some_compiler-4.8.1"])
def test_names_are_compared_as_the_package_index_does(tmp_path: Path, written: str):
    folder = install(tmp_path, written)
    assert installed_versions(["some-compiler"], [folder]) == {"some-compiler": "4.8.1"}


def test_empty_path_entry_is_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "compiler-1.0")
    monkeypatch.chdir(tmp_path)
    assert installed_versions(["compiler"], [""]) == {"compiler": "1.0"}


def test_path_entries_that_are_no_folders_are_passed_over(tmp_path: Path):
    (tmp_path / "archive.zip").write_bytes(b"PK")
    folder = install(tmp_path / "folder", "compiler-1.0")
    paths = [f"{tmp_path}/archive.zip", f"{tmp_path}/nowhere", folder]
    assert installed_versions(["compiler"], paths) == {"compiler": "1.0"}


def test_answer_does_not_depend_on_the_order_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A broken upgrade leaves two versions of one distribution side by side.
    folder = install(tmp_path, "compiler-1.0", "compiler-2.0")
    listed = sorted(os.listdir(folder))
    answers = []
    for names in (listed, listed[::-1]):
        monkeypatch.setattr(os, "listdir", lambda _, names=names: list(names))
        answers.append(installed_versions(["compiler"], [folder]))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "change",
    [
        {"backend": "other"},
        {"distributions": {"fake-compiler": "1.0.1"}},
        {"distributions": {"fake-compiler": "1.0", "passes": "1.0"}},
        {"distributions": {"fake_compiler": "1.0"}},
    ],
)
def test_fingerprint_differs_on(change: dict[str, object]):
    fields = {"backend": "fake", "distributions": {"fake-compiler": "1.0"}}
    assert Toolchain(**{**fields, **change}).fingerprint != TOOLCHAIN.fingerprint


def test_fingerprint_does_not_see_the_order_of_distributions():
    one = Toolchain(backend="fake", distributions={"a": "1", "b": "2"})
    assert one == Toolchain(backend="fake", distributions={"b": "2", "a": "1"})
    assert str(one) == "a 1, b 2"


def test_fingerprint_is_pinned():
    # Another value means that every entry of every store has a new key: a breaking change.
    assert TOOLCHAIN.fingerprint == "31cc26eee66b4d0c73c689d6f8e0b50bc7d4003c16bcd9991b22f932f24214e0"
