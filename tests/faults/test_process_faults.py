"""Processes and threads: forked, spawned, interrupted, killed, and short of what a system gives.

Whatever happens to one of them, none hangs, none takes a lock from another, and none leaves anything behind.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_backend
import pytest
from builders import child_environment, files_below, python, warnings_of
from fake_backend import KERNEL

import kreg
from kreg import Artifact, Store
from kreg.backends import load_backend
from kreg.errors import CompileError

# Python 3.12 and later warn of every fork beside threads, which is what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

PATIENCE = 30.0
"""Seconds after which a process is taken to hang."""

Runs = Callable[[], int]
Start = Callable[..., "subprocess.Popen[str]"]

RESOLVE = """
import sys, kreg
from fake_backend import KERNEL
print(kreg.resolve(KERNEL, size=1, mode=sys.argv[2], target="sm_90a", store=sys.argv[1]).origin)
"""
WARM = """
import sys, kreg
from fake_backend import KERNEL
from kreg.cache_tools import main
kreg.REGISTRY.add(KERNEL)
arguments = ["--kernel", "fake", "--target", "sm_90a", "--param", f"mode={sys.argv[2]}", *sys.argv[3:]]
main(["warm", "--store", sys.argv[1], *arguments], prog_name="kreg")
"""


def resolve(root: object, **changes: object) -> Artifact:
    """Resolve the fake kernel at size 1."""
    return kreg.resolve(KERNEL, **{"size": 1, "target": "sm_90a", "store": root, **changes})


def key_of(mode: str) -> str:
    """Return the spec key of the fake kernel at size 1 in a mode."""
    return KERNEL.spec("sm_90a", {"size": 1, "mode": mode}).key


def is_free(store: Store, key: str) -> bool:
    """Say whether a key lock can be had at once."""
    with store.key_lock(key, 0) as held:
        return held


def until(holds: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Wait until something holds, and return how many seconds that took."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < seconds, f"still not so after {seconds} s"
        time.sleep(0.005)
    return time.monotonic() - start


def forked(how: str, action: Callable[[], object]) -> Callable[[], int]:
    """Do something in a forked child; return a function that waits for its exit code, and kills it if it hangs."""
    if how == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=action)
        process.start()
        child = process.pid or 0
    else:
        child = os.fork()
        if child == 0:
            try:
                action()
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a test that fails must not end two processes
                traceback.print_exc()
            finally:
                os._exit(1)

    def wait() -> int:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError("the child hangs")

    return wait


def exit_code(action: Callable[[], object]) -> int:
    """Do something in a forked child, and return its exit code."""
    return forked("os", action)()


def require(holds: object) -> None:
    """Raise unless something holds."""
    assert holds


def children_of(parent: int) -> list[int]:
    """Return the numbers of a process's children."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()]


def is_alive(process: int) -> bool:
    """Say whether a process is there, and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def has_open(process: int, path: str) -> bool:
    """Say whether a process has opened a file."""
    folder = f"/proc/{process}/fd"
    try:
        return path in [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    except OSError:
        return False


def leftovers(root: str) -> list[str]:
    """Return the temporary files of a store."""
    return [name for name in files_below(root) if name.startswith("tmp/")]


@pytest.fixture(autouse=True)
def _compile_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in this process, whose compiler is told what to do here, though the sources were just checked out."""
    monkeypatch.setattr("kreg.apart.changed_since_start", lambda _paths: False)


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts code in an interpreter; what is left of it and its children ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *arguments]
        started.append(
            subprocess.Popen(
                command, env=child_environment(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
            )
        )  # fmt: skip
        return started[-1]

    yield run
    for child in started:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        with child:
            pass


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let compiles of size 1 in this process wait for an event."""
    event = threading.Event()
    monkeypatch.setattr(
        fake_backend, "_misbehave", lambda _mode, _kernel, spec: dict(spec.params)["size"] != 1 or event.wait()
    )
    yield event
    event.set()


# Forks, beside a thread that compiles, and of a process that holds a lock.


@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_child_forked_during_a_compile_leaves_its_lock_alone(root: str, runs: Runs, go_on: threading.Event, how: str):
    store, key = Store(root), key_of("good")
    compiling = threading.Thread(target=resolve, args=(root,))
    compiling.start()
    until(lambda: runs() == 1)

    def act() -> None:
        assert not is_free(store, key)
        gc.collect()
        assert resolve(root, size=2).origin == "compiled"

    assert forked(how, act)() == 0
    assert exit_code(lambda: require(is_free(store, key))) == 1
    go_on.set()
    compiling.join()
    assert exit_code(lambda: require(is_free(store, key))) == 0
    assert runs() == 2


@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_child_forked_during_a_compile_takes_what_its_parent_compiles(
    root: str, runs: Runs, go_on: threading.Event, how: str
):
    compiling = threading.Thread(target=resolve, args=(root,))
    compiling.start()
    until(lambda: runs() == 1)
    wait = forked(how, lambda: require(resolve(root).origin.startswith(root)))
    time.sleep(0.1)
    go_on.set()
    compiling.join()
    assert (wait(), runs()) == (0, 1)


def leave(holding: list[Iterator[bool]]) -> None:
    """Leave the block of a lock, as a child does that raises an error or ``SystemExit``."""
    holding.pop().close()


def collect(holding: list[Iterator[bool]]) -> None:
    """Lose the last reference to the block of a lock."""
    holding.clear()
    gc.collect()


@pytest.mark.parametrize("act", [leave, collect])
@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_lock_of_the_parent_outlives_a_child_that_lets_go_of_it(
    store: Store, how: str, act: Callable[[list[Iterator[bool]]], None]
):
    def hold() -> Iterator[bool]:
        with store.key_lock(key_of("good"), 0) as held:
            yield held

    store.prepare()
    holding = [hold()]
    assert next(holding[0])
    assert forked(how, lambda: act(holding))() == 0
    third = exit_code(lambda: require(is_free(store, key_of("good"))))
    leave(holding)
    assert third == 1
    assert is_free(store, key_of("good"))


def test_compiler_that_forks_and_raises_in_the_child_costs_the_parent_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    is_taken: list[bool] = []

    def fork(*_: object) -> None:
        child = os.fork()
        if child == 0:
            raise CompileError("in the child", "no log")
        os.waitpid(child, 0)
        is_taken.append(is_free(store, key_of("good")))

    monkeypatch.setattr(fake_backend, "_misbehave", fork)
    parent = os.getpid()
    try:
        resolve(store)
    except CompileError:
        assert os.getpid() != parent
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert is_taken == [False]


def test_child_forked_after_a_compile_compiles_another(root: str, is_long: bool):
    for number in range(100 if is_long else 10):
        here = f"{root}-{number}"
        assert resolve(here).origin == "compiled"
        assert exit_code(lambda here=here: require(resolve(here, size=2).origin == "compiled")) == 0


FORK_AFTER_COMPILE = """
import os, sys, signal, kreg
for number in range(int(sys.argv[2])):
    root = f"{sys.argv[1]}-{number}"
    assert kreg.resolve("kimi_topk16", target="sm_90a", store=root).origin == "compiled"
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        assert kreg.resolve("kimi_topk16", target="sm_100a", store=root).origin == "compiled"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_child_forked_after_a_real_compile_compiles_another(root: str, is_long: bool):
    if load_backend("cute").toolchain() is None:
        pytest.skip("needs the compiler: pip install 'kreg[cute]'")
    python(FORK_AFTER_COMPILE, root, "20" if is_long else "1")


# Processes that multiprocessing starts, threads, and interpreters beside the main one.


def use_everything(root: str) -> None:
    """Resolve one variant and warm others, one of which is there."""
    assert resolve(root).origin == "compiled"
    variants = [(KERNEL, KERNEL.spec("sm_90a", {"size": size})) for size in (1, 2, 3)]
    assert [outcome.status for outcome in kreg.warm(variants, store=root, jobs=1).outcomes] == [
        "hit", "compiled", "compiled",
    ]  # fmt: skip


@pytest.fixture
def _no_server() -> Iterator[None]:
    """End the server that a start method keeps."""
    yield
    from multiprocessing import forkserver

    forkserver._forkserver._stop()


@pytest.mark.usefixtures("_no_server")
@pytest.mark.parametrize("is_daemon", [False, True])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_kreg_works_in_a_process_of_multiprocessing(root: str, method: str, is_daemon: bool):
    kwargs = {"target": use_everything, "args": (root,), "daemon": is_daemon}
    process = multiprocessing.get_context(method).Process(**kwargs)
    process.start()
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == 0


def test_kreg_works_in_a_thread_that_is_not_the_main_one(root: str):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(use_everything, root).result()


def test_many_threads_that_want_one_cold_key_compile_once(root: str, runs: Runs):
    barrier = threading.Barrier(16)

    def race(_: int) -> Artifact:
        barrier.wait()
        return resolve(root, mode="slow")

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(race, range(16)))
    assert len({artifact.cubin for artifact in found}) == 1
    assert runs() == 1


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first compile of this process fail."""
    numbers = iter(range(1000))

    def misbehave(*_: object) -> None:
        if next(numbers) == 0:
            raise CompileError("out of luck", "no log")

    monkeypatch.setattr(fake_backend, "_misbehave", misbehave)


def test_compile_that_failed_once_is_made_again(root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    fail_once(monkeypatch)
    with pytest.raises(CompileError, match=r"^out of luck$"):
        resolve(root)
    assert {name for name in files_below(root) if not name.startswith("locks/")} == {"CACHEDIR.TAG"}
    assert resolve(root).origin == "compiled"
    assert resolve(root).cubin
    assert runs() == 2


def test_compile_that_failed_in_one_thread_is_made_in_another(
    root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch, is_long: bool
):
    def race(barrier: threading.Barrier, here: str) -> Artifact | CompileError:
        barrier.wait()
        try:
            return resolve(here)
        except CompileError as error:
            return error

    rounds = 100 if is_long else 10
    for number in range(rounds):
        fail_once(monkeypatch)
        barrier = threading.Barrier(8)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _, b=barrier, n=number: race(b, f"{root}-{n}"), range(8)))
        assert sum(isinstance(result, CompileError) for result in found) == 1
        assert len({result.cubin for result in found if isinstance(result, Artifact)}) == 1
    assert runs() == 2 * rounds


SUBINTERPRETERS = """
import sys
import _xxsubinterpreters as interpreters

def run(code):
    interpreter = interpreters.create()
    try:
        interpreters.run_string(interpreter, f"root = {sys.argv[1]!r}\\n" + code)
        return "done"
    except interpreters.RunFailedError as error:
        return str(error)
    finally:
        interpreters.destroy(interpreter)

begin = "import kreg\\nfrom fake_backend import KERNEL\\n"
look = "assert kreg.resolve(KERNEL, size=1, target='sm_90a', store=root).manifest.kernel == 'fake'"
for _ in range(3):
    print(run(begin + look))
print(run("from kreg.cache_tools import main\\nmain(['list', '--json', '--store', root], standalone_mode=False)"))
print(run(begin + "kreg.warm([(KERNEL, KERNEL.spec('sm_90a', {'size': 2}))], store=root)"))
"""


def test_subinterpreters_resolve_or_say_what_they_cannot(root: str, runs: Runs):
    pytest.importorskip("_xxsubinterpreters")
    said = python(SUBINTERPRETERS, root).splitlines()
    lines, listed, warmed = said[:3], said[3:-1], said[-1]
    # Each extension module that is used says for itself whether it can be loaded there.
    assert set(lines) == {"done"} or all("ImportError" in line for line in lines), said
    assert listed[-1] == "done" or "ImportError" in listed[-1], said
    assert warmed == "done" or re.search("subinterpreter|ImportError", warmed), said
    assert runs() <= 2


# Ctrl-C, and processes that are killed.


def interrupt(child: subprocess.Popen[str], *, group: bool = False) -> str:
    """Interrupt a process, or as a terminal does its whole group; return what it says, and check how it ends."""
    os.killpg(child.pid, signal.SIGINT) if group else child.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, errors = child.communicate(timeout=PATIENCE)
    assert time.monotonic() - start < 3
    assert child.returncode in {-signal.SIGINT, 128 + signal.SIGINT, 1}, errors
    return errors


def test_interrupted_compile_leaves_nothing(store: Store, runs: Runs, start: Start, monkeypatch: pytest.MonkeyPatch):
    child = start(RESOLVE, store.root, "hang")
    until(lambda: runs() == 1)
    assert "KeyboardInterrupt" in interrupt(child)
    assert is_free(store, key_of("hang"))
    assert {name for name in files_below(store.root) if not name.startswith("locks/")} == {"CACHEDIR.TAG"}
    monkeypatch.setattr(fake_backend, "_misbehave", lambda *_: None)
    assert resolve(store, mode="hang").origin == "compiled"


def test_interrupted_wait_leaves_nothing(store: Store, runs: Runs, start: Start):
    store.prepare()
    with store.key_lock(key_of("good"), 0):
        child = start(RESOLVE, store.root, "good")
        until(lambda: has_open(child.pid, f"{store.root}/locks/{key_of('good')[:2]}.lock"))
        assert "KeyboardInterrupt" in interrupt(child)
        assert not is_free(store, key_of("good"))
    assert (runs(), leftovers(store.root)) == (0, [])
    assert resolve(store).origin == "compiled"


@pytest.mark.parametrize("group", [False, True])
def test_interrupted_warm_ends_its_compiles(
    store: Store, runs: Runs, start: Start, monkeypatch: pytest.MonkeyPatch, group: bool
):
    child = start(WARM, store.root, "hang", "--jobs", "2")
    until(lambda: runs() == 2)
    workers = children_of(child.pid)
    assert len(workers) >= 2
    os.killpg(child.pid, signal.SIGINT) if group else child.send_signal(signal.SIGINT)
    until(lambda: child.poll() is not None, 3)
    assert child.returncode in {-signal.SIGINT, 128 + signal.SIGINT, 1}
    until(lambda: not any(map(is_alive, workers)), 3)
    assert leftovers(store.root) == []
    monkeypatch.setattr(fake_backend, "_misbehave", lambda *_: None)
    assert resolve(store, mode="hang").origin == "compiled"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_of_a_warm_that_was_killed_end(store: Store, runs: Runs, start: Start, how: signal.Signals):
    child = start(WARM, store.root, "slow", "--jobs", "2")
    until(lambda: runs() >= 1)
    workers = children_of(child.pid)
    assert len(workers) >= 2
    child.send_signal(how)
    child.wait(PATIENCE)
    until(lambda: not any(map(is_alive, workers)), 5)


def test_compile_of_a_killed_process_is_taken_over_at_once(store: Store, runs: Runs, start: Start):
    holder = start(RESOLVE, store.root, "hang")
    until(lambda: runs() == 1)
    waiter = start(RESOLVE, store.root, "hang")
    until(lambda: has_open(waiter.pid, f"{store.root}/locks/{key_of('hang')[:2]}.lock"))
    holder.kill()
    assert until(lambda: runs() == 2) < 1
    waiter.kill()
    waiter.wait()
    assert is_free(store, key_of("hang"))


def test_compile_after_a_killed_process_begins_at_once(
    store: Store, runs: Runs, start: Start, monkeypatch: pytest.MonkeyPatch
):
    holder = start(RESOLVE, store.root, "hang")
    until(lambda: runs() == 1)
    holder.kill()
    holder.wait()
    monkeypatch.setattr(fake_backend, "_misbehave", lambda *_: None)
    begun = time.monotonic()
    assert warnings_of(lambda: resolve(store, mode="hang").origin) == ("compiled", [])
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("content", [b"", b"12345 elsewhere\n", b"\xff\x00" * 1000])
def test_lock_files_that_were_left_change_nothing(store: Store, runs: Runs, content: bytes):
    store.prepare()
    for name in (*(f"{number:02x}" for number in range(256)), "sweep"):
        Path(f"{store.root}/locks/{name}.lock").write_bytes(content)
    begun = time.monotonic()
    assert warnings_of(lambda: resolve(store).origin) == ("compiled", [])
    assert time.monotonic() - begun < 1
    kreg.forget()
    assert warnings_of(lambda: resolve(store).origin.startswith(store.root)) == (True, [])
    assert runs() == 1


# Waits, as they are without any setting of the process's own.


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """Return the path of a lock, and what a resolve and a warm say that wait for it for 6 s."""
    store = Store(tmp_path_factory.mktemp("waits") / "store")
    store.prepare()
    key = key_of("good")
    variables = child_environment(KREG_WAIT="6")
    with store.key_lock(key, 0):
        commands = {
            "resolve": [sys.executable, "-c", RESOLVE, store.root, "good"],
            "warm": [sys.executable, "-c", WARM, store.root, "good", "--param", "size=1"],
        }
        children = {
            name: subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            for name, command in commands.items()
        }
        yield (
            f"{store.root}/locks/{key[:2]}.lock",
            {name: child.communicate(timeout=PATIENCE)[1] for name, child in children.items()},
        )
    assert [child.returncode for child in children.values()] == [0, 0]


@pytest.mark.parametrize("name", ["resolve", "warm"])
def test_wait_is_said_within_seconds_and_bounded(waits: tuple[str, dict[str, str]], name: str):
    path, said = waits
    holder = f"held by process {os.getpid()} on {os.uname().nodename}"
    assert f"waiting for {path} for 5 s, {holder}\n" in said[name]


# What a system gives: descriptors, threads, standard streams.

COUNT = """
import os, sys, kreg
from fake_backend import KERNEL

def used():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

variants = [
    {"size": size, "note": note, "target": target}
    for note in ("plain", "bright") for target in KERNEL.targets for size in range(1, 65)
]
counts = []
for number, variant in enumerate(variants[:int(sys.argv[2])], 1):
    assert kreg.resolve(KERNEL, store=sys.argv[1], **variant).origin == "compiled"
    if number % 10 == 0:
        counts.append(used())
print(len(counts), len(set(counts)), counts[0], counts[-1])
"""


def test_compiles_leave_no_thread_and_no_descriptor(root: str, is_long: bool):
    number = 300 if is_long else 60
    said = python(COUNT, root, str(number))
    assert said.startswith(f"{number // 10} 1 "), said


COUNT_WARMS = """
import os, sys, time, kreg
from fake_backend import KERNEL

def used():
    children = open("/proc/self/task/%d/children" % os.getpid()).read().split()
    return len(children), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

counts = []
for size in range(1, 4):
    report = kreg.warm([(KERNEL, KERNEL.spec("sm_90a", {"size": size}))], store=sys.argv[1], jobs=1)
    assert report.outcomes[0].status == "compiled"
    time.sleep(0.2)  # The last thread of a pool ends by itself.
    counts.append(used())
print(len(set(counts)), counts)
"""


def test_warms_leave_no_process_no_thread_and_no_descriptor(root: str):
    said = python(COUNT_WARMS, root)
    assert said.startswith("1 "), said


WITHOUT_STREAMS = """
import json, sys, kreg
from fake_backend import KERNEL
root, mode, path = sys.argv[1:]
found = [kreg.resolve(KERNEL, size=5, target="sm_90a", store=root).origin]
variants = [(KERNEL, KERNEL.spec("sm_90a", {"size": size, "mode": mode})) for size in (1, 2)]
found += [outcome.error or outcome.status for outcome in kreg.warm(variants, store=root, jobs=2).outcomes]
with open(path, "w") as file:
    json.dump(found, file)
"""


@pytest.mark.parametrize("mode", ["good", "print"])
@pytest.mark.parametrize("closed", ["0<&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_kreg_works_without_standard_streams(root: str, tmp_path: Path, closed: str, mode: str):
    path = tmp_path / "found"
    command = [sys.executable, "-c", WITHOUT_STREAMS, root, mode, str(path)]
    subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command], env=child_environment(), capture_output=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert json.loads(path.read_text(encoding="utf-8")) == ["compiled"] * 3


def limit_free_descriptors(free: int) -> None:
    """Leave this process so many descriptors to open."""
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    numbers = iter(range(max(used) + free + 2))
    while free > 0:
        free -= next(numbers) not in used
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(numbers), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.mark.parametrize("free", [1, 2, 3, 4])
@pytest.mark.parametrize("is_hit", [False, True])
def test_process_short_of_descriptors_gets_its_kernel(root: str, free: int, is_hit: bool):
    expected = resolve(root).cubin  # All modules are imported now.
    place = root if is_hit else f"{root}-2"
    KERNEL.source_digest()

    def act() -> None:
        kreg.forget()
        limit_free_descriptors(free)
        found, said = warnings_of(lambda: resolve(place))
        assert found.cubin == expected
        assert len(said) <= 1
        assert all("Too many open files" in line for line in said)

    assert exit_code(act) == 0
    assert [name for name in files_below(place) if name.startswith(("quarantine/", "tmp/"))] == []
    kreg.forget()
    assert warnings_of(lambda: resolve(place).cubin) == (expected, [])


WARM_SHORT = """
import os, resource, sys, kreg
from fake_backend import KERNEL

def warm(size):
    return kreg.warm([(KERNEL, KERNEL.spec("sm_90a", {"size": size}))], store=sys.argv[1], jobs=1).outcomes[0].status

warm(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, 4096))
try:
    print(warm(2))
except kreg.KregError as error:
    print(error)
"""


def test_warm_short_of_descriptors_works_or_says_so(root: str):
    said = python(WARM_SHORT, root)
    assert said == "compiled\n" or "Too many open files" in said


def test_output_of_warm_is_json_whatever_the_compiler_prints(root: str, start: Start):
    child = start(WARM, root, "print", "--json", "--jobs", "1")
    output, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, errors
    assert json.loads(output)["compiled"] == 2
    assert fake_backend.SAID in errors
