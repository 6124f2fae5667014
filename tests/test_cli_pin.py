"""``kreg lock``, ``check``, ``why`` and ``warm --rebuild`` as people and scripts run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import HERE, child_environment
from plugins import install_plugin

KREG = Path(sys.executable).with_name("kreg")
SPEC = "made@1[size=1]:sm_90a"
DECLARATION = """
from pathlib import Path
from source_backend import declare
KERNEL = declare(Path(__file__).parent / "sources"{})
"""


class Project:
    """A folder in which a plug-in kernel is developed, with a store and a lockfile, and the installed ``kreg``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = install_plugin(folder / "site", made="made_kernel:KERNEL")
        self.declare()

    def declare(self, fields: str = "") -> None:
        (self.folder / "made_kernel.py").write_text(DECLARATION.format(fields), encoding="utf-8")

    def append(self, text: str) -> None:
        with open(self.folder / "sources" / "code.txt", "a", encoding="utf-8") as file:
            file.write(text)

    def __call__(self, *arguments: str, code: int = 0, **variables: str) -> tuple[str, str]:
        """Run ``kreg``, which must end with ``code``; return standard output and standard error."""
        path = os.pathsep.join([self.site, str(self.folder), str(HERE)])
        done = subprocess.run(
            [str(KREG), *arguments], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False,
            env=child_environment(KREG_STORE=str(self.folder / "store"), **variables, PYTHONPATH=path),
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def kreg(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_life_of_a_change(kreg: Project):
    path = kreg.folder / "kreg.lock"
    made = ("--kernel", "made")
    assert kreg("lock", *made, "--jobs", "1") == (f"4 pins in {path}\n", "")
    locked = path.read_bytes()
    assert kreg("lock") == (f"4 pins in {path}, as before\n", "")
    assert kreg("check") == ("made@1: unchanged, 4 variants\n", "")
    kreg.append("# a comment\n")
    assert kreg("check") == ("made@1: unchanged, 4 variants\n", "4 pins of older sources with the same machine code\n")
    kreg.append("another instruction\n")
    assert kreg("check", code=1) == ("made@1: machine code changed, version did not: bump it (4 variants)\n", "")
    _, said = kreg("lock", code=1)
    assert said.startswith("error: the machine code of made@1 changed and the version did not, as in `made@1[size=1]")
    assert path.read_bytes() == locked
    output, said = kreg("warm", *made, "--target", "sm_90a", code=1)
    assert "2 failed" in output
    assert (
        said.count("failed: the sources of made@1 have changed (code.txt) and give other machine code for `made@1[")
        == 2
    )
    output, said = kreg("why", SPEC, code=1)
    assert output.splitlines()[:2] == [
        f"drift: {SPEC} ({json.loads(kreg('why', SPEC, '--json', code=1)[0])['spec_key'][:12]})",
        f"1. store {kreg.folder}/store: its entry is of other sources (code.txt)",
    ]
    output, _ = kreg("warm", *made, "--target", "sm_90a", "--rebuild")
    assert "2 compiled, 0 already there, 0 failed" in output
    assert kreg("why", SPEC)[0].startswith(f"hit: {SPEC} (")
    kreg.declare(", version=2")
    assert kreg("check", code=1)[0] == "made 1 -> 2: 4 variants changed\n"
    assert kreg("lock") == (f"4 pins in {path}\n", "")
    assert kreg("check")[0] == "made@2: unchanged, 4 variants\n"


def test_check_prints_json(kreg: Project):
    kreg("lock", "--kernel", "made", "--target", "sm_90a")
    kreg.append("another instruction\n")
    done = json.loads(kreg("check", "--json", code=1)[0])
    assert (done["same"], done["lockfile"], done["toolchains"]) == (False, str(kreg.folder / "kreg.lock"), [])
    kernel = done["kernels"][0]
    assert (kernel["name"], kernel["versions"], kernel["compared"], kernel["same"]) == ("made", [1, 1], 2, False)
    assert kernel["changed"] == [SPEC, "made@1[size=2]:sm_90a"]
    assert kernel["says"] == "made@1: machine code changed, version did not: bump it (2 variants)"


def test_check_receipts_lists_targets_that_never_ran(kreg: Project):
    kreg("lock", "--kernel", "made")
    assert kreg("check", "--receipts")[0] == (
        "made@1: unchanged, 4 variants\nsm_120a: never run on hardware, 2 pins\nsm_90a: never run on hardware, 2 pins\n"
        "0 pins with a receipt\n"
    )


def test_lock_prints_json(kreg: Project):
    done = json.loads(kreg("lock", "--kernel", "made", "--target", "sm_90a", "--json")[0])
    assert (done["changed"], [pin["spec"] for pin in done["pins"]]) == (True, [SPEC, "made@1[size=2]:sm_90a"])


def test_lockfile_is_named_by_option_then_variable_then_the_current_directory(kreg: Project):
    kreg("lock", "--kernel", "made", "--target", "sm_90a", KREG_LOCKFILE="variable.lock")
    kreg("lock", "--kernel", "made", "--target", "sm_90a", "--lockfile", "option.lock", KREG_LOCKFILE="variable.lock")
    assert sorted(path.name for path in kreg.folder.glob("*.lock")) == ["option.lock", "variable.lock"]
    _, said = kreg("check", code=1)
    assert said == f"error: there is no lockfile {kreg.folder}/kreg.lock; write one with `kreg lock`, or name another\n"
    kreg("check", KREG_LOCKFILE="option.lock")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lock", "--all", "--kernel", "made"), "Error: --all goes with no selector"),
        (("lock", "--kernel", "mad"), "error: no kernel is called 'mad' (did you mean 'made'?)"),
        (("check", "--kernel", "mad"), "error: no kernel is called 'mad' (did you mean 'made'?)"),
        (("why", "made"), "error: made@1 needs a target, one of sm_90a, sm_120a"),
        (("why", "made@2[size=1]:sm_90a"), "error: made@2 is not declared; the declared version is 1"),
        (("why", "made[size=9]:sm_90a"), "error: made@1: size=9 is not one of 1, 2, 3"),
    ],
)
def test_request_that_makes_no_sense_is_a_usage_error(kreg: Project, arguments: tuple[str, ...], said: str):
    kreg("lock", "--kernel", "made", "--target", "sm_90a")
    assert said in kreg(*arguments, code=2)[1]


@pytest.mark.parametrize("verb", [("lock",), ("check",), ("why", SPEC, "--lockfile", "kreg.lock")])
def test_damaged_lockfile_is_one_located_error(kreg: Project, verb: tuple[str, ...]):
    kreg("lock", "--kernel", "made")
    path = kreg.folder / "kreg.lock"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[8], lines[9] = lines[9], lines[8]
    path.write_text("".join(lines), encoding="utf-8")
    _, said = kreg(*verb, code=1)
    assert said == (
        f"error: {path}, pin 3 (`made@1[size=2]:sm_120a`): it stands after `made@1[size=1]:sm_90a`; `kreg lock` writes "
        f"pins in order\n"
    )


def test_why_of_a_miss_says_what_was_tried_what_is_near_and_what_fixes_it(kreg: Project):
    kreg("warm", "--kernel", "made", "--target", "sm_120a")
    output, _ = kreg("why", SPEC, code=1)
    lines = output.splitlines()
    toolchain = lines[2].removeprefix("2. compiler: ")
    assert lines[1:] == [
        f"1. store {kreg.folder}/store: no entry made by {toolchain}",
        f"2. compiler: {toolchain}",
        "near: made@1[size=1]:sm_120a: target sm_120a there, sm_90a asked",
        "near: made@1[size=2]:sm_120a: target sm_120a there, sm_90a asked, size=2 there, 1 asked",
        "run: kreg warm --kernel made --target sm_90a --param size=1",
    ]
    kreg(*lines[-1].removeprefix("run: kreg ").split())
    assert kreg("why", SPEC)[0].startswith("hit: ")


def test_why_in_an_empty_store_says_so(kreg: Project):
    assert "near: nothing of made is in the store\n" in kreg("why", SPEC, code=1)[0]


def test_why_looks_at_the_lockfile_that_would_be_in_force(kreg: Project):
    kreg("lock", "--kernel", "made", "--target", "sm_90a")
    other = "made@1[size=3]:sm_90a"
    assert "lockfile: " not in kreg("why", other, code=1)[0]
    for arguments, variables in (
        (("--lockfile", "kreg.lock"), {}),
        ((), {"KREG_POLICY": "locked"}),
        ((), {"KREG_POLICY": "frozen", "KREG_LOCKFILE": "kreg.lock"}),
    ):
        output, _ = kreg("why", other, *arguments, code=1, **variables)
        assert "1. lockfile: no pin\n" in output
        assert output.endswith("run: kreg lock\n")
        assert "1. lockfile: pins the cubin " in kreg("why", SPEC, *arguments, **variables)[0]
