"""The command, run as people and scripts run it: data on standard output, messages on standard error, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from builders import (
    HERE,
    OTHER_TOOLCHAIN,
    SHIPPED,
    TOOLCHAIN,
    child_environment,
    entry_path,
    files_below,
    flip,
    make_artifact,
    make_spec,
    object_path,
)
from click.testing import CliRunner
from kreg.cache_tools import main
from kreg.cache_tools.output import show_bytes
from plugins import install_plugin

import kreg
from kreg import Store

KREG = Path(sys.executable).with_name("kreg")
ONE, TWO = make_artifact(1), make_artifact(2)


class Done:
    """What a command did: exit code, standard output and standard error, and the output read as JSON."""

    def __init__(self, code: int, output: str, errors: str) -> None:
        self.code = code
        self.output = output
        self.errors = errors

    @property
    def json(self) -> Any:
        return json.loads(self.output)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder in which the fake kernel is installed as a plug-in."""
    return install_plugin(tmp_path_factory.mktemp("site"), fake="fake_backend:KERNEL")


@pytest.fixture
def environment(site: str, root: str) -> dict[str, str]:
    """Return the variables of a command: the store of this test, and the fake kernel installed."""
    return {"KREG_STORE": root, "COLUMNS": "300", "PYTHONPATH": os.pathsep.join([site, str(HERE)])}


@pytest.fixture
def shell(environment: dict[str, str]) -> Callable[..., Done]:
    """Return a function that runs the installed ``kreg`` as a shell does."""

    def run_kreg(*arguments: str, **variables: str) -> Done:
        done = subprocess.run(
            [str(KREG), *arguments], env=child_environment(**environment, **variables), capture_output=True, text=True,
            timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    return run_kreg


@pytest.fixture
def run(site: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Return a function that runs ``kreg`` in this process, which is quicker."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(kreg.REGISTRY, "_kernels", {})

    def run_kreg(*arguments: str, **variables: str) -> Done:
        done = CliRunner().invoke(main, arguments, env={**environment, **variables}, prog_name="kreg")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Done(done.exit_code, done.stdout, done.stderr)

    return run_kreg


@pytest.fixture
def mixed(store: Store) -> Store:
    """Return a store with two entries that are declared and one of a version that no longer is."""
    for artifact in (ONE, TWO, make_artifact(spec=make_spec(version=7))):
        store.publish(artifact)
    return store


# dir and key


def test_dir_prints_the_store(shell: Callable[..., Done], root: str, tmp_path: Path):
    done = shell("dir")
    assert (done.code, done.output, done.errors) == (0, f"{root}\n", "")
    assert shell("dir", "--store", str(tmp_path / "other")).output == f"{tmp_path}/other\n"
    assert not os.path.exists(root)


def test_dir_as_json_says_whether_the_store_is_there(shell: Callable[..., Done], root: str, store: Store):
    assert shell("dir", "--json").json == {"root": root, "exists": False}
    store.prepare()
    assert shell("dir", "--json").json == {"root": root, "exists": True}


def test_key_prints_the_spec_key(shell: Callable[..., Done]):
    done = shell("key", "fake[size=1]:sm_90a")
    assert (done.code, done.output, done.errors) == (0, f"{make_spec().key}\n", "")
    spec = make_spec(params={"size": 1, "note": "two words"})
    done = shell("key", "--json", 'fake@1[note="two words",size=1]:sm_90a')
    assert done.json == {"spec": str(spec), "key": spec.key}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fake[size=1]", "error: fake@1 needs a target, one of sm_90a, sm_100a, sm_120a\n"),
        ("fake[sise=1]:sm_90a", "error: fake@1 has no parameter 'sise' (did you mean 'size'?); its"),
        ("fake@2[size=1]:sm_90a", "error: fake@2 is not declared; the declared version is 1\n"),
        ("fak:sm_90a", "error: no kernel is called 'fak' (did you mean 'fake'?); known: all_gather_pair, "),
    ],
)
def test_key_of_a_spec_that_means_nothing_is_refused(run: Callable[..., Done], text: str, message: str):
    done = run("key", text)
    assert (done.code, done.output) == (2, "")
    assert done.errors.startswith(message)


# warm


def test_warm_compiles_what_is_missing(shell: Callable[..., Done], runs: Callable[[], int]):
    done = shell("warm", "--kernel", "fake", "--target", "sm_90a", "--jobs", "2")
    assert done.code == 0
    assert re.search(r"^2 compiled, 0 already there, 0 failed in \d+\.\d s$", done.output, re.MULTILINE)
    rows = [line.split() for line in done.output.splitlines()]
    assert rows[0] == ["KERNEL", "VERSION", "VARIANT", "TARGET", "TOOLCHAIN", "SIZE", "AGE", "REGISTERS", "SHARED"]
    assert [row[:4] for row in rows[1:3]] == [["fake", "1", f"size={size}", "sm_90a"] for size in (1, 2)]
    assert done.errors == ""
    again = shell("warm", "--kernel", "fake", "--target", "sm_90a")
    assert re.search(r"^0 compiled, 2 already there, 0 failed in \d+\.\d s$", again.output, re.MULTILINE)
    assert runs() == 2


def test_warm_as_json_names_every_entry(shell: Callable[..., Done]):
    done = shell("warm", "--json", "--kernel", "fake@1", "--target", "sm_90a", "--param", "size=3", "--param", "size=1")
    assert set(done.json) == {"compiled", "hit", "failed", "seconds", "entries"}
    assert (done.json["compiled"], done.json["hit"], done.json["failed"]) == (2, 0, 0)
    first = done.json["entries"][0]
    assert (first["spec"], first["spec_key"]) == ("fake@1[size=3]:sm_90a", make_spec(params={"size": 3}).key)
    assert (first["status"], first["error"], first["log"]) == ("compiled", None, None)
    assert len(first["cubin_digest"]) == 64


def test_warm_without_a_target_says_which_it_takes(run: Callable[..., Done]):
    done = run("warm", "--json", "--kernel", "fake", "--param", "size=1", CUDA_VISIBLE_DEVICES="")
    assert done.code == 0
    assert done.errors == "no --target given; no GPU here: all declared targets\n"
    assert [entry["spec"] for entry in done.json["entries"]] == [
        f"fake@1[size=1]:{target}" for target in fake_backend.KERNEL.targets
    ]


def test_warm_that_fails_says_where_the_log_is(shell: Callable[..., Done], root: str):
    arguments = ("--kernel", "fake", "--target", "sm_90a", "--param", "size=1", "--param", "mode=refuse")
    done = shell("warm", *arguments, "--param", "mode=good")
    spec = make_spec(params={"size": 1, "mode": "refuse"})
    log = f"{root}/logs/{spec.key}.log"
    assert done.code == 1
    assert done.errors == f"failed: cannot compile {spec}: expected ';'; log: {log}\n"
    assert Path(log).read_text(encoding="utf-8") == fake_backend.LOG
    assert re.search(r"^1 compiled, 0 already there, 1 failed in ", done.output, re.MULTILINE)
    as_json = shell("warm", "--json", *arguments)
    assert (as_json.code, as_json.json["failed"], as_json.json["entries"][0]["log"]) == (1, 1, log)


def test_warm_keeps_the_compiler_s_words_out_of_its_output(shell: Callable[..., Done]):
    done = shell("warm", "--json", "--kernel", "fake", "--target", "sm_90a", "--param", "mode=print")
    assert done.json["compiled"] == 2
    assert fake_backend.SAID in done.errors


def test_warm_without_a_compiler_says_what_to_install(run: Callable[..., Done]):
    done = run("warm", "--kernel", "fake", "--target", "sm_90a", FAKE_COMPILER="none")
    assert (done.code, done.output) == (1, "")
    why = "its compiler is not installed; run `pip install fake-compiler`"
    assert done.errors == f"error: cannot compile `fake@1[size=1]:sm_90a`: {why}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel", "fakes"], "error: no kernel is called 'fakes' (did you mean 'fake'?)"),
        (["--kernel", "fake", "--param", "size=99"], "error: fake@1: size=99 is not one of 1, 2"),
        (["--kernel", "fake", "--param", "size=x"], "error: fake@1: size: 'x' is not of type int"),
        (["--kernel", "fake", "--target", "sm_90"], "error: no selected kernel is declared for sm_90 (did you mean"),
        (["--kernel", "fake", "--jobs", "0"], "Error: Invalid value for '--jobs'"),
    ],
)
def test_warm_of_what_means_nothing_is_refused(run: Callable[..., Done], arguments: list[str], message: str):
    done = run("warm", *(arguments if "--target" in arguments else [*arguments, "--target", "sm_90a"]))
    assert (done.code, done.output) == (2, "")
    assert message in done.errors


def test_warm_of_everything_shipped_is_a_hit_of_everything(run: Callable[..., Done], shipped_store: str):
    kernels = [kreg.REGISTRY.get(name) for name in SHIPPED]
    named = [word for kernel in kernels for word in ("--kernel", kernel.name)]
    targets = [word for target in kernels[0].targets for word in ("--target", target)]
    done = run("warm", "--json", "--store", shipped_store, *named, *targets)
    expected = [str(spec) for kernel in kernels for spec in kernel.specs()]
    assert [entry["spec"] for entry in done.json["entries"]] == expected
    assert (done.code, done.json["hit"]) == (0, len(expected))


# list


def test_list_shows_entries_and_marks_the_stale(shell: Callable[..., Done], mixed: Store, root: str):
    done = shell("list")
    rows = [line.split() for line in done.output.splitlines()]
    toolchain = ["fake_backend:BACKEND", "1.0", TOOLCHAIN.fingerprint[:6]]
    assert done.code == 0
    assert rows[1][:7] == ["fake", "1", "size=1", "sm_90a", *toolchain]
    assert rows[1][7:9] == ["1.5", "KiB"]
    assert rows[1][-2:] == ["24", "1536"]
    assert [row[-1] for row in rows[1:]] == ["1536", "1536", "stale"]
    assert done.errors == f"3 entries, 3.0 KiB of cubins in {root}\n"


def test_list_as_json_has_whole_keys(shell: Callable[..., Done], mixed: Store):
    listed = shell("list", "--json").json
    assert [item["spec"] for item in listed] == [
        "fake@1[size=1]:sm_90a", "fake@1[size=2]:sm_90a", "fake@7[size=1]:sm_90a",
    ]  # fmt: skip
    first = listed[0]
    age = first.pop("age_seconds")
    assert 0 <= age < 600
    assert first == {
        "spec": "fake@1[size=1]:sm_90a",
        "kernel": "fake",
        "version": 1,
        "params": {"size": 1},
        "target": "sm_90a",
        "spec_key": ONE.key,
        "toolchain_key": TOOLCHAIN.fingerprint,
        "toolchain": {"fake-compiler": "1.0"},
        "cubin_digest": ONE.cubin_digest,
        "cubin_bytes": len(ONE.cubin),
        "registers": 24,
        "shared_bytes": 1536,
        "stale": False,
        "path": str(entry_path(mixed, ONE)),
    }


@pytest.mark.parametrize(
    ("arguments", "versions"),
    [
        (["--stale"], [7]),
        (["--kernel", "fake@1"], [1, 1]),
        (["--param", "size=1"], [1, 7]),
        (["--param", "size=1", "--stale"], [7]),
        (["--target", "sm_100a"], []),
    ],
)
def test_list_of_a_selector(run: Callable[..., Done], mixed: Store, arguments: list[str], versions: list[int]):
    done = run("list", "--json", *arguments)
    assert (done.code, [item["version"] for item in done.json]) == (0, versions)


def test_list_of_nothing_is_empty(run: Callable[..., Done], root: str):
    done = run("list")
    assert (done.code, done.output, done.errors) == (0, "", f"0 entries, 0 B of cubins in {root}\n")
    assert run("list", "--json").json == []


def test_list_says_how_many_it_cannot_read(run: Callable[..., Done], mixed: Store):
    flip(entry_path(mixed, ONE), 500)
    done = run("list")
    assert done.code == 0
    assert done.errors.endswith("\n1 entry cannot be read; see `kreg verify`\n")


def test_list_of_an_unknown_kernel_is_refused(shell: Callable[..., Done], mixed: Store):
    done = shell("list", "--kernel", "fakes")
    assert (done.code, done.output) == (2, "")
    assert done.errors.startswith("error: no kernel is called 'fakes' (did you mean 'fake'?)")


# show


def test_show_by_spec_prints_manifest_and_paths(shell: Callable[..., Done], mixed: Store):
    done = shell("show", "fake[size=1]:sm_90a")
    cubin = object_path(mixed, ONE)
    fields = dict(line.split(None, 1) for line in done.output.splitlines() if "  " in line)
    assert done.code == 0
    assert done.output.startswith("fake@1[size=1]:sm_90a\n")
    assert fields["spec_key"] == ONE.key
    assert fields["toolchain"] == "fake-compiler 1.0"
    assert fields["parameters"] == "(0, 8), (8, 8), (16, 4)"
    assert fields["entry"] == str(entry_path(mixed, ONE))
    assert done.output.endswith(f"disassemble: cuobjdump -sass {cubin}\n")
    assert cubin.is_file()


@pytest.mark.parametrize("length", [4, 12, 64, 65, 129])
def test_show_by_prefix_as_json(run: Callable[..., Done], mixed: Store, length: int):
    done = run("show", "--json", ONE.entry_key[:length])
    assert done.json["manifest"]["spec_key"] == ONE.key
    assert (done.json["entry"], done.json["cubin"]) == (str(entry_path(mixed, ONE)), str(object_path(mixed, ONE)))


def test_show_of_an_entry_that_is_no_longer_declared(run: Callable[..., Done], mixed: Store):
    done = run("show", "--json", "fake@7[size=1]:sm_90a")
    assert (done.code, done.json["manifest"]["version"]) == (0, 7)


def test_show_of_an_ambiguous_prefix_lists_what_matches(shell: Callable[..., Done], mixed: Store):
    other = make_artifact(1, toolchain_key=OTHER_TOOLCHAIN.fingerprint)
    mixed.publish(other)
    done = shell("show", ONE.key)
    names = sorted([ONE.entry_key, other.entry_key])
    assert (done.code, done.output) == (1, "")
    assert done.errors == (
        f"error: 2 entries match '{ONE.key}'; name one by a longer key:\n  {names[0]}\n  {names[1]}\n"
    )


def test_show_of_a_spec_under_several_toolchains_takes_the_installed_one(run: Callable[..., Done], mixed: Store):
    mixed.publish(make_artifact(1, toolchain_key=OTHER_TOOLCHAIN.fingerprint))
    shown = [
        run("show", "--json", "fake[size=1]:sm_90a", FAKE_COMPILER=version).json["manifest"]["toolchain_key"]
        for version in ("1.0", "2.0")
    ]
    assert shown == [TOOLCHAIN.fingerprint, OTHER_TOOLCHAIN.fingerprint]


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("ffffffff", 1, "error: no entry for 'ffffffff' in {root}; see `kreg list`\n"),
        ("fake[size=5]:sm_90a", 1, "error: no entry for 'fake[size=5]:sm_90a' in {root}; see `kreg list`\n"),
        ("fak[size=5]:sm_90a", 2, "error: no kernel is called 'fak' (did you mean 'fake'?)"),
        ("fake@9[size=1]:sm_90a", 2, "error: fake@9 is not declared; the declared version is 1\n"),
    ],
)
def test_show_of_what_is_not_there(
    run: Callable[..., Done], mixed: Store, root: str, what: str, code: int, message: str
):
    done = run("show", what)
    assert (done.code, done.output) == (code, "")
    assert done.errors.startswith(message.format(root=root))


# verify


def sound(run: Callable[..., Done], *arguments: str) -> None:
    """Fill the store of ``run`` with what the fake compiler makes."""
    assert run("warm", "--kernel", "fake", "--target", "sm_90a", *arguments).code == 0


def test_verify_of_a_sound_store(run: Callable[..., Done], mixed: Store):
    done = run("verify")
    assert (done.code, done.output) == (0, "")
    assert re.fullmatch(r"3 entries checked, 0 bad in \d+\.\d s\n", done.errors)
    assert run("verify", "--json").json.items() >= {"checked": 3, "bad": [], "newer": 0, "not_recompiled": 0}.items()


def test_verify_prints_a_line_for_each_bad_entry(shell: Callable[..., Done], mixed: Store):
    flip(entry_path(mixed, ONE), 500)
    flip(object_path(mixed, TWO), 500)
    reasons = {
        str(entry_path(mixed, ONE)): (None, f"manifest {entry_path(mixed, ONE)} does not match its own digest"),
        str(entry_path(mixed, TWO)): (
            "fake@1[size=2]:sm_90a", f"its cubin {object_path(mixed, TWO)} does not match its digest",
        ),
    }  # fmt: skip
    before = files_below(mixed.root)
    done = shell("verify")
    assert done.code == 1
    assert set(done.output.splitlines()) == {f"{path}: {reason}" for path, (_, reason) in reasons.items()}
    assert "3 entries checked, 2 bad in " in done.errors
    as_json = shell("verify", "--json")
    assert as_json.code == 1
    assert {bad["path"]: (bad["spec"], bad["reason"]) for bad in as_json.json["bad"]} == reasons
    assert files_below(mixed.root) == before


def test_verify_of_a_selector_checks_no_more(run: Callable[..., Done], mixed: Store):
    flip(object_path(mixed, TWO), 500)
    assert run("verify", "--json", "--param", "size=1").json["checked"] == 2
    assert run("verify", "--param", "size=2").code == 1


def test_verify_of_an_unknown_kernel_is_refused(run: Callable[..., Done], mixed: Store):
    done = run("verify", "--kernel", "fakes")
    assert (done.code, done.output) == (2, "")
    assert "no kernel is called 'fakes'" in done.errors


def test_verify_leaves_entries_of_a_newer_kreg_alone(run: Callable[..., Done], mixed: Store):
    path = entry_path(mixed, ONE)
    path.write_bytes(path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    done = run("verify")
    assert (done.code, done.output) == (0, "")
    assert done.errors.startswith("1 entry of a newer kreg left alone\n2 entries checked, 0 bad in ")


def test_verify_recompiles_and_compares_machine_code(run: Callable[..., Done], store: Store, runs: Callable[[], int]):
    sound(run)
    store.publish(make_artifact(spec=make_spec(version=7)))
    done = run("verify", "--recompile")
    assert done.code == 0
    assert done.errors.startswith("1 entry not compiled again: no longer declared\n3 entries checked, 0 bad in ")
    assert runs() == 4
    # What stands here as size 1 was not made by the fake compiler.
    store.publish(ONE)
    done = run("verify", "--recompile", "--kernel", "fake@1", FAKE_COMPILER="2.0")
    assert done.code == 1
    assert done.output == f"{entry_path(store, ONE)}: compiling again with another toolchain gives other machine code\n"
    done = run("verify", "--recompile", "--kernel", "fake@1")
    assert done.output == f"{entry_path(store, ONE)}: compiling again from the same sources gives other machine code\n"


def test_verify_recompiles_a_real_kernel_to_the_same_code(run: Callable[..., Done], shipped_store: str):
    done = run(
        "verify", "--json", "--recompile", "--store", shipped_store, "--kernel", "kimi_topk16", "--target", "sm_90a"
    )
    assert (done.code, done.json["checked"], done.json["bad"]) == (0, 2, [])


# clear


def test_clear_shows_what_goes_and_removes_it(run: Callable[..., Done], mixed: Store):
    done = run("clear", "--param", "size=1", "--kernel", "fake@1", "--yes")
    shown = f"1 entry and 0 cubins, {show_bytes(len(ONE.manifest_bytes))}"
    assert done.code == 0
    assert [line.split()[:4] for line in done.output.splitlines()[1:]] == [["fake", "1", "size=1", "sm_90a"]]
    assert done.errors == f"to remove: {shown}\nremoved {shown}\n"
    assert not entry_path(mixed, ONE).exists()
    assert object_path(mixed, ONE).exists(), "version 7 still names it"


def test_clear_of_the_stale_removes_them_alone(shell: Callable[..., Done], mixed: Store):
    done = shell("clear", "--stale", "--yes", "--json")
    assert (done.code, done.json["removed"]) == (0, True)
    assert [entry["spec"] for entry in done.json["entries"]] == ["fake@7[size=1]:sm_90a"]
    assert len(list(mixed.entry_files())) == 2


def test_clear_all_removes_everything(shell: Callable[..., Done], mixed: Store):
    flip(entry_path(mixed, TWO), 500)
    done = shell("clear", "--all", "--yes")
    assert done.code == 0
    assert "\n1 unreadable entry\n" in done.output
    assert "removed 3 entries and 2 cubins, " in done.errors
    assert set(files_below(mixed.root)) == {"CACHEDIR.TAG", "locks/sweep.lock"}


@pytest.mark.parametrize("arguments", [["--dry-run"], ["--dry-run", "--yes"], ["--dry-run", "--json"]])
def test_clear_dry_run_removes_nothing(run: Callable[..., Done], mixed: Store, arguments: list[str]):
    before = files_below(mixed.root)
    done = run("clear", "--all", *arguments)
    assert done.code == 0
    if "--json" in arguments:
        assert done.json["removed"] is False
        assert (len(done.json["entries"]), len(done.json["objects"])) == (3, 2)
        assert done.json["bytes"] == sum(map(len, before.values())) - len(before["CACHEDIR.TAG"])
    else:
        assert "to remove: 3 entries and 2 cubins, " in done.errors
    assert files_below(mixed.root) == before


@pytest.mark.parametrize("arguments", [["--all"], ["--all", "--json"], ["--kernel", "fake"], ["--stale"]])
def test_clear_off_a_terminal_refuses_without_yes(run: Callable[..., Done], mixed: Store, arguments: list[str]):
    before = files_below(mixed.root)
    done = run("clear", *arguments)
    assert done.code == 2
    assert "Error: not a terminal to ask on; give --yes to remove, --dry-run to look\n" in done.errors
    assert files_below(mixed.root) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Error: nothing is named: give --kernel, --target, --param, --stale or --all\n"),
        (["--yes"], "Error: nothing is named: give --kernel, --target, --param, --stale or --all\n"),
        (["--all", "--kernel", "fake", "--yes"], "Error: --all goes with no selector\n"),
        (["--all", "--stale", "--yes"], "Error: --all goes with no selector\n"),
        (["--kernel", "fakes", "--yes"], "error: no kernel is called 'fakes' (did you mean 'fake'?)"),
        (["--param", "size", "--yes"], "error: 'size' is not 'name=value'\n"),
    ],
)
def test_clear_of_what_means_nothing_is_refused(
    run: Callable[..., Done], mixed: Store, arguments: list[str], message: str
):
    before = files_below(mixed.root)
    done = run("clear", *arguments)
    assert (done.code, done.output) == (2, "")
    assert message in done.errors
    assert files_below(mixed.root) == before


def test_clear_of_what_is_not_there_is_fine(run: Callable[..., Done], mixed: Store):
    done = run("clear", "--target", "sm_120a")
    assert (done.code, done.output, done.errors) == (0, "", "to remove: 0 entries and 0 cubins, 0 B\n")


def test_clear_refuses_a_folder_that_is_no_store(run: Callable[..., Done], root: str):
    Path(root).mkdir()
    Path(root, "notes.json").write_text("mine")
    done = run("clear", "--all", "--yes")
    assert (done.code, done.output) == (1, "")
    assert done.errors == (
        f"error: {root} is not a kreg store (it has no CACHEDIR.TAG and entries); nothing is removed\n"
    )
    assert files_below(root) == {"notes.json": b"mine"}


@pytest.mark.parametrize(("answer", "left"), [("y\n", 1), ("n\n", 3), ("\n", 3)])
def test_clear_asks_on_a_terminal(mixed: Store, environment: dict[str, str], answer: str, left: int):
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [str(KREG), "clear", "--kernel", "fake@1"], env=child_environment(**environment), stdin=theirs,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.write(ours, answer.encode())
    _, errors = child.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert "remove 2 entries and 1 cubin, " in errors
    assert child.returncode == 0
    assert len(list(mixed.entry_files())) == left


# What all verbs have in common.

VERBS = [
    "bench", "check", "clear", "diff", "dir", "export", "gc", "import", "key", "list", "lock", "show", "verify", "warm",
    "why",
]  # fmt: skip


def test_help_lists_every_verb(run: Callable[..., Done]):
    done = run("--help")
    assert done.code == 0
    assert re.findall(r"^  ([a-z]+)  +\S", done.output.partition("Commands:")[2], re.MULTILINE) == VERBS


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "bench"])
def test_every_verb_takes_store_and_json(run: Callable[..., Done], verb: str):
    done = run(verb, "-h")
    assert done.code == 0
    assert "--store DIR" in done.output
    assert "--json" in done.output


@pytest.mark.parametrize("verb", ["clear", "export", "list", "verify", "warm"])
def test_selectors_are_the_same_everywhere(run: Callable[..., Done], verb: str):
    done = run(verb, "-h")
    for option in ("--kernel NAME[@V]", "--target T", "--param NAME=VALUE"):
        assert option in done.output


@pytest.mark.parametrize("arguments", [["lst"], ["list", "--nonsense"], ["key"], ["show"]])
def test_usage_errors_exit_with_2(run: Callable[..., Done], arguments: list[str]):
    done = run(*arguments)
    assert (done.code, done.output) == (2, "")
    assert done.errors.startswith("Usage: kreg")


def test_version_is_printed(shell: Callable[..., Done]):
    assert shell("--version").output == f"kreg, version {kreg.__version__}\n"


VERBS_ON_A_STORE = [
    ["list"], ["verify"], ["show", "abcdef"], ["clear", "--all", "--yes"],
    ["warm", "--kernel", "fake", "--target", "sm_90a"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", VERBS_ON_A_STORE)
def test_store_that_is_a_file_is_an_error(run: Callable[..., Done], root: str, arguments: list[str]):
    Path(root).write_text("mine")
    done = run(*arguments)
    assert (done.code, done.output) == (1, "")
    assert done.errors == f"error: the store {root} is not a directory; set KREG_STORE or --store to one\n"
    assert Path(root).read_text() == "mine"


def test_bad_variable_is_an_error(shell: Callable[..., Done]):
    done = shell("warm", "--kernel", "fake", "--target", "sm_90a", KREG_WAIT="soon")
    assert done.code == 1
    assert "KREG_WAIT is 'soon'; it is a number of seconds" in done.errors


def test_looking_at_a_store_imports_no_compiler_torch_or_driver(mixed: Store, environment: dict[str, str]):
    code = (
        "import sys\nfrom kreg.cache_tools import main\n"
        "main(['list', '--json'], standalone_mode=False)\n"
        "print(sorted({'cutlass', 'torch', 'cuda', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(**environment), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_command_is_installed():
    assert shutil.which(str(KREG)) is not None
