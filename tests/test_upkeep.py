"""Upkeep: verify finds what is bad, clear removes what is named and nothing else."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import (
    OTHER_TOOLCHAIN,
    entry_path,
    files_below,
    flip,
    make_artifact,
    make_manifest,
    make_spec,
    object_path,
    raises_os_error,
    read_spec,
)
from fake_backend import KERNEL
from tiny_elf import make_cubin

from kreg import Artifact, Registry, Store
from kreg.build import compile_artifact
from kreg.errors import SpecError, StoreError
from kreg.inventory import entries
from kreg.keylock import FileLock
from kreg.manifest import encode
from kreg.selector import Selector
from kreg.upkeep import Finding, Verifier, clear, plan_clear, plan_clear_all, verify

ONE, TWO = make_artifact(1), make_artifact(2)


def findings(store: Store) -> list[Finding]:
    """Return what is wrong with a store."""
    verifier = Verifier(store)
    return [finding for finding in map(verifier.check, entries(store)) if finding is not None]


def only_reason(store: Store) -> str:
    """Return the reason of the only finding, which must name the entry of size 1."""
    (finding,) = findings(store)
    assert finding.path == str(entry_path(store, ONE))
    return finding.reason


def test_verify_finds_nothing_in_a_sound_store(full: Store):
    assert findings(full) == []
    assert findings(Store(f"{full.root}-absent")) == []


def test_verify_finds_a_changed_bit_anywhere_in_a_manifest(full: Store):
    path = entry_path(full, ONE)
    unseen = []
    for position in range(0, len(ONE.manifest_bytes), 13):
        flip(path, position)
        if len(findings(full)) != 1:
            unseen.append(position)
        flip(path, position)
    assert unseen == []


def test_verify_finds_a_changed_bit_anywhere_in_a_cubin(full: Store):
    path = object_path(full, ONE)
    unseen = []
    for position in range(0, len(ONE.cubin), 13):
        flip(path, position)
        if len(findings(full)) != 1:
            unseen.append(position)
        flip(path, position)
    assert unseen == []


def test_verify_names_entry_spec_and_reason(full: Store):
    flip(object_path(full, ONE), 100)
    path = str(entry_path(full, ONE))
    reason = f"its cubin {object_path(full, ONE)} does not match its digest"
    assert findings(full) == [Finding(path=path, spec="fake@1[size=1]:sm_90a", reason=reason)]


def test_verify_finds_a_cubin_that_is_missing(full: Store):
    object_path(full, ONE).unlink()
    assert only_reason(full) == f"its cubin {object_path(full, ONE)} is missing"


def test_verify_finds_a_cubin_that_is_no_file(full: Store):
    object_path(full, ONE).unlink()
    os.mkfifo(object_path(full, ONE))
    assert only_reason(full) == f"{object_path(full, ONE)} is not a regular file"


def test_verify_finds_an_entry_in_another_s_place(full: Store):
    right, wrong = entry_path(full, ONE), entry_path(full, make_artifact(3))
    right.rename(wrong)
    (finding,) = findings(full)
    assert (finding.path, finding.reason) == (str(wrong), f"it belongs at {right}")


@pytest.mark.parametrize(
    ("cubin", "change", "reason"),
    [
        (make_cubin("sm_80"), {}, "its cubin {cubin} is for sm_80"),
        (make_cubin(symbol="other"), {}, "its cubin {cubin} has no kernel 'tiny'"),
        (b"\x7fELF", {}, "cubin has 4 bytes, fewer than an ELF header"),
        (
            make_cubin(),
            {"params": {"size": 9}},
            "manifest {entry} says fake@1[size=9]:sm_90a, which is not its spec key",
        ),
        (
            make_cubin(),
            {"target": "sm_9"},
            "manifest {entry} holds no valid spec: target 'sm_9' is not an architecture",
        ),
    ],
)
def test_verify_holds_cubin_and_manifest_to_each_other(
    store: Store, cubin: bytes, change: dict[str, object], reason: str
):
    # The digests of these are all right: only what they say is not.
    artifact = Artifact(encode(make_manifest(cubin, **change)), cubin, "made for a test")
    store.publish(artifact)
    assert only_reason(store).startswith(
        reason.format(cubin=object_path(store, artifact), entry=entry_path(store, ONE))
    )


def test_verify_finds_a_cubin_that_is_cut_short_before_it_was_hashed(store: Store):
    store.publish(make_artifact(1, make_cubin()[:-1]))
    assert re.match("cubin is cut short", only_reason(store))


def test_verify_leaves_entries_of_a_newer_format_alone(full: Store):
    path = entry_path(full, ONE)
    path.write_bytes(path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    assert findings(full) == []


def test_verify_changes_nothing(full: Store):
    flip(entry_path(full, ONE), 500)
    flip(object_path(full, TWO), 500)
    before = files_below(full.root)
    assert len(findings(full)) == 2
    assert files_below(full.root) == before


REGISTRY = Registry([KERNEL], discover=False)


def test_verify_of_a_selection_counts_and_reports_as_it_goes(full: Store):
    flip(object_path(full, ONE), 500)
    newer = entry_path(full, make_artifact(3))
    newer.write_bytes(ONE.manifest_bytes.replace(b'{"manifest":1', b'{"manifest":2'))
    seen: list[Finding] = []
    done = verify(full, Selector(), REGISTRY, report=seen.append)
    assert (done.checked, done.newer, done.skipped, len(done.findings)) == (2, 1, 0, 1)
    assert done.findings == tuple(seen)
    assert verify(full, Selector(params=["size=2"]), REGISTRY).findings == ()
    with pytest.raises(SpecError, match=re.escape("no kernel is called 'fakes' (did you mean 'fake'?)")):
        verify(full, Selector(kernels=["fakes"]), REGISTRY)


def recompiled(store: Store) -> list[str]:
    """Return what is found by compiling a store's entries again, beside how many are no longer declared."""
    done = verify(store, Selector(), REGISTRY, recompile=True)
    return [*(finding.reason for finding in done.findings), f"{done.skipped} skipped"]


def test_verify_compiles_again_what_is_declared(store: Store, runs: Callable[[], int]):
    store.publish(compile_artifact(KERNEL, make_spec()))
    store.publish(make_artifact(spec=make_spec(version=7)))
    assert recompiled(store) == ["1 skipped"]
    assert runs() == 2


@pytest.mark.parametrize(
    ("change", "how"),
    [
        ({"source_digest": "d" * 64}, "with changed sources"),
        ({}, "from the same sources"),
        ({"toolchain_key": OTHER_TOOLCHAIN.fingerprint}, "with another toolchain"),
    ],
)
def test_verify_says_how_machine_code_came_to_differ(store: Store, change: dict[str, object], how: str):
    store.publish(make_artifact(1, **change))
    assert recompiled(store) == [f"compiling again {how} gives other machine code", "0 skipped"]


def test_verify_says_that_an_entry_cannot_be_compiled_again(store: Store):
    spec = make_spec(params={"size": 1, "mode": "refuse"})
    store.publish(make_artifact(spec=spec))
    assert recompiled(store) == [f"cannot compile {spec}: expected ';'", "0 skipped"]


# Clear.


def clear_entries(store: Store, *artifacts: Artifact) -> None:
    """Clear the entries of these artifacts."""
    paths = {str(entry_path(store, artifact)) for artifact in artifacts}
    clear(store, plan_clear(store, [entry for entry in entries(store) if entry.path in paths]))


def test_clear_removes_the_entry_and_its_object(full: Store):
    clear_entries(full, ONE)
    assert read_spec(full, ONE) is None
    assert read_spec(full, TWO).cubin == TWO.cubin
    assert list(full.object_files()) == [str(object_path(full, TWO))]


def test_clear_plan_says_what_and_how_many_bytes(full: Store):
    plan = plan_clear(full, [entry for entry in entries(full) if entry.path == str(entry_path(full, ONE))])
    assert [entry.path for entry in plan.entries] == [str(entry_path(full, ONE))]
    assert plan.objects == (str(object_path(full, ONE)),)
    assert plan.size == len(ONE.manifest_bytes) + len(ONE.cubin)
    assert findings(full) == []


def test_clear_keeps_an_object_that_another_entry_names(store: Store):
    other = make_artifact(2, ONE.cubin)
    store.publish(ONE)
    store.publish(other)
    clear_entries(store, ONE)
    assert read_spec(store, other).cubin == ONE.cubin
    clear_entries(store, other)
    assert list(store.object_files()) == []


def test_clear_keeps_an_object_that_an_entry_of_a_newer_format_names(store: Store):
    other = make_artifact(2, ONE.cubin)
    store.publish(ONE)
    store.publish(other)
    path = entry_path(store, other)
    path.write_bytes(path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    clear_entries(store, ONE)
    assert object_path(store, ONE).exists()


def test_clear_keeps_an_object_that_a_damaged_entry_names(store: Store):
    other = make_artifact(2, ONE.cubin)
    store.publish(ONE)
    store.publish(other)
    flip(entry_path(store, other), -5)
    clear_entries(store, ONE)
    assert object_path(store, ONE).exists()


def test_clear_keeps_an_object_that_an_entry_has_come_to_name(store: Store):
    store.publish(ONE)
    plan = plan_clear(store, list(entries(store)))
    late = make_artifact(2, ONE.cubin)
    store.publish(late)
    clear(store, plan)
    assert read_spec(store, late).cubin == ONE.cubin


def test_clear_never_touches_what_it_was_not_given(full: Store):
    orphan = Path(full.object_path("f" * 64))
    orphan.parent.mkdir()
    orphan.write_bytes(b"orphan")
    notes = entry_path(full, ONE).parent / "notes.txt"
    notes.write_text("mine")
    gone = {str(path.relative_to(full.root)) for path in (entry_path(full, ONE), object_path(full, ONE))}
    kept = {name: data for name, data in files_below(full.root).items() if name not in (*gone, "locks/sweep.lock")}
    clear_entries(full, ONE)
    left = files_below(full.root)
    del left["locks/sweep.lock"]
    assert left == kept


def test_clear_all_removes_entries_objects_orphans_logs_and_the_quarantine(full: Store):
    flip(entry_path(full, ONE), 500)
    with pytest.raises(StoreError):
        read_spec(full, ONE)
    full.save_log("a" * 64, "log")
    orphan = Path(full.object_path("f" * 64))
    orphan.parent.mkdir()
    orphan.write_bytes(b"orphan")
    plan = plan_clear_all(full)
    clear(full, plan)
    left = files_below(full.root)
    assert set(left) == {"CACHEDIR.TAG", "locks/sweep.lock"}
    assert (len(plan.entries), len(plan.objects), len(plan.others)) == (1, 3, 3)
    assert os.listdir(f"{full.root}/entries-v1") == os.listdir(f"{full.root}/objects-v1") == []
    full.publish(ONE)
    assert read_spec(full, ONE).cubin == ONE.cubin


def test_clear_all_removes_entries_that_cannot_be_read(full: Store):
    flip(entry_path(full, ONE), 500)
    path = entry_path(full, TWO)
    path.write_bytes(path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    clear(full, plan_clear_all(full))
    assert list(full.entry_files()) == []


def test_clear_all_does_not_follow_links(full: Store, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "a.json").write_text("mine")
    (precious / "b.cubin").write_text("mine")
    for place in ("entries-v1/linked", "objects-v1/linked", "quarantine/linked"):
        os.symlink(precious, f"{full.root}/{place}")
    os.symlink(precious / "a.json", entry_path(full, ONE).parent / "linked.json")
    clear(full, plan_clear_all(full))
    assert files_below(precious) == {"a.json": b"mine", "b.cubin": b"mine"}


def test_clear_all_bears_a_folder_where_an_entry_belongs(full: Store):
    path = entry_path(full, ONE)
    path.unlink()
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=f"^cannot remove {re.escape(str(path))}: Directory not empty$"):
        clear(full, plan_clear_all(full))
    assert (path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("plan", [plan_clear_all, lambda store: plan_clear(store, [])])
def test_clear_refuses_a_folder_that_is_no_store(store: Store, plan: Callable[[Store], object]):
    folder = Path(store.root, "entries-v1", "precious@1")
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("mine")
    message = f"{store.root} is not a kreg store (it has no CACHEDIR.TAG and entries); nothing is removed"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        plan(store)


def test_clear_refuses_a_folder_with_the_tag_of_another_program(store: Store):
    folder = Path(store.root, "logs")
    folder.mkdir(parents=True)
    Path(store.root, "entries-v1").mkdir()
    (folder / "a.log").write_text("mine")
    Path(store.root, "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# Of another program.\n")
    with pytest.raises(StoreError, match="is not a kreg store"):
        plan_clear_all(store)


def test_clear_of_a_store_that_is_not_there_is_nothing(store: Store):
    for plan in (plan_clear_all(store), plan_clear(store, [])):
        assert (plan.entries, plan.objects, plan.others, plan.size) == ((), (), (), 0)
        clear(store, plan)
    assert not os.path.exists(store.root)


def test_clear_of_a_file_is_refused(store: Store):
    Path(store.root).touch()
    with pytest.raises(StoreError, match=r"is not a directory; set KREG_STORE or --store to one$"):
        plan_clear_all(store)


def test_clear_bears_what_is_gone_already(full: Store):
    plan = plan_clear_all(full)
    clear(full, plan)
    clear(full, plan)


def test_clear_says_what_it_cannot_remove(full: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "unlink", raises_os_error(errno.EROFS, lambda *_: True, os.unlink))
    with pytest.raises(StoreError, match=r"^cannot remove .*\.json: Read-only file system \(2 in all\)$"):
        clear(full, plan_clear_all(full))


@pytest.mark.parametrize("call", ["unlink", "rmdir"])
def test_clear_keeps_publishers_out_while_it_removes(full: Store, monkeypatch: pytest.MonkeyPatch, call: str):
    # Between a publisher's making of a folder and its rename into it, the folder must not be removed.
    seen = []
    real = getattr(os, call)

    def remove(path: str) -> None:
        with FileLock(f"{full.root}/locks/sweep.lock", shared=True, wait=0) as held:
            seen.append(held)
        real(path)

    monkeypatch.setattr(os, call, remove)
    clear(full, plan_clear_all(full))
    assert seen
    assert not any(seen)
