"""Users, what they may do, and what surrounds a process: environments, paths, limits and clocks.

Two users share a store where they are let and never where they are not; a process without a home, an account or a
store has its kernels all the same; and neither names nor clocks change what is found.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import (
    HERE,
    child_environment,
    entry_path,
    files_below,
    flip,
    make_artifact,
    object_path,
    python,
    resolve_anew,
    warnings_of,
)
from click.testing import CliRunner
from fake_backend import KERNEL
from kreg.cache_tools import main

import kreg
from kreg import Artifact, Store, keylock, sweep
from kreg.inventory import entries
from kreg.selector import Selector
from kreg.sweep import Limits, gc
from kreg.upkeep import verify

DAY = 86400.0
ANN, BOB, EVE, GROUP = 54001, 54002, 54003, 54100
"""Numbers of users and a group that have no account; Eve is not in the group."""
NOBODY_KNOWS = 1000800000

Done = subprocess.CompletedProcess[str]
AsUser = Callable[..., Done]
Runs = Callable[[], int]

RESOLVE = """
import json, sys, warnings, kreg
from fake_backend import KERNEL
root, *sizes = sys.argv[1:]
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    found = [kreg.resolve(KERNEL, size=int(size), target="sm_90a", store=root or None).origin for size in sizes]
print(json.dumps([found, [str(warning.message) for warning in given]]))
"""
KREG = """
import kreg
from fake_backend import KERNEL
from kreg.cache_tools import main
kreg.REGISTRY.add(KERNEL)
main(prog_name="kreg")
"""


def said(done: Done) -> list[list[str]]:
    """Return where each artifact came from and the warnings, as ``RESOLVE`` prints them."""
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def mode_of(path: str | Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(os.stat(path).st_mode)


def can_run(interpreter: str) -> bool:
    """Say whether every user can run an interpreter, and import kreg and these tests in it."""
    code = "import kreg, msgspec, click, multiprocessing.spawn, fake_backend, builders"
    try:
        done = subprocess.run(
            [interpreter, "-c", code], env={"PYTHONPATH": str(HERE)}, user=EVE, group=EVE, extra_groups=[], cwd="/",
            capture_output=True, check=False,
        )  # fmt: skip
    except OSError:
        return False
    return done.returncode == 0


@pytest.fixture(scope="session")
def interpreter() -> Iterator[str]:
    """Return an interpreter that every user can run: this one, or one of the system with this one's packages."""
    if os.geteuid() != 0:
        pytest.skip("needs to become other users")
    if can_run(sys.executable):
        yield sys.executable
        return
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    system = shutil.which(version, path="/usr/local/bin:/usr/bin")
    if system is None:
        pytest.skip("needs an interpreter that other users can run")
    folder = Path(tempfile.mkdtemp(prefix="kreg-python-"))
    folder.chmod(0o755)
    for name in ("bin", f"lib/{version}"):
        (folder / name).mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(os.path.realpath(system))
    (folder / "lib" / version / "site-packages").symlink_to(sysconfig.get_path("purelib"))
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(system)}\n", encoding="utf-8")
    try:
        if not can_run(f"{folder}/bin/python"):
            pytest.skip("needs an interpreter and files that other users can reach")
        yield f"{folder}/bin/python"
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def as_user(interpreter: str) -> AsUser:
    """Return a function that runs code as a user, with nothing in its environment but what it is given."""

    def run(
        code: str, *arguments: str, user: int, groups: tuple[int, ...] = (), mask: int = 0o022, **variables: str
    ) -> Done:
        return subprocess.run(
            [interpreter, "-c", code, *arguments], user=user, group=user, extra_groups=groups, umask=mask, cwd="/",
            env={"PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1", **variables}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


# Two users.


@pytest.fixture
def shared(public_path: Path) -> str:
    """Return a store that does not exist yet, in a folder of a group."""
    folder = public_path / "shared"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    return f"{folder}/store"


@pytest.fixture
def in_group(as_user: AsUser) -> AsUser:
    """Return a function that runs code as a user of the group."""
    return lambda *arguments, user: as_user(*arguments, user=user, groups=(GROUP,), mask=0o002)


def test_users_of_a_group_share_a_store(shared: str, in_group: AsUser):
    assert said(in_group(RESOLVE, shared, "1", "2", "3", user=ANN)) == [["compiled"] * 3, []]
    paths = {number: str(entry_path(Store(shared), make_artifact(number))) for number in (1, 2, 3, 4)}
    # Bob finds them, adds one beside them, and Ann finds that.
    assert said(in_group(RESOLVE, shared, "1", "2", "4", user=BOB)) == [[paths[1], paths[2], "compiled"], []]
    assert said(in_group(RESOLVE, shared, "4", user=ANN)) == [[paths[4]], []]
    made = [Path(shared), *Path(shared).rglob("*")]
    assert {os.stat(path).st_uid for path in made} == {ANN, BOB}
    assert {os.stat(path).st_gid for path in made} == {GROUP}
    assert {mode_of(path) for path in made} == {0o2775, 0o664}


LOCK = """
import os, sys
from kreg import Store
store = Store(sys.argv[1])
for name in sorted(os.listdir(f"{store.root}/locks")):
    for lock in (store.key_lock(name[:2], 0), store.sweep_lock(shared=True), store.sweep_lock(shared=False)):
        with lock as held:
            print(name, held)
"""


def test_users_of_a_group_hold_each_other_s_locks(shared: str, in_group: AsUser):
    in_group(RESOLVE, shared, "1", "2", user=ANN)
    done = in_group(LOCK, shared, user=BOB)
    assert "sweep.lock True" in done.stdout
    assert "False" not in done.stdout


@pytest.mark.parametrize("place", [entry_path, object_path])
def test_bad_file_of_one_user_is_replaced_by_another(
    shared: str, in_group: AsUser, place: Callable[[Store, Artifact], Path]
):
    in_group(RESOLVE, shared, "1", user=ANN)
    path = str(entry_path(Store(shared), make_artifact(1)))
    [bad] = Store(shared).object_files() if place is object_path else [path]
    flip(Path(bad), 400)
    found, warned = said(in_group(RESOLVE, shared, "1", user=BOB))
    assert (found, len(warned)) == (["compiled"], 1)
    assert "set aside as" in warned[0]
    assert os.stat(bad).st_uid == BOB
    assert said(in_group(RESOLVE, shared, "1", user=ANN)) == [[path], []]


def test_user_clears_and_collects_what_another_wrote(shared: str, in_group: AsUser):
    in_group(RESOLVE, shared, "1", "2", "3", user=ANN)
    left = Path(shared) / "tmp" / "1-2"
    left.touch()
    os.chown(left, ANN, GROUP)
    os.utime(left, (0, 0))
    for arguments, count in (
        (["clear", "--param", "size=1", "--yes"], 2),
        (["gc", "--max-entries", "1"], 1),
        (["clear", "--all", "--yes"], 0),
    ):
        done = in_group(KREG, *arguments, "--store", shared, user=BOB)
        assert (done.returncode, len(list(Store(shared).entry_files()))) == (0, count), done.stderr
    assert not left.exists()
    assert list(Store(shared).object_files()) == []
    assert said(in_group(RESOLVE, shared, "1", user=ANN)) == [["compiled"], []]


def test_user_outside_the_group_reads_and_has_one_warning_for_a_miss(shared: str, in_group: AsUser, as_user: AsUser):
    in_group(RESOLVE, shared, "1", user=ANN)
    path = str(entry_path(Store(shared), make_artifact(1)))
    before = files_below(shared)
    assert said(as_user(RESOLVE, shared, "1", user=EVE)) == [[path], []]
    found, warned = said(as_user(RESOLVE, shared, "1", "2", "3", user=EVE))
    assert (found, len(warned)) == ([path, "compiled", "compiled"], 1)
    assert warned[0].endswith("Permission denied; going on without the store")
    assert files_below(shared) == before


def test_users_with_the_defaults_neither_clash_nor_share(public_path: Path, as_user: AsUser):
    for user in (ANN, BOB):
        home = public_path / str(user)
        home.mkdir()
        os.chown(home, user, user)
        for origin in ("compiled", str(home)):
            [[found], warned] = said(as_user(RESOLVE, "", "1", user=user, HOME=str(home)))
            assert found.startswith(origin)
            assert warned == []
        assert mode_of(home / ".cache" / "kreg") == 0o700


def test_users_with_one_cache_directory_do_not_share_the_default_store(public_path: Path, as_user: AsUser):
    cache = public_path / "cache"
    cache.mkdir()
    cache.chmod(0o1777)
    assert said(as_user(RESOLVE, "", "1", user=ANN, XDG_CACHE_HOME=str(cache))) == [["compiled"], []]
    found, warned = said(as_user(RESOLVE, "", "1", "2", user=BOB, XDG_CACHE_HOME=str(cache)))
    assert (found, len(warned)) == (["compiled"] * 2, 1)
    assert f"the default store {cache}/kreg belongs to user {ANN}" in warned[0]
    [[found], warned] = said(as_user(RESOLVE, "", "1", user=ANN, XDG_CACHE_HOME=str(cache)))
    assert found.startswith(str(cache))
    assert warned == []


FILL = """
import sys, warnings, kreg
from fake_backend import KERNEL
warnings.simplefilter("ignore")
root = sys.argv[1] or None
for size in (1, 2):
    path = kreg.resolve(KERNEL, size=size, target="sm_90a", store=root)
store = kreg.Store(root)
for path in [next(store.entry_files()), next(store.object_files())]:
    open(path, "r+b").write(b"bad")
    kreg.forget()
    for size in (1, 2):
        kreg.resolve(KERNEL, size=size, target="sm_90a", store=root)
kreg.warm([(KERNEL, KERNEL.spec("sm_90a", {"size": 3, "mode": mode})) for mode in ("good", "refuse")], store=root)
"""


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022, 0o002])
@pytest.mark.parametrize("is_default", [False, True])
def test_modes_follow_the_mask_and_are_all_alike(tmp_path: Path, mask: int, is_default: bool):
    cache, named = tmp_path / "cache", str(tmp_path / "named")
    environment = child_environment(XDG_CACHE_HOME=str(cache))
    python(FILL, "" if is_default else named, environment=environment, umask=mask)
    root = cache / "kreg" if is_default else Path(named)
    below = list(root.rglob("*"))
    assert {path.relative_to(root).parts[0] for path in below if path.is_file()} == {
        "CACHEDIR.TAG", "entries-v1", "objects-v1", "locks", "quarantine", "logs",
    }  # fmt: skip
    assert {oct(mode_of(path)) for path in below if path.is_file()} == {oct(0o666 & ~mask)}
    assert {oct(mode_of(path)) for path in below if path.is_dir()} == {oct(0o777 & ~mask)}
    assert mode_of(root) == (0o700 if is_default else 0o777 & ~mask)


# Users without a home or an account.

WRITES = """
import os, sys
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
seen = []

def watch(event, details):
    changes = event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.utime"}
    if changes or (event == "open" and isinstance(details[2], int) and details[2] & writing):
        seen.append((event, str(details)))
    if any(isinstance(detail, str) and detail.startswith(sys.argv[1]) for detail in details):
        seen.append((event, str(details)))

sys.addaudithook(watch)
import kreg
from fake_backend import KERNEL
kreg.Registry([KERNEL]).add(KERNEL)
kreg.REGISTRY.kernels()
print(seen)
"""


@pytest.mark.parametrize("home", [None, "", "/", "/nonexistent"])
def test_import_never_touches_the_disk(tmp_path: Path, home: str | None):
    environment = {"PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1", "KREG_STORE": str(tmp_path)}
    environment |= {} if home is None else {"HOME": home}
    assert python(WRITES, str(tmp_path), environment=environment, cwd="/") == "[]\n"
    assert list(tmp_path.iterdir()) == []


def homes(public_path: Path) -> dict[str, dict[str, str]]:
    """Return the environments of users who have no place for a store, by what they are called."""
    mine, closed = public_path / "mine", public_path / "closed"
    for folder, mode in ((mine, 0o755), (closed, 0o700)):
        folder.mkdir()
        folder.chmod(mode)
    return {
        "unset": {},
        "empty": {"HOME": ""},
        "root": {"HOME": "/"},
        "nonexistent": {"HOME": "/nonexistent"},
        "another's": {"HOME": str(mine)},
        "closed": {"HOME": str(closed)},
        "file": {"HOME": "/dev/null"},
        "relative": {"HOME": "here"},
        "cache of root": {"HOME": "/", "XDG_CACHE_HOME": "/root/.cache"},
        "cache empty": {"HOME": "/", "XDG_CACHE_HOME": ""},
        "cache relative": {"HOME": "/nonexistent", "XDG_CACHE_HOME": "here"},
    }


@pytest.mark.parametrize(
    "name",
    [
        "unset", "empty", "root", "nonexistent", "another's", "closed", "file", "relative", "cache of root",
        "cache empty", "cache relative",
    ],
)  # fmt: skip
def test_user_without_an_account_and_a_home_has_kernels(public_path: Path, as_user: AsUser, name: str):
    variables = homes(public_path)[name]
    found, warned = said(as_user(RESOLVE, "", "1", "2", user=NOBODY_KNOWS, **variables))
    assert found == ["compiled"] * 2
    assert len(warned) <= 1
    for arguments in (["dir"], ["list"], ["verify"], ["key", "fake[size=1]:sm_90a"]):
        done = as_user(KREG, *arguments, user=NOBODY_KNOWS, **variables)
        assert "Traceback" not in done.stderr
        assert done.returncode in {0, 1}


def test_user_without_an_account_uses_a_home_that_is_there(public_path: Path, as_user: AsUser):
    home = public_path / "home"
    home.mkdir()
    os.chown(home, NOBODY_KNOWS, NOBODY_KNOWS)
    for cache in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        variables = {"HOME": str(home), **cache}
        assert said(as_user(RESOLVE, "", "1", user=NOBODY_KNOWS, **variables))[1] == []
        done = as_user(KREG, "dir", user=NOBODY_KNOWS, **variables)
        assert done.stdout == f"{home}/.cache/kreg\n"
    assert os.listdir(f"{home}/.cache") == ["kreg"]


LIMITED = f"""
import resource
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
{KREG}
"""


def test_user_who_may_start_no_process_has_kernels_and_is_told(public_path: Path, as_user: AsUser):
    public_path.chmod(0o777)
    root = f"{public_path}/store"
    assert said(as_user(f"import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n{RESOLVE}", root, "1",
                        user=NOBODY_KNOWS)) == [["compiled"], []]  # fmt: skip
    arguments = ["warm", "--kernel", "fake", "--target", "sm_90a", "--store", root]
    done = as_user(LIMITED, *arguments, user=NOBODY_KNOWS)
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1}


# Where the store is, said by every part of kreg.


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (None, "home/.cache/kreg"),
        ("", "home/.cache/kreg"),
        (" ", "home/.cache/kreg"),
        ("~", "home"),
        ("~/x", "home/x"),
        ("./rel", "rel"),
        ("rel/", "rel"),
        ("{here}/a/../b", "b"),
        ("{here}/a/b\n", "a/b"),
        ("{here}//a///b/", "a/b"),
    ],
)
def test_every_part_names_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, place: str
):
    (tmp_path / "home").mkdir()
    (tmp_path / "a").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    if given is not None:
        monkeypatch.setenv("KREG_STORE", given.format(here=tmp_path))
    expected = f"{tmp_path}/{place}"
    with chdir(tmp_path):
        assert Store().root == expected
        assert CliRunner().invoke(main, ["dir"]).stdout == f"{expected}\n"
        report = kreg.warm([(KERNEL, KERNEL.spec("sm_90a", {"size": 1}))], jobs=1)
        assert [outcome.status for outcome in report.outcomes] == ["compiled"]
        assert resolve_anew(None).origin.startswith(f"{expected}/entries-v1/")
        assert json.loads(CliRunner().invoke(main, ["list", "--json"]).stdout)[0]["path"].startswith(f"{expected}/")
        assert json.loads(CliRunner().invoke(main, ["gc", "--max-age", "0s", "--dry-run", "--json"]).stdout)[
            "left"
        ] in {
            0,
            1,
        }


def test_relative_store_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
):
    monkeypatch.setenv("KREG_STORE", "rel")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with chdir(tmp_path / "one"):
        store = Store()
        kreg.resolve(KERNEL, size=1, target="sm_90a")
    with chdir(tmp_path / "two"):
        assert store.root == f"{tmp_path}/one/rel"
        assert resolve_anew(store).origin.startswith(f"{tmp_path}/one/rel/")
        # Whoever asks anew is told of the new place, whichever part is asked.
        assert Store().root == CliRunner().invoke(main, ["dir"]).stdout.rstrip("\n") == f"{tmp_path}/two/rel"
        kreg.warm([(KERNEL, KERNEL.spec("sm_90a", {"size": 2}))], jobs=1)
        assert resolve_anew(None, size=2).origin.startswith(f"{tmp_path}/two/rel/")
    assert runs() == 2


def test_process_whose_folder_is_gone_has_kernels(tmp_path: Path, root: str):
    code = f"import os, shutil\nshutil.rmtree(os.getcwd())\n{RESOLVE}"
    for number, store in enumerate((root, "relative")):
        gone = tmp_path / str(number)
        gone.mkdir()
        found, warned = json.loads(python(code, store, "1", "2", cwd=gone))
        assert found == ["compiled"] * 2
        assert len(warned) <= number


# Paths.


def test_store_below_folders_that_are_missing_is_made_by_many_at_once(tmp_path: Path, is_long: bool):
    for number in range(100 if is_long else 10):
        root = f"{tmp_path}/{number}/three/levels/down"
        reader, writer = os.pipe()
        children = []
        for size in range(1, 9):
            children.append(os.fork())
            if children[-1] == 0:
                os.close(writer)
                os.read(reader, 1)
                try:
                    _, warned = warnings_of(lambda size=size, root=root: resolve_anew(root, size=size))
                    os._exit(len(warned))
                finally:
                    os._exit(99)
        os.close(reader)
        os.close(writer)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
        assert len(list(Store(root).entry_files())) == 8
        assert verify(Store(root), Selector(), kreg.REGISTRY).findings == ()


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def loop(path: Path) -> None:
    path.symlink_to(path)


def dangling_parent(path: Path) -> None:
    path.parent.rmdir()
    path.parent.symlink_to("nowhere")


def device(path: Path) -> None:
    path.symlink_to("/dev/null")


def fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [dangling, loop, dangling_parent, device, fifo])
def test_path_that_can_be_no_store_costs_one_warning_that_names_it(tmp_path: Path, make: Callable[[Path], None]):
    path = tmp_path / "folder" / "store"
    path.parent.mkdir()
    make(path)
    found, warned = warnings_of(lambda: [kreg.resolve(KERNEL, size=n, target="sm_90a", store=path) for n in (1, 2)])
    assert ([artifact.origin for artifact in found], len(warned)) == (["compiled"] * 2, 1)
    assert str(path) in warned[0]
    done = CliRunner().invoke(main, ["warm", "--kernel", "kimi_topk16", "--store", str(path)])
    assert (done.exit_code, str(path) in done.stderr) == (1, True)
    assert not (tmp_path / "nowhere").exists()


VERBS = """
import json, sys, kreg
from fake_backend import KERNEL
from kreg.cache_tools import main
kreg.REGISTRY.add(KERNEL)
root, spec = sys.argv[1], "fake[size=1]:sm_90a"
codes = []
assert kreg.resolve(KERNEL, size=1, target="sm_90a", store=root).origin == "compiled"
kreg.forget()
assert kreg.resolve(KERNEL, size=1, target="sm_90a", store=root).origin.endswith(".json")
for arguments in (
    ["dir"], ["warm", "--kernel", "fake", "--target", "sm_90a", "--param", "size=2", "--jobs", "1"], ["list"],
    ["show", spec], ["why", spec], ["verify"], ["export", f"-o{root}.tar"], ["import", "--", f"{root}.tar"],
    ["lock", "--kernel", "fake", "--target", "sm_90a", f"--lockfile={root}.lock"],
    ["check", f"--lockfile={root}.lock"], ["gc", "--max-entries", "1"], ["clear", "--all", "--dry-run"],
    ["clear", "--all", "--yes"],
):
    try:
        main([arguments[0], *sys.argv[2:], f"--store={root}", *arguments[1:]], prog_name="kreg")
    except SystemExit as end:
        codes.append(end.code)
with open("codes", "w") as file:
    json.dump(codes, file)
"""
NAMES = (b"a b", b"q'uo\"te", b"-dash", b"per%cent", b"%(x)s{y}$HOME", b"new\nline")
FOREIGN_NAMES = ("\xfcn\xef c\xf4d\xe9 \u65e5\u672c".encode(), b"\xff\xfe")


@pytest.mark.parametrize("form", ["", "--json"])
@pytest.mark.parametrize(
    ("name", "locale"),
    [*((name, "C") for name in (*NAMES, *FOREIGN_NAMES)), *((name, "C.UTF-8") for name in FOREIGN_NAMES)],
)
def test_store_of_any_name_is_used_by_every_verb(tmp_path: Path, name: bytes, locale: str, form: str):
    variables = child_environment(LC_ALL=locale, LANG=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    done = subprocess.run(
        [sys.executable, "-c", VERBS, os.fsdecode(name), *([form] if form else [])], env=variables, cwd=tmp_path,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    codes = json.loads((tmp_path / "codes").read_text(encoding="utf-8"))
    assert set(codes) == {0}, (codes, done.stderr.decode("utf-8", "replace"))
    if not form:
        assert done.stdout.startswith(os.fsencode(tmp_path) + b"/" + name + b"\n")


@pytest.mark.parametrize("length", [3900, 3990, 4040, 4080, 4095, 4096, 4200, 10_000])
def test_very_long_path_works_or_is_named_in_one_warning(tmp_path: Path, length: int):
    root = str(tmp_path)
    while len(root) + 201 < length:
        root += "/" + "d" * 200
    root += "/" + "e" * (length - len(root) - 1)
    assert len(root) == length
    found, warned = warnings_of(lambda: [kreg.resolve(KERNEL, size=n, target="sm_90a", store=root) for n in (1, 2)])
    assert [artifact.origin for artifact in found] == ["compiled"] * 2
    assert len(warned) == (length > 3900)
    assert all("File name too long; going on without the store" in line for line in warned)
    for verb in (["list"], ["verify"], ["gc"], ["clear", "--all", "--yes"]):
        done = CliRunner().invoke(main, [*verb, "--store", root])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code == 0 or "File name too long" in done.stderr or "is not a kreg store" in done.stderr


def test_name_that_is_too_long_costs_one_warning(tmp_path: Path):
    found, warned = warnings_of(lambda: resolve_anew(tmp_path / ("n" * 256)))
    assert (found.origin, len(warned)) == ("compiled", 1)
    assert warned[0].endswith("File name too long; going on without the store")


def test_store_with_slashes_at_its_end_is_the_same(root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    for given in (root, f"{root}/", f"{root}//", f"{root}/.", f"{root}/x/..", Path(root)):
        assert resolve_anew(given).manifest.params == {"size": 1}
        monkeypatch.setenv("KREG_STORE", str(given))
        assert resolve_anew(None).origin.startswith(f"{root}/entries-v1/")
    assert runs() == 1


def test_root_of_the_file_system_is_no_store():
    before = os.listdir("/")
    found, warned = warnings_of(lambda: resolve_anew("/"))
    assert (found.origin, len(warned)) == ("compiled", 1)
    assert os.listdir("/") == before


# Clocks.


def shift(root: str, seconds: float | None) -> None:
    """Move the times of everything in a store by so many seconds, or to 1970."""
    for path in [Path(root), *Path(root).rglob("*")]:
        found = path.stat()
        times = (0.0, 0.0) if seconds is None else (found.st_atime + seconds, found.st_mtime + seconds)
        os.utime(path, times)


@pytest.mark.parametrize("seconds", [67, -67, 3600, -3600, 3650 * DAY, -3650 * DAY, None])
def test_hits_do_not_see_file_times(full: Store, runs: Runs, seconds: float | None):
    for size in (1, 2):
        resolve_anew(full, size=size)
    compiled = runs()
    shift(full.root, seconds)
    found, warned = warnings_of(lambda: [resolve_anew(full, size=size) for size in (1, 2)])
    assert (runs(), warned) == (compiled, [])
    assert all(artifact.origin.startswith(full.root) for artifact in found)
    for verb in (["list"], ["list", "--json"], ["verify"], ["show", "fake@1[size=1]:sm_90a"]):
        done = CliRunner().invoke(main, [*verb, "--store", full.root])
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("seconds", "left"), [(67, 2), (-67, 2), (3600, 2), (-3600, 2), (-3650 * DAY, 0), (None, 0)])
def test_age_limit_takes_what_is_old_by_far(full: Store, seconds: float | None, left: int):
    shift(full.root, seconds)
    assert gc(full, Limits(age=90 * DAY)).left == left


def test_age_limit_of_nothing_takes_what_is_dated_a_minute_ahead(full: Store):
    shift(full.root, 67)
    assert gc(full, Limits(age=0)).left == 0


@pytest.mark.parametrize("limits", [Limits(age=90 * DAY), Limits(unused=90 * DAY)])
def test_entry_from_the_future_is_not_kept_for_ever(full: Store, monkeypatch: pytest.MonkeyPatch, limits: Limits):
    path = entry_path(full, make_artifact(1))
    os.utime(path, (time.time() + 3650 * DAY,) * 2)
    gc(full, limits)
    real = sweep._clock(full)
    monkeypatch.setattr(sweep, "_clock", lambda _: real + 91 * DAY)
    gc(full, limits)
    assert [entry.path for entry in entries(full)] == []


def test_wait_is_bounded_while_the_clock_jumps(root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    store = Store(root)
    store.prepare()
    monkeypatch.setenv("KREG_WAIT", "0.3")
    real, jumps = time.time, iter(range(1_000_000))
    monkeypatch.setattr(time, "time", lambda: real() + (3600 if next(jumps) % 2 else -3600))

    def pause(seconds: float) -> None:
        time.time()
        time.sleep(seconds)

    monkeypatch.setattr(keylock, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause, time=time.time))
    begun = time.monotonic()
    with store.key_lock(KERNEL.spec("sm_90a", {"size": 1}).key, 0):
        assert warnings_of(lambda: resolve_anew(store).origin) == ("compiled", [])
    assert 0.3 <= time.monotonic() - begun < 3
    assert warnings_of(lambda: resolve_anew(store).origin.startswith(root)) == (True, [])
    assert runs() == 1


HOST = """
import sys, time
skew = float(sys.argv[1])
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + skew
time.time_ns = lambda: real_ns() + int(skew * 1e9)
import kreg
from fake_backend import KERNEL
from kreg.sweep import Limits, gc
root, role = sys.argv[2:]
if role == "hold":
    with kreg.Store(root).key_lock(KERNEL.spec("sm_90a", {"size": 1}).key, 0) as held:
        print(held, flush=True)
        sys.stdin.read()
else:
    found = [kreg.resolve(KERNEL, size=int(size), target="sm_90a", store=root).origin for size in role]
    swept = gc(kreg.Store(root), Limits(age=1800, unused=1800))
    print(found.count("compiled"), len(swept.entries), len(swept.objects), len(swept.leftovers))
"""


def test_hosts_whose_clocks_differ_share_a_store(root: str, runs: Runs):
    assert python(HOST, "3600", root, "12") == "2 0 0 0\n"
    (Path(root) / "tmp" / "1-2").touch()  # Another writer's, at work.
    assert python(HOST, "-3600", root, "123") == "1 0 0 0\n"
    assert python(HOST, "3600", root, "123") == "0 0 0 0\n"
    assert python(HOST, "0", root, "321") == "0 0 0 0\n"
    assert runs() == 3
    assert (Path(root) / "tmp" / "1-2").exists()


@pytest.mark.parametrize("skew", ["3600", "-3600"])
def test_lock_of_a_host_with_another_clock_is_not_taken_for_an_old_one(root: str, skew: str):
    Store(root).prepare()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOST, skew, root, "hold"], env=child_environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    key = KERNEL.spec("sm_90a", {"size": 1}).key
    with holder:
        assert holder.stdout.readline() == "True\n"
        os.utime(f"{root}/locks/{key[:2]}.lock", (0, 0))
        with Store(root).key_lock(key, 0.1) as held:
            assert not held
        holder.stdin.close()
    with Store(root).key_lock(key, 0) as held:
        assert held


EDIT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
skew = float(sys.argv[2])
real = time.time
time.time = lambda: real() + skew
import constant
import kreg
from fake_backend import KERNEL
kernel = kreg.Kernel(**{
    **{name: getattr(KERNEL, name) for name in kreg.Kernel.__slots__}, "options": {}, "file": constant.__file__,
    "backend": "edited_backend:BACKEND", "sources": ("constant.py", "edited_backend.py"),
})
kreg.REGISTRY.add(kernel)
import edited_backend
with open(constant.__file__, "w") as file:
    file.write("GRID = 22\\n")
print(kreg.resolve(kernel, size=1, target="sm_90a", store=sys.argv[3]).launch.grid[0])
"""
EDITED = """
import constant, fake_backend
from kreg.manifest import Launch

class Backend(fake_backend.FakeBackend):
    def compile(self, kernel, spec):
        compiled = super().compile(kernel, spec)
        compiled.launch = Launch(block=(128, 1, 1), grid=(constant.GRID, 1, 1), shared_bytes=0)
        return compiled

BACKEND = Backend()
"""


@pytest.mark.parametrize("skew", ["0", "-3600", "3600"])
def test_edit_after_the_start_is_seen_whatever_this_host_s_clock_says(tmp_path: Path, root: str, skew: str):
    (tmp_path / "constant.py").write_text("GRID = 1\n", encoding="utf-8")
    (tmp_path / "edited_backend.py").write_text(EDITED, encoding="utf-8")
    assert python(EDIT, str(tmp_path), skew, root) == "22\n"


# Noise.

NOISE: list[dict[str, str]] = [
    {"HOSTNAME": "pod-1", "POD_IP": "10.0.0.1", "MASTER_PORT": "1", "MAX_JOBS": "1", "OMP_NUM_THREADS": "1"},
    {"HOSTNAME": "pod-2", "POD_IP": "10.0.0.2", "MASTER_PORT": "2", "MAX_JOBS": "64", "OMP_NUM_THREADS": "64"},
    {"TZ": "Asia/Kathmandu", "LANG": "tr_TR.UTF-8", "LC_ALL": "C", "PYTHONUTF8": "0"},
    {"TMPDIR": "/nonexistent", "TEMP": "", "CUDA_VISIBLE_DEVICES": "3"},
    {"CUDA_VISIBLE_DEVICES": "", "CUDA_HOME": "/usr/local/cuda-1", "USER": "somebody", "LOGNAME": "", "SHELL": ""},
    {"PYTHONHASHSEED": "0", "PYTHONOPTIMIZE": "1"},
    {"PYTHONHASHSEED": "4294967295", "PYTHONDEVMODE": "1", "COLUMNS": "1", "TERM": "dumb"},
]
KEYS = f"""
import kreg
from fake_backend import KERNEL
asked = (KERNEL, {{"note": "bright", "size": 1}}), (kreg.REGISTRY.get("kimi_topk16"), {{}})
print(*(kernel.spec("sm_90a", params).key for kernel, params in asked))
{RESOLVE}
"""


def test_noise_of_a_host_changes_no_key_and_no_hit(root: str, tmp_path: Path, runs: Runs):
    printed = set()
    for number, variables in enumerate(NOISE):
        here = tmp_path / str(number)
        here.mkdir()
        keys, found = python(KEYS, root, "1", "2", environment=child_environment(**variables), cwd=here).splitlines()
        printed.add(keys)
        assert json.loads(found)[1] == []
    assert len(printed) == 1
    assert runs() == 2


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs to change the host's name")
def test_name_of_a_host_changes_no_hit(root: str, runs: Runs):
    for name in ("one", "two"):
        script = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        command = ["unshare", "--uts", "sh", "-c", script, name, sys.executable, "-c", RESOLVE, root, "1"]
        done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
        if "unshare" in done.stderr:
            pytest.skip("names of hosts cannot be changed here")
        assert said(done)[1] == []
    assert runs() == 1
    [lock] = [path for path in Path(root, "locks").iterdir() if path.name != "sweep.lock"]
    assert lock.read_text(encoding="utf-8").endswith(" one\n")
