"""Why a spec is a hit or not, as ``kreg why`` and the error of a miss say it."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import entry_path, files_below, flip, object_path
from source_backend import declare

import kreg
from kreg import Artifact, Kernel, MissError, Store
from kreg.explain import BAD, DRIFT, HIT, MISMATCH, MISS, Explanation, explain
from kreg.lockfile import Lockfile, pin

ASKED = {"size": 1}


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr("kreg.sources._started", lambda: float("inf"))
    return declare(tmp_path / "sources")


def put(kernel: Kernel, store: Store, **changes: object) -> Artifact:
    """Compile a variant into a store."""
    kreg.forget()
    return kreg.resolve(kernel, **{"target": "sm_90a", "store": store, **ASKED, **changes})


def why(kernel: Kernel, store: Store, **options: object) -> Explanation:
    """Explain size 1 for sm_90a; the store must be as it was."""
    before = files_below(store.root)
    found = explain(kernel, kernel.spec("sm_90a", ASKED), store, **options)
    assert files_below(store.root) == before
    return found


def test_hit_names_its_entry(kernel: Kernel, store: Store):
    artifact = put(kernel, store)
    found = why(kernel, store)
    assert (found.result, found.near, found.command) == (HIT, (), None)
    assert found.tried == (f"store {store.root}: {entry_path(store, artifact)}",)


def test_miss_in_an_empty_store_says_what_was_tried_and_what_fixes_it(kernel: Kernel, store: Store):
    found = why(kernel, store)
    toolchain = found.tried[1].removeprefix("compiler: ")
    assert toolchain.startswith("source-compiler 1.0 (")
    assert (found.result, found.near) == (MISS, ())
    assert found.tried == (f"store {store.root}: no entry made by {toolchain}", f"compiler: {toolchain}")
    assert found.command == f"kreg warm --kernel made --target sm_90a --param size=1 --store {store.root}"


@pytest.mark.parametrize(
    ("declared", "stored", "compiler", "difference"),
    [
        ({}, {"target": "sm_120a"}, "1.0", "target sm_120a there, sm_90a asked"),
        ({}, {"size": 3}, "1.0", "size=3 there, 1 asked"),
        ({}, {"lines": True}, "1.0", "lines=true there, false asked"),
        ({}, {}, "4.7.9", "source-compiler 4.7.9 there, 1.0 here"),
        ({"version": 7}, {}, "1.0", "version 7 there, 1 declared"),
        ({"options": {"opt": 2}}, {}, "1.0", "opt=2 there, nothing declared"),
    ],
)
def test_miss_names_the_field_in_which_the_nearest_entry_differs(
    kernel: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch, declared: dict, stored: dict, compiler: str,
    difference: str,
):  # fmt: skip
    monkeypatch.setenv("FAKE_COMPILER", compiler)
    put(declare(Path(kernel.file).parent, **declared), store, **stored)
    put(kernel, store, size=2, target="sm_120a", lines=True)
    monkeypatch.delenv("FAKE_COMPILER")
    found = why(kernel, store)
    assert (found.result, found.near[0].differences) == (MISS, (difference,))
    with pytest.raises(MissError) as caught:
        put(kernel, store, policy="frozen")
    assert str(caught.value) == (
        f"no artifact for `made@1[size=1]:sm_90a` ({found.spec.key[:12]}) in `{store.root}`, and the policy is frozen; "
        f"the nearest entry differs: {difference}; run `{found.command}`"
    )


def test_nearest_entries_are_three_and_in_order(kernel: Kernel, store: Store):
    for changes in ({"size": 2, "target": "sm_120a"}, {"size": 2}, {"size": 3}, {"size": 3, "target": "sm_120a"}):
        put(kernel, store, **changes)
    assert [near.spec for near in why(kernel, store).near] == [
        "made@1[size=2]:sm_90a", "made@1[size=3]:sm_90a", "made@1[size=2]:sm_120a",
    ]  # fmt: skip


def test_bad_entry_is_named_and_left_where_it_is(kernel: Kernel, store: Store):
    artifact = put(kernel, store)
    flip(object_path(store, artifact), 50)
    found = why(kernel, store)
    assert found.result == BAD
    assert found.tried[0] == (
        f"store {store.root}: its entry is bad: its cubin {object_path(store, artifact)} does not match its digest"
    )
    flip(entry_path(store, artifact), 500)
    assert why(kernel, store).result == BAD


def test_entry_of_a_newer_kreg_is_a_miss(kernel: Kernel, store: Store):
    path = entry_path(store, put(kernel, store))
    path.write_bytes(path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    found = why(kernel, store)
    assert (found.result, found.tried[0]) == (MISS, f"store {store.root}: its entry is of a newer kreg")


def test_drift_names_the_files(kernel: Kernel, store: Store):
    put(kernel, store)
    with open(kernel.source_paths()[1], "a", encoding="utf-8") as file:
        file.write("# a comment\n")
    found = why(kernel, store)
    assert (found.result, found.tried[0]) == (DRIFT, f"store {store.root}: its entry is of other sources (shared.txt)")
    assert found.command is not None


def test_process_without_a_compiler_takes_the_only_toolchain(
    kernel: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_COMPILER", "none")
    assert why(kernel, store).tried[1] == "compiler: not installed (`pip install source-compiler`)"
    for number, version in enumerate(("1.0", "2.0")):
        monkeypatch.setenv("FAKE_COMPILER", version)
        put(kernel, store)
        monkeypatch.setenv("FAKE_COMPILER", "none")
        found = why(kernel, store)
        assert found.result == (HIT, MISS)[number]
    assert found.tried[0] == f"store {store.root}: entries of 2 toolchains, and no compiler here to choose by"


def pinned(artifact: Artifact) -> Lockfile:
    manifest = artifact.manifest
    pins = (pin(str(manifest.spec), manifest, "source"),)
    return Lockfile(toolchains={"source": manifest.toolchain}, pins=pins)


def test_lockfile_in_force_counts(kernel: Kernel, store: Store, root: str, monkeypatch: pytest.MonkeyPatch):
    artifact = put(kernel, store)
    lockfile = pinned(artifact)
    monkeypatch.setenv("FAKE_COMPILER", "none")
    found = why(kernel, store, pinned=(lockfile, lockfile.pins[0]))
    assert (found.result, found.tried[0][:30]) == (HIT, f"lockfile: pins the cubin {artifact.cubin_digest[:12]}"[:30])
    unpinned = why(kernel, store, pinned=(lockfile, None))
    assert (unpinned.result, unpinned.tried[0], unpinned.command) == (MISS, "lockfile: no pin", "kreg lock")


def test_entry_that_is_not_what_is_pinned_is_told(kernel: Kernel, store: Store):
    lockfile = pinned(put(kernel, store))
    other = put(kernel, Store(f"{store.root}-2"), size=2)
    wrong = pinned(other).pins[0]
    found = why(kernel, store, pinned=(lockfile, wrong))
    assert (found.result, found.command) == (MISMATCH, "kreg check")
