"""What two lockfiles or stores differ in."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from builders import OTHER_TOOLCHAIN, TOOLCHAIN, entry_path, flip, make_artifact, make_spec

from kreg import REGISTRY, Artifact, LockfileError, SpecError, Store, StoreError
from kreg.difference import Item, compare, items_of, selected
from kreg.inventory import Entry
from kreg.lockfile import Lockfile, pin, write_lockfile
from kreg.selector import Selector
from kreg.toolchain import Toolchain

OTHER = {"toolchain_key": OTHER_TOOLCHAIN.fingerprint, "toolchain": dict(OTHER_TOOLCHAIN.distributions)}


def make_item(spec: str, toolchain: Toolchain | dict[str, str] = TOOLCHAIN, **values: object) -> Item:
    distributions = toolchain if isinstance(toolchain, dict) else dict(toolchain.distributions)
    fields = {
        "version": int(spec.partition("@")[2][0]), "toolchain": distributions, "key": spec,
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


def test_toolchains_are_the_same_in_any_order_of_their_distributions():
    tools = [{"a": "1", "b": "9"}, {"a": "2", "b": "1"}]
    before = [make_item(A, toolchain=tool, cubin=tool["a"]) for tool in tools]
    after = [make_item(A, toolchain=dict(reversed(tool.items())), cubin=tool["a"]) for tool in tools]
    assert compare(before, after).is_empty


def test_newest_toolchain_is_that_of_the_highest_number():
    before = [make_item(A, toolchain={"compiler": version}) for version in ("4.10.0", "4.8.0")]
    found = compare(before, [make_item(A, toolchain={"compiler": "4.11.0"})])
    assert found.changed[0].moved == {"toolchain": ({"compiler": "4.10.0"}, {"compiler": "4.11.0"})}
    assert [item.values["toolchain"] for item in found.removed] == [{"compiler": "4.8.0"}]


def test_change_of_sources_alone_is_told_apart():
    changes = compare(
        [make_item(A), make_item(B)], [make_item(A, source="t"), make_item(B, source="t", cubin="d")]
    ).changed
    assert [change.is_of_sources_alone for change in changes] == [True, False]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (["selection=two_level"], ["kimi_topk16@1:sm_90a", "kimi_topk16@7:sm_90a"]),
        (["selection=bound_rank"], ["kimi_topk16@1[selection=bound_rank]:sm_90a"]),
        (["size=1"], [A]),
        ([], [A, "kimi_topk16@1:sm_90a", "kimi_topk16@1[selection=bound_rank]:sm_90a", "kimi_topk16@7:sm_90a"]),
    ],
)
def test_parameter_that_a_spec_leaves_out_is_selected_by_its_default(params: list[str], expected: list[str]):
    specs = [A, "kimi_topk16@1:sm_90a", "kimi_topk16@1[selection=bound_rank]:sm_90a", "kimi_topk16@7:sm_90a"]
    found, empty = selected([[make_item(spec) for spec in specs], []], Selector(params=params), REGISTRY)
    assert ([item.spec for item in found], empty) == (expected, [])


def test_kernel_that_nobody_knows_is_refused():
    sides = [[make_item(A)], []]
    assert selected(sides, Selector(kernels=["fake"], targets=["sm_120a"]), REGISTRY) == [[], []]
    assert selected(sides, Selector(kernels=["kimi_topk16"]), REGISTRY) == [[], []]
    with pytest.raises(SpecError, match=r"^no kernel is called 'kimi_topk61' "):
        selected(sides, Selector(kernels=["kimi_topk61"]), REGISTRY)


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
    left_out: list[Entry] = []
    assert [item.spec for item in items_of(full.root, left_out.append)] == ["fake@1[size=3]:sm_90a"]
    assert sorted(entry.is_newer for entry in left_out) == [False, True]
    assert len(items_of(full.root)) == 1


def test_what_is_neither_is_named(tmp_path: Path):
    with pytest.raises(StoreError, match=f"^{tmp_path} is neither a lockfile nor a kreg store$"):
        items_of(str(tmp_path))
    with pytest.raises(LockfileError, match=f"^there is no lockfile and no store {tmp_path}/gone$"):
        items_of(f"{tmp_path}/gone")
    (tmp_path / "text").write_text("hello\n", encoding="utf-8")
    with pytest.raises(LockfileError, match="text is not a lockfile: "):
        items_of(f"{tmp_path}/text")
