"""Key locks: held by one process, let go when it dies, never waited for longer than was said."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import as_nobody, finish, raises_os_error, start_python

from kreg import keylock
from kreg.keylock import FileLock


@contextmanager
def held_elsewhere(path: str, how: str = "") -> Iterator[subprocess.Popen[str]]:
    """Have another process hold a lock during a block."""
    child = start_python("lock_holder.py", path, *([how] if how else []))
    assert child.stdout.readline() == "True\n"
    try:
        yield child
    finally:
        if child.returncode is None:
            finish(child)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return where a lock file will be."""
    return str(tmp_path / "a.lock")


def can_be_held(path: str, **how: object) -> bool:
    """Say whether a lock can be had at once."""
    with FileLock(path, wait=0, **how) as held:
        return held


def pause_by(monkeypatch: pytest.MonkeyPatch, pause: Callable[[float], object]) -> None:
    """Have the waiting for locks, and nothing else in this process, pause by calling ``pause``."""
    monkeypatch.setattr(keylock, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))


def test_lock_is_held_and_let_go(path: str):
    with FileLock(path, wait=0) as held:
        assert held
        assert not can_be_held(path)
    assert can_be_held(path)


def test_lock_is_let_go_when_the_block_raises(path: str):
    with pytest.raises(RuntimeError), FileLock(path, wait=0):
        raise RuntimeError
    assert can_be_held(path)


def test_lock_excludes_another_process(path: str):
    with held_elsewhere(path):
        assert not can_be_held(path)
    assert can_be_held(path)


def test_shared_locks_exclude_only_exclusive_ones(path: str):
    with held_elsewhere(path, "shared"):
        assert can_be_held(path, shared=True)
        assert not can_be_held(path)
    with held_elsewhere(path):
        assert not can_be_held(path, shared=True)


def test_lock_of_a_killed_process_is_free_at_once(path: str):
    with held_elsewhere(path) as child:
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert can_be_held(path)


def test_lock_outlives_a_forked_child(path: str):
    with held_elsewhere(path, "fork"):
        assert not can_be_held(path)


def test_lock_is_let_go_though_a_forked_child_still_has_the_file(path: str):
    reader, writer = os.pipe()
    with FileLock(path, wait=0):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    os.close(reader)
    free = can_be_held(path)
    os.close(writer)
    os.waitpid(child, 0)
    assert free


def test_lock_file_stays_and_names_its_holder(path: str):
    with FileLock(path, wait=0):
        inode = os.stat(path).st_ino
    assert Path(path).read_text(encoding="utf-8") == f"{os.getpid()} {os.uname().nodename}\n"
    with FileLock(path, wait=0):
        assert os.stat(path).st_ino == inode


def test_lock_is_waited_for_until_it_is_free(path: str, monkeypatch: pytest.MonkeyPatch):
    with held_elsewhere(path) as child:
        # The holder lets go during the first pause of the one that waits.
        pause_by(monkeypatch, lambda _: finish(child))
        with FileLock(path, wait=60) as held:
            assert held


@pytest.mark.parametrize("wait", [0, 0.05])
def test_lock_is_not_waited_for_longer_than_was_said(path: str, wait: float):
    with FileLock(path, wait=0):
        start = time.monotonic()
        with FileLock(path, wait=wait) as held:
            assert not held
        assert wait <= time.monotonic() - start < 30


def test_waiting_is_reported_with_the_holder(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keylock, "_REPORT_SECONDS", 0.0)
    said: list[str] = []
    with held_elsewhere(path) as child, FileLock(path, wait=0.1, report=said.append) as held:
        assert not held
    assert set(said) == {f"waiting for {path} for 0 s, held by process {child.pid} on {os.uname().nodename}"}


def test_waiting_for_a_holder_that_left_no_name_is_reported(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keylock, "_REPORT_SECONDS", 0.0)
    said: list[str] = []
    with FileLock(path, shared=True, wait=0), FileLock(path, wait=0.01, report=said.append):
        pass
    assert said[0] == f"waiting for {path} for 0 s, held by another process"


def test_symlink_at_the_place_of_a_lock_is_not_followed(path: str, tmp_path: Path):
    (tmp_path / "precious").write_text("content")
    os.symlink("precious", path)
    assert not can_be_held(path)
    assert (tmp_path / "precious").read_text() == "content"


def test_dangling_symlink_at_the_place_of_a_lock_makes_no_file(path: str, tmp_path: Path):
    os.symlink("nowhere", path)
    assert not can_be_held(path)
    assert os.listdir(tmp_path) == ["a.lock"]


def test_folder_at_the_place_of_a_lock_is_not_held(path: str):
    os.mkdir(path)
    assert not can_be_held(path)


def test_fifo_at_the_place_of_a_lock_is_not_waited_for(path: str):
    os.mkfifo(path)
    with FileLock(path, wait=0):
        pass


def test_lock_in_a_folder_that_is_not_there_is_not_held(path: str):
    assert not can_be_held(f"{path}/b.lock")


def test_lock_in_a_folder_that_is_read_only_is_not_held(public_path: Path):
    public_path.chmod(0o555)
    assert as_nobody(lambda: str(can_be_held(f"{public_path}/a.lock"))) == "False"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_lock_is_not_held_where_locks_do_not_work(path: str, monkeypatch: pytest.MonkeyPatch, number: int):
    monkeypatch.setattr(fcntl, "flock", raises_os_error(number, lambda *_: True, fcntl.flock))
    with FileLock(path, wait=60) as held:
        assert not held


def test_lock_closes_its_file(path: str):
    before = len(os.listdir("/proc/self/fd"))
    with FileLock(path, wait=0), FileLock(path, wait=0):
        assert len(os.listdir("/proc/self/fd")) == before + 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_lock_closes_its_file_when_waiting_is_interrupted(path: str, monkeypatch: pytest.MonkeyPatch):
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    before = len(os.listdir("/proc/self/fd"))
    with FileLock(path, wait=0):
        pause_by(monkeypatch, interrupt)
        with pytest.raises(KeyboardInterrupt), FileLock(path, wait=60):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
