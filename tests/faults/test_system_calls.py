"""Every system call of the store fails once, in every way a file system can fail it.

Whatever fails: the kernel is there, there is at most one warning, no entry is torn, and no temporary file stays. The
calls are counted on a run in which none fails, so that a call that is added is a call that is tested.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acts import ACTS, Place, begin, check
from builders import make_artifact, resolve_anew, warnings_of
from calls import FAILURES, count_calls, fail_at
from fake_backend import KERNEL

import kreg
from kreg import Store
from kreg.build import compile_artifact
from kreg.selector import Selector
from kreg.sweep import leftovers
from kreg.upkeep import verify

ERRORS = (*FAILURES, errno.ENOENT)


def nothing(_: str) -> None:
    """Begin without a store."""


def other_entries(root: str) -> None:
    """Begin with a store that holds something else."""
    Store(root).publish(make_artifact(9))


def the_entry(root: str) -> None:
    """Begin with a store that holds what will be asked for."""
    resolve_anew(root)


def a_bad_entry(root: str) -> None:
    """Begin with a store whose entry is torn."""
    the_entry(root)
    path = next(iter(Store(root).entry_files()))
    Path(path).write_bytes(Path(path).read_bytes()[:-9])


def the_entry_unused_for_long(root: str) -> None:
    """Begin with an entry whose use a read will mark."""
    the_entry(root)
    path = next(iter(Store(root).entry_files()))
    os.utime(path, (0, 0))


@pytest.mark.parametrize("error", ERRORS, ids=[errno.errorcode[number] for number in ERRORS])
@pytest.mark.parametrize("begin", [nothing, other_entries, the_entry, a_bad_entry, the_entry_unused_for_long])
def test_call_that_fails_once_costs_a_warning_at_most(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[str], None], error: int
):
    monkeypatch.setenv("KREG_WAIT", "0.05")
    begin(root)
    kept = str(tmp_path / "kept")
    if os.path.exists(root):
        shutil.copytree(root, kept)
    said: list[str] = []
    calls = count_calls(root, lambda: said.extend(warnings_of(lambda: resolve_anew(root))[1]))
    expected = compile_artifact(KERNEL, KERNEL.spec("sm_90a", {"size": 1}))
    is_bad = begin is a_bad_entry
    assert len(said) == is_bad
    assert len(calls) > 3
    for number in range(1, len(calls) + 1):
        shutil.rmtree(root, ignore_errors=True)
        if os.path.exists(kept):
            shutil.copytree(kept, root)
        what = f"{errno.errorcode[error]} at call {number}, {calls[number - 1]}, of {calls}"
        try:
            found, said = fail_at(root, number, error, lambda: warnings_of(lambda: resolve_anew(root)))
        except Exception as raised:
            raise AssertionError(what) from raised
        assert found.cubin == expected.cubin, what
        assert len(said) <= 1 + is_bad, (what, said)
        check_whole(root, what)
        # And the next process has a store as good as new.
        found, said = warnings_of(lambda: resolve_anew(root))
        assert (found.cubin, len(said) <= is_bad) == (expected.cubin, True), (what, said)
        assert resolve_anew(root).origin != "compiled", what


def check_whole(root: str, what: str) -> None:
    """Check that no entry is torn, but for one that was found bad and could not be set aside, and nothing is left."""
    store = Store(root)
    if not store.is_marked():
        return
    bad = [finding.reason for finding in verify(store, Selector(), kreg.REGISTRY).findings]
    assert all("does not match its own digest" in reason for reason in bad), (what, bad)
    left = [path for path in leftovers(store) if "/quarantine/" not in path and "/objects-v1/" not in path]
    assert left == [], what


def test_calls_of_every_kind_are_reached(root: str):
    # A harness that counts nothing would pass everything.
    made = set(count_calls(root, lambda: resolve_anew(root)))
    os.utime(next(iter(Store(root).entry_files())), (0, 0))
    made |= set(count_calls(root, lambda: resolve_anew(root)))
    Path(next(iter(Store(root).entry_files()))).write_bytes(b"torn")
    with pytest.warns(kreg.KregWarning):
        made |= set(count_calls(root, lambda: resolve_anew(root)))
    assert made >= {
        "open", "read", "write", "fsync", "close", "fstat", "stat", "rename", "makedirs", "flock", "utime", "lstat",
    }  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=[errno.errorcode[number] for number in ERRORS])
@pytest.mark.parametrize("name", ACTS)
def test_act_whose_call_fails_says_so_and_can_be_repeated(tmp_path: Path, name: str, error: int, is_long: bool):
    place = Place(tmp_path)
    begin(place, name)
    calls = count_calls(place.folder, lambda: ACTS[name](place))
    chosen = range(1, len(calls) + 1) if is_long else range(1 + error % 5, len(calls) + 1, 5)
    for number in chosen:
        if error == errno.ENOENT and calls[number - 1] in {"open", "unlink", "lstat", "stat"}:
            continue  # That is no failure: the file is not there, says the system.
        begin(place, name)
        what = f"{name}, {errno.errorcode[error]} at call {number}, {calls[number - 1]}, of {calls}"
        try:
            fail_at(place.folder, number, error, lambda: ACTS[name](place))
        except kreg.KregError as raised:
            said = str(raised)
        except Exception as raised:
            raise AssertionError(what) from raised
        else:
            said = place.folder
        assert place.folder in said, what
        left = check(place, what)
        assert not [path for path in left if "/store/tmp/" in path] or calls[number - 1] == "unlink", (what, left)
        begin(place, name)
        ACTS[name](place)


@pytest.mark.parametrize("name", ["write", "read"])
def test_calls_that_do_a_part_of_what_they_were_asked_are_repeated(
    root: str, monkeypatch: pytest.MonkeyPatch, name: str
):
    real = getattr(os, name)

    def part(descriptor: int, what: Any) -> Any:
        return real(descriptor, what[:7] if isinstance(what, memoryview) else min(what, 7) if name == "read" else what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, part)
        compiled = resolve_anew(root)
        found = resolve_anew(root)
    assert (found.cubin, found.manifest_bytes) == (compiled.cubin, compiled.manifest_bytes)
    assert found.origin != "compiled"
    check_whole(root, name)
