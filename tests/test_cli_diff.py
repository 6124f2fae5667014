"""``kreg diff`` as people and scripts run it: what moved, in words, JSON and instructions, and what is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from builders import entry_path, flip, make_artifact, make_spec, object_path
from plugins import install_plugin
from test_difference import OTHER, lockfile_of
from test_disassembly import SCRIPT, diff, listing

import kreg
from kreg import Artifact, Store
from kreg.lockfile import Lockfile, pin, write_lockfile

SAME = "0 changed (0 in machine code), 0 added, 0 removed, {} the same\n"
ONE = make_artifact(1)
A = "fake@1[size=1]:sm_90a"


def store_of(path: Path, *artifacts: Artifact) -> Store:
    store = Store(path)
    store.prepare()
    for artifact in artifacts:
        store.publish(artifact)
    return store


def recoded(number: int, **overrides: Any) -> Artifact:
    """Return size 1 with the cubin of another size, so with other machine code."""
    fields = {"code_digest": f"{number:064x}", **overrides}
    return make_artifact(1, make_artifact(number).cubin, **fields)


def show(artifact: Artifact) -> str:
    return artifact.cubin_digest[:12]


REPACKED = make_artifact(1, make_artifact(5).cubin)
"""The same machine code in another file, as with other debug information."""

# What moved


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (make_artifact(1, registers=20, local_bytes=8),
         "machine code changed, registers 24 -> 20 (-4), local (spills) 0 -> 8 (+8)"),
        (REPACKED, f"machine code is the same, cubin {show(ONE)} -> {show(REPACKED)}"),
        (make_artifact(1, **OTHER), "fake-compiler 1.0 -> 2.0, machine code is the same"),
        (recoded(9), f"machine code changed, cubin {show(ONE)} -> {show(recoded(9))}"),
        (recoded(9, source_digest="5" * 64),
         f"machine code changed, cubin {show(ONE)} -> {show(recoded(9))}, sources changed"),
    ],
)  # fmt: skip
def test_diff_says_what_moved(tmp_path: Path, after: Artifact, said: str):
    sides = store_of(tmp_path / "a", ONE).root, store_of(tmp_path / "b", after).root
    assert diff(*sides)[0] == f"~ {A}  {said}\n"


def test_diff_of_a_version_bump_pairs_the_variant(tmp_path: Path):
    spec = make_spec(version=2)
    new = make_artifact(1, ONE.cubin, spec=spec)
    sides = store_of(tmp_path / "a", ONE).root, store_of(tmp_path / "b", new).root
    output, errors = diff(*sides)
    assert output == (
        f"~ fake@2[size=1]:sm_90a  version 1 -> 2, machine code is the same, key {ONE.key[:12]} -> {spec.key[:12]}\n"
    )
    assert errors == "1 changed (0 in machine code), 0 added, 0 removed, 0 variants the same\n"


def test_diff_counts_what_differs_in_its_sources_alone_and_puts_machine_code_first(tmp_path: Path):
    repacked, moved = (
        make_artifact(2, make_artifact(22).cubin),
        make_artifact(3, make_artifact(33).cubin, code_digest="f" * 64),
    )
    before = store_of(tmp_path / "a", *map(make_artifact, (1, 2, 3)))
    after = store_of(tmp_path / "b", make_artifact(1, source_digest="5" * 64), repacked, moved)
    output, errors = diff(before.root, after.root)
    starts = [line.partition("  ")[0] for line in output.splitlines()]
    assert starts == ["~ fake@1[size=3]:sm_90a", "~ fake@1[size=2]:sm_90a", "1 variant: sources changed, nothing else"]
    assert errors == "3 changed (1 in machine code), 0 added, 0 removed, 0 variants the same\n"


def test_diff_of_a_lockfile_and_a_store_compares_versions_of_several_distributions(tmp_path: Path):
    versions = {"b": "2.0", "a": "1.0"}
    made = make_artifact(1, toolchain=versions)
    path = str(tmp_path / "kreg.lock")
    pins = (pin(A, made.manifest, "fake"),)
    write_lockfile(path, Lockfile(toolchains={"fake": dict(sorted(versions.items()))}, pins=pins))
    assert diff(path, store_of(tmp_path / "a", made).root, code=0) == ("", SAME.format("1 variant"))
    newer = store_of(tmp_path / "b", make_artifact(1, toolchain={"a": "1.1", "c": "3.0"}))
    assert diff(path, newer.root)[0] == f"~ {A}  a 1.0 -> 1.1, b 2.0 -> none, c none -> 3.0, machine code is the same\n"


# What is left out


def test_diff_says_what_of_a_store_is_left_out(tmp_path: Path):
    store = store_of(tmp_path / "a", *map(make_artifact, (1, 2, 3)))
    flip(entry_path(store, ONE), 300)
    newer = entry_path(store, make_artifact(2))
    newer.write_bytes(newer.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    other = store_of(tmp_path / "b", make_artifact(3))
    output, errors = diff(store.root, other.root, code=0)
    assert output == ""
    assert errors == (
        f"1 entry of a newer kreg in {store.root} left out\n"
        f"1 entry in {store.root} cannot be read and left out; see `kreg verify --store {store.root}`\n"
        + SAME.format("1 variant")
    )


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the fake kernel, whose declaration has defaults."""
    monkeypatch.syspath_prepend(install_plugin(tmp_path / "site", fake="fake_backend:KERNEL"))
    monkeypatch.setattr(kreg.REGISTRY, "_kernels", {})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), [1, 2, 1]),
        (("--param", "size=1"), [1, 1]),
        (("--param", "size=1", "--param", "size=2"), [1, 2, 1]),
        (("--param", "note=plain"), [1, 2]),
        (("--param", "note=bright", "--target", "sm_90a"), [1]),
        (("--kernel", "fake", "--target", "sm_120a"), []),
        (("--kernel", "fake@2"), []),
    ],
)
def test_selector_narrows_both_sides_and_knows_defaults(
    declared: None, tmp_path: Path, options: tuple[str, ...], expected: list[int]
):
    bright = make_artifact(spec=make_spec(params={"size": 1, "note": "bright"}))
    before = store_of(tmp_path / "a", ONE, make_artifact(2), bright)
    after = store_of(tmp_path / "b")
    output, _ = diff(before.root, after.root, *options, code=bool(expected))
    assert sorted(int(size) for size in re.findall(r"size=(\d)", output)) == sorted(expected)


# What is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kernel", "nope"), "error: no kernel is called 'nope'"),
        (("--target", "bogus"), "error: target 'bogus' is not an architecture such as 'sm_90a' or 'sm_100f'\n"),
        (("--param", "size"), "error: 'size' is not 'name=value'\n"),
    ],
)
def test_selector_that_makes_no_sense_is_a_usage_error(tmp_path: Path, options: tuple[str, ...], said: str):
    store = store_of(tmp_path / "a", ONE)
    output, errors = diff(store.root, store.root, *options, code=2)
    assert (output, errors.startswith(said)) == ("", True)


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-9], "{path} is not a lockfile: Input data was truncated"),
        (lambda text: "<<<<<<< ours\n" + text,
         "{path}, line 1: a merge conflict; take either side (`git checkout --ours {path}`), then run `kreg lock`"),
        (lambda text: text.replace(ONE.key, ONE.key[1:]),
         "{path}, pin 1 (`" + A + "`): key is '" + ONE.key[1:] + "', not 64 hex digits"),
        (lambda text: text.replace('"version":1', '"version":2', 1),
         "{path} has version 2; this kreg reads version 1: install a newer kreg"),
    ],
)  # fmt: skip
def test_damaged_lockfile_on_either_side_is_one_error(tmp_path: Path, damage: Any, said: str, is_first: bool):
    path = lockfile_of(tmp_path / "kreg.lock", ONE)
    Path(path).write_text(damage(Path(path).read_text(encoding="utf-8")), encoding="utf-8")
    sides = [path, store_of(tmp_path / "a", ONE).root]
    assert diff(*(sides if is_first else sides[::-1])) == ("", f"error: {said.format(path=path)}\n")


def test_side_that_is_neither_or_not_there_is_named(tmp_path: Path):
    store = store_of(tmp_path / "a", ONE)
    (tmp_path / "plain").mkdir()
    said = f"error: {tmp_path}/plain is neither a lockfile nor a kreg store\n"
    assert diff(store.root, tmp_path / "plain") == ("", said)
    assert diff(tmp_path / "gone", store.root) == ("", f"error: there is no lockfile and no store {tmp_path}/gone\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "plain"]


# Instructions


@pytest.fixture
def nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a disassembler on PATH that prints the file beside a cubin's path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvdisasm").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "bin" / "nvdisasm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")


def listed(store: Store, artifact: Artifact, instruction: str) -> None:
    store.publish(artifact)
    listing(str(object_path(store, artifact)), instruction)


def test_json_has_instructions_where_machine_code_moved_and_null_elsewhere(nvdisasm: None, tmp_path: Path):
    before, after = (
        store_of(tmp_path / "a", make_artifact(2)),
        store_of(tmp_path / "b", make_artifact(2, make_artifact(22).cubin)),
    )
    listed(before, ONE, "EXIT")
    listed(after, recoded(9), "NOP")
    done = json.loads(diff(before.root, after.root, "--sass", "--json")[0])
    assert [(change["after"], change["sass"] and change["sass"][-2:]) for change in done["changed"]] == [
        (A, ["-EXIT ;", "+NOP ;"]), ("fake@1[size=2]:sm_90a", None),
    ]  # fmt: skip
    plain = json.loads(diff(before.root, after.root, "--json")[0])
    assert [change["sass"] for change in plain["changed"]] == [None, None]


def test_instructions_of_a_variant_with_two_toolchains_stand_under_each(nvdisasm: None, tmp_path: Path):
    before, after = store_of(tmp_path / "a"), store_of(tmp_path / "b")
    for store, numbers in ((before, (1, 2)), (after, (3, 4))):
        listed(store, recoded(numbers[0]), f"CALL {numbers[0]}")
        listed(store, recoded(numbers[1], **OTHER), f"CALL {numbers[1]}")
    output, _ = diff(before.root, after.root, "--sass")
    blocks = [set(re.findall(r"[-+]CALL \d", block)) for block in output.split("~ ")[1:]]
    assert sorted(blocks, key=sorted) == [{"+CALL 3", "-CALL 1"}, {"+CALL 4", "-CALL 2"}]


def test_disassembler_is_not_asked_for_where_machine_code_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kreg.disassembly.find_disassembler", lambda: pytest.fail("asked for a disassembler"))
    sides = store_of(tmp_path / "a", ONE).root, store_of(tmp_path / "b", REPACKED).root
    assert diff(*sides, "--sass")[0] == f"~ {A}  machine code is the same, cubin {show(ONE)} -> {show(REPACKED)}\n"


def test_cubin_that_does_not_match_its_digest_is_not_shown(nvdisasm: None, tmp_path: Path):
    before, after = store_of(tmp_path / "a"), store_of(tmp_path / "b")
    listed(before, ONE, "EXIT")
    listed(after, recoded(9), "NOP")
    flip(object_path(after, recoded(9)), 70)
    path = object_path(after, recoded(9))
    said = f"error: the cubin of `{A}`, {path}, does not match its digest; see `kreg verify`\n"
    assert diff(before.root, after.root, "--sass") == ("", said)


def test_disassembler_that_fails_is_one_error(nvdisasm: None, tmp_path: Path):
    before, after = store_of(tmp_path / "a"), store_of(tmp_path / "b")
    listed(before, ONE, "EXIT")
    listed(after, recoded(9), "NOP")
    path = object_path(before, ONE)
    path.with_name(f"{path.name}.fails").touch()
    assert diff(before.root, after.root, "--sass") == ("", f"error: cannot disassemble {path}: no cubin\n")
