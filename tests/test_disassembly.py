"""Instructions of cubins, by a disassembler that is made up for the test, and ``kreg diff`` that shows them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from builders import make_artifact
from click.testing import CliRunner
from kreg.cache_tools import main
from test_difference import lockfile_of

from kreg import KregError, Store, disassembly
from kreg.disassembly import disassemble, find_disassembler, instruction_diff

LISTING = """
\t.headerflags\t@"EF_CUDA_SM90"
\t.section\t.text.fake,"ax",@progbits
.text.fake:
        /*0000*/                   LDC R1, c[0x0][0x28] ;          /* 0x00000a00ff017b82 */
                                                                   /* 0x000fe20000000800 */
.L_x_1:
        /*00{place}*/              {instruction} ;
"""

SCRIPT = """#!/bin/sh
[ -e "$2.fails" ] && { echo "no cubin" >&2; exit 3; }
[ -e "$2.hangs" ] && exec sleep 60
cat "$2.sass"
"""


@pytest.fixture
def nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a disassembler on PATH that prints the file beside a cubin's path; return the folder of both."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvdisasm").write_text(SCRIPT, encoding="utf-8")
    (folder / "nvdisasm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def listing(path: str, instruction: str, place: str = "10") -> str:
    Path(f"{path}.sass").write_text(LISTING.format(instruction=instruction, place=place), encoding="utf-8")
    return path


def test_instructions_come_without_addresses_and_encodings(nvdisasm: Path):
    path = listing(f"{nvdisasm}/a.cubin", "EXIT")
    assert disassemble(path) == [".text.fake:", "LDC R1, c[0x0][0x28] ;", ".L_x_1:", "EXIT ;"]


def test_moved_address_is_no_difference(nvdisasm: Path):
    paths = [listing(f"{nvdisasm}/{name}.cubin", "EXIT", place) for name, place in (("a", "10"), ("b", "20"))]
    assert instruction_diff(*paths) == []
    listing(paths[1], "NOP")
    assert instruction_diff(*paths)[-2:] == ["-EXIT ;", "+NOP ;"]


def numbered(path: str, *lines: str) -> str:
    Path(f"{path}.sass").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_labels_with_moved_numbers_are_no_difference(nvdisasm: Path):
    loop = ("{0}:", "FADD R1, R2, R3 ;", "@P0 BRA `({0}) ;", "{1}:", "BRA `({1}) ;")
    before = numbered(f"{nvdisasm}/a", *(line.format(".L_x_0", ".L_x_1") for line in loop))
    after = numbered(
        f"{nvdisasm}/b", "@P1 BRA `(.L_x_0) ;", ".L_x_0:", *(line.format(".L_x_1", ".L_x_2") for line in loop)
    )
    changed = [line for line in instruction_diff(before, after) if line[0] in "+-"]
    assert changed == ["+@P1 BRA `(.L_x_0+) ;", "+.L_x_0+:"]


def test_branch_to_another_label_is_a_difference(nvdisasm: Path):
    body = (".L_x_0:", "FADD R1, R2, R3 ;", ".L_x_1:", "FMUL R1, R2, R3 ;")
    paths = [numbered(f"{nvdisasm}/{n}", *body, f"BRA `(.L_x_{n}) ;") for n in (0, 1)]
    assert instruction_diff(*paths)[-2:] == ["-BRA `(.L_x_0) ;", "+BRA `(.L_x_1) ;"]


def test_disassembler_that_fails_or_hangs_is_an_error(nvdisasm: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disassembly, "_SECONDS", 0.2)
    path = f"{nvdisasm}/a.cubin"
    (nvdisasm / "a.cubin.fails").touch()
    with pytest.raises(KregError, match=f"^cannot disassemble {path}: no cubin$"):
        disassemble(path)
    (nvdisasm / "a.cubin.fails").rename(nvdisasm / "a.cubin.hangs")
    with pytest.raises(KregError, match=rf"^cannot disassemble {path}: .* timed out after 0\.2 seconds$"):
        disassemble(path)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every disassembler."""
    monkeypatch.setattr(disassembly, "which", lambda _: None)
    monkeypatch.setattr(disassembly.os, "access", lambda *_: False)


def test_disassembler_that_is_nowhere_is_asked_for(nowhere: None):
    with pytest.raises(KregError) as caught:
        find_disassembler()
    assert str(caught.value) == "no disassembler here: nvdisasm is not on PATH; `pip install nvidia-cuda-nvdisasm`"


def test_disassembler_of_the_wheel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disassembly, "which", lambda _: None)
    path = tmp_path / "nvidia" / "cu13" / "bin" / "nvdisasm"
    path.parent.mkdir(parents=True)
    path.touch(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_disassembler() in {str(path), "/usr/local/cuda/bin/nvdisasm"}


# kreg diff


def diff(*arguments: object, code: int = 1, **variables: str) -> tuple[str, str]:
    done = CliRunner().invoke(main, ["diff", *map(str, arguments)], env=variables, prog_name="kreg")
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    """Return two stores: size 2 is new in the second, size 1 has other code, size 4 is in the first alone."""
    stores = [Store(tmp_path / name) for name in ("before", "after")]
    for size in (1, 3, 4):
        stores[0].publish(make_artifact(size))
    stores[1].publish(make_artifact(1, make_artifact(9).cubin, registers=40, code_digest="f" * 64))
    for size in (2, 3):
        stores[1].publish(make_artifact(size))
    return stores[0].root, stores[1].root


def test_diff_shows_what_was_added_removed_and_changed(two: tuple[str, str]):
    output, errors = diff(*two)
    cubins = [make_artifact(size).cubin_digest[:12] for size in (1, 9)]
    size = len(make_artifact(2).cubin)
    assert output.splitlines() == [
        "- fake@1[size=4]:sm_90a",
        f"+ fake@1[size=2]:sm_90a  registers 24, shared 1536, local (spills) 0, code 128, cubin size {size}",
        f"~ fake@1[size=1]:sm_90a  machine code changed, registers 24 -> 40 (+16), cubin {cubins[0]} -> {cubins[1]}",
    ]
    assert errors == "1 changed (1 in machine code), 1 added, 1 removed, 1 variant the same\n"


def test_diff_of_the_same_is_empty_and_a_success(two: tuple[str, str], tmp_path: Path):
    assert diff(two[0], two[0], code=0) == (
        "", "0 changed (0 in machine code), 0 added, 0 removed, 3 variants the same\n",
    )  # fmt: skip
    path = lockfile_of(tmp_path / "kreg.lock", make_artifact(1), make_artifact(3), make_artifact(4))
    diff(path, two[0], code=0)


def test_diff_looks_at_what_is_selected(two: tuple[str, str]):
    assert diff(*two, "--param", "size=3", code=0)[0] == ""
    assert diff(*two, "--param", "size=4")[0] == "- fake@1[size=4]:sm_90a\n"


def test_diff_prints_json(two: tuple[str, str]):
    done: dict[str, Any] = json.loads(diff(*two, "--json")[0])
    assert (done["same"], done["added"][0]["spec"], done["removed"][0]["spec"]) == (
        1, "fake@1[size=2]:sm_90a", "fake@1[size=4]:sm_90a",
    )  # fmt: skip
    moved = done["changed"][0]["moved"]
    assert moved["registers"] == [24, 40]
    assert moved["cubin"] == [make_artifact(1).cubin_digest, make_artifact(9).cubin_digest]


@pytest.mark.parametrize("from_lockfile", [False, True])
def test_diff_shows_instructions(nvdisasm: Path, two: tuple[str, str], tmp_path: Path, from_lockfile: bool):
    listing(Store(two[0]).object_path(make_artifact(1).cubin_digest), "EXIT")
    listing(Store(two[1]).object_path(make_artifact(9).cubin_digest), "BRA .L_x_1")
    before: object = two[0]
    if from_lockfile:
        before = lockfile_of(tmp_path / "kreg.lock", make_artifact(1), make_artifact(3), make_artifact(4))
    output, _ = diff(before, two[1], "--sass", "--store", two[0])
    assert output.splitlines()[3:] == [
        "    @@ -2,3 +2,3 @@", "     LDC R1, c[0x0][0x28] ;", "     .L_x_1:", "    -EXIT ;", "    +BRA .L_x_1 ;",
    ]  # fmt: skip


def test_cubin_that_is_nowhere_is_named(nvdisasm: Path, two: tuple[str, str], tmp_path: Path):
    path = lockfile_of(tmp_path / "kreg.lock", make_artifact(1))
    _, errors = diff(path, two[1], "--sass", "--store", tmp_path / "empty")
    assert re.fullmatch(
        r"error: the cubin of `fake@1\[size=1\]:sm_90a` is not in \S+/empty \(\S+\.cubin\); name a store that has it\n",
        errors,
    )


def test_instructions_without_a_disassembler_are_an_error(nowhere: None, two: tuple[str, str]):
    assert diff(*two, "--sass")[1].startswith("error: no disassembler here")


@pytest.mark.parametrize(("arguments", "code"), [(("here",), 2), (("/nowhere", "/nowhere"), 1)])
def test_diff_of_nothing_is_an_error(arguments: tuple[str, ...], code: int):
    diff(*arguments, code=code)
