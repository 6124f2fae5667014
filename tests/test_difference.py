"""What two lockfiles or stores differ in."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from builders import OTHER_TOOLCHAIN, TOOLCHAIN, entry_path, flip, make_artifact, make_spec

from kreg import Artifact, LockfileError, Store, StoreError
from kreg.difference import Item, compare, items_of
from kreg.lockfile import Lockfile, pin, write_lockfile
from kreg.toolchain import Toolchain

OTHER = {"toolchain_key": OTHER_TOOLCHAIN.fingerprint, "toolchain": dict(OTHER_TOOLCHAIN.distributions)}


def make_item(spec: str, toolchain: Toolchain = TOOLCHAIN, **values: object) -> Item:
    fields = {
        "version": int(spec.partition("@")[2][0]), "toolchain": dict(toolchain.distributions), "key": spec,
        "registers": 24, "shared_bytes": 0, "local_bytes": 0, "code_bytes": 100, "cubin_bytes": 200, "program": "p",
        "cubin": "c", "source": "s",
    }  # fmt: skip
    return Item(spec=spec, values={**fields, **values})


def summary(before: list[Item], after: list[Item]) -> tuple[list[str], list[str], list[tuple[str, str, set[str]]], int]:
    found = compare(before, after)
    changed = [(c.before.spec, c.after.spec, set(c.moved)) for c in found.changed]
    return [i.spec for i in found.added], [i.spec for i in found.removed], changed, found.same


A, B, NEW_A = "fake@1[size=1]:sm_90a", "fake@1[size=2]:sm_90a", "fake@2[size=1]:sm_90a"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [], ([], [], [], 0)),
        ([make_item(A)], [make_item(A)], ([], [], [], 1)),
        ([make_item(A)], [make_item(A), make_item(B)], ([B], [], [], 1)),
        ([make_item(B), make_item(A)], [], ([], [A, B], [], 0)),
        ([make_item(A)], [make_item(A, program="q", registers=25)], ([], [], [(A, A, {"program", "registers"})], 0)),
        ([make_item(A)], [make_item(A, source="t")], ([], [], [(A, A, {"source"})], 0)),
        ([make_item(A)], [make_item(A, OTHER_TOOLCHAIN)], ([], [], [(A, A, {"toolchain"})], 0)),
        ([make_item(A)], [make_item(NEW_A)], ([], [], [(A, NEW_A, {"version", "key"})], 0)),
        # The exact pair goes first, then the same spec, then the same variant.
        ([make_item(A), make_item(A, OTHER_TOOLCHAIN)], [make_item(A)], ([], [A], [], 1)),
        ([make_item(A), make_item(NEW_A)], [make_item(NEW_A, cubin="d")], ([], [A], [(NEW_A, NEW_A, {"cubin"})], 0)),
        # Of several, the newest with the newest.
        ([make_item(A), make_item(NEW_A)], [make_item("fake@3[size=1]:sm_90a")],
         ([], [A], [(NEW_A, "fake@3[size=1]:sm_90a", {"version", "key"})], 0)),
        ([make_item(A)], [make_item("fake@1[size=1]:sm_120a")], (["fake@1[size=1]:sm_120a"], [A], [], 0)),
        ([make_item(A)], [make_item("other@1[size=1]:sm_90a")], (["other@1[size=1]:sm_90a"], [A], [], 0)),
    ],
)  # fmt: skip
def test_variants_are_paired_and_what_moved_is_named(before: list[Item], after: list[Item], expected: object):
    assert summary(before, after) == expected


def test_values_before_and_after_are_told_and_the_order_is_that_of_reading():
    sizes = (16, 2, 1)
    before, after = (
        [make_item(f"fake@1[size={size}]:sm_90a", registers=count) for size in sizes] for count in (24, 30)
    )
    changed = compare(before, after).changed
    assert [change.after.spec for change in changed] == [f"fake@1[size={size}]:sm_90a" for size in (1, 2, 16)]
    assert changed[0].moved == {"registers": (24, 30)}
    assert not compare(before, after).is_empty
    assert compare(before, before[::-1]).is_empty


def test_many_variants_are_compared_in_seconds():
    before = [make_item(f"fake@1[size={size}]:sm_90a") for size in range(5_000)]
    after = [make_item(f"fake@2[size={size}]:sm_90a") for size in range(5_000)]
    start = time.perf_counter()
    assert len(compare(before, after).changed) == 5_000
    assert time.perf_counter() - start < 20


def lockfile_of(path: Path, *artifacts: Artifact) -> str:
    pins = tuple(pin(str(a.manifest.spec), a.manifest, "fake") for a in artifacts)
    write_lockfile(str(path), Lockfile(toolchains={"fake": dict(TOOLCHAIN.distributions)}, pins=pins))
    return str(path)


def test_lockfile_and_store_of_the_same_artifacts_are_the_same(full: Store, tmp_path: Path):
    path = lockfile_of(tmp_path / "kreg.lock", make_artifact(1), make_artifact(2))
    assert compare(items_of(path), items_of(full.root)).same == 2
    assert compare(items_of(path), items_of(full.root)).is_empty


def test_store_with_entries_that_cannot_be_read_is_compared_without_them(full: Store):
    full.publish(make_artifact(spec=make_spec(params={"size": 3}), **OTHER))
    flip(entry_path(full, make_artifact(1)), 300)
    path = entry_path(full, make_artifact(2))
    path.write_bytes(path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    assert [item.spec for item in items_of(full.root)] == ["fake@1[size=3]:sm_90a"]


def test_what_is_neither_is_named(tmp_path: Path):
    with pytest.raises(StoreError, match=f"^{tmp_path} is neither a lockfile nor a kreg store$"):
        items_of(str(tmp_path))
    with pytest.raises(LockfileError, match=f"^there is no lockfile and no store {tmp_path}/gone$"):
        items_of(f"{tmp_path}/gone")
    (tmp_path / "text").write_text("hello\n", encoding="utf-8")
    with pytest.raises(LockfileError, match="text is not a lockfile: "):
        items_of(f"{tmp_path}/text")
