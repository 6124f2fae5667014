"""Files: read whole or refused, never waited for; written whole, never over another."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

import pytest
from builders import as_nobody, raises_os_error

from kreg import files
from kreg.errors import StoreError
from kreg.files import NotAFile, read_file, scan, sync_folder, unlink_quietly, write_synced

LIMIT = 1000


@pytest.mark.parametrize("size", [0, 1, LIMIT])
def test_read_returns_the_whole_file(tmp_path: Path, size: int):
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert read_file(str(path), LIMIT) == b"x" * size


def test_read_of_nothing_is_none(tmp_path: Path):
    assert read_file(str(tmp_path / "file"), LIMIT) is None
    assert read_file(str(tmp_path / "folder" / "file"), LIMIT) is None


def test_read_returns_what_came_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 7)))
    assert read_file(str(path), LIMIT) == bytes(range(100))


def make_folder(path: Path) -> None:
    path.mkdir()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(b"content")
    path.symlink_to("elsewhere")


def make_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def make_large(path: Path) -> None:
    path.write_bytes(b"x" * (LIMIT + 1))


def make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes device nodes")


NOT_FILES = [make_folder, make_fifo, make_link, make_dangling_link, make_link_to_itself, make_device]


@pytest.mark.parametrize("make", NOT_FILES)
def test_read_refuses_what_is_no_regular_file(tmp_path: Path, make: object):
    path = tmp_path / "file"
    make(path)
    with pytest.raises(NotAFile, match=f"^{re.escape(str(path))} is not a regular file$"):
        read_file(str(path), LIMIT)


def test_read_refuses_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # The path of a socket is limited to about a hundred bytes.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("file")
        with pytest.raises(NotAFile, match=r"^file is not a regular file$"):
            read_file("file", LIMIT)


def test_read_refuses_a_file_where_a_folder_belongs(tmp_path: Path):
    (tmp_path / "folder").write_bytes(b"")
    with pytest.raises(NotAFile, match=r"folder/file is not a regular file$"):
        read_file(f"{tmp_path}/folder/file", LIMIT)


def test_read_refuses_more_than_it_was_told_to_bear(tmp_path: Path):
    make_large(tmp_path / "file")
    with pytest.raises(NotAFile, match=r"file has 1001 bytes, more than the 1000 allowed$"):
        read_file(f"{tmp_path}/file", LIMIT)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE])
def test_read_maps_what_the_system_says_when_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    monkeypatch.setattr(os, "open", raises_os_error(number, lambda *_: True, os.open))
    with pytest.raises(StoreError, match=f"^cannot read {re.escape(str(path))}: {os.strerror(number)}$") as caught:
        read_file(str(path), LIMIT)
    assert not isinstance(caught.value, NotAFile)


def test_read_maps_what_the_system_says_when_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_bytes(b"content")
    monkeypatch.setattr(os, "read", raises_os_error(errno.EIO, lambda *_: True, os.read))
    with pytest.raises(StoreError, match=r"^cannot read .*/file: Input/output error$"):
        read_file(f"{tmp_path}/file", LIMIT)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o000, 0o755), (0o644, 0o000)])
def test_read_says_that_permission_is_denied(public_path: Path, file_mode: int, folder_mode: int):
    folder = public_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")
    (folder / "file").chmod(file_mode)
    folder.chmod(folder_mode)

    def read() -> str:
        with pytest.raises(StoreError) as caught:
            read_file(f"{folder}/file", LIMIT)
        return f"{type(caught.value).__name__}: {caught.value}"

    said = as_nobody(read)
    folder.chmod(0o755)
    assert said == f"Unreadable: cannot read {folder}/file: Permission denied"


def test_read_closes_what_it_opens(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"content")
    before = len(os.listdir("/proc/self/fd"))
    read_file(f"{tmp_path}/file", LIMIT)
    with pytest.raises(NotAFile):
        read_file(str(tmp_path), LIMIT)
    assert len(os.listdir("/proc/self/fd")) == before


def test_write_makes_a_file(tmp_path: Path):
    write_synced(f"{tmp_path}/file", b"x" * 100_000)
    assert (tmp_path / "file").read_bytes() == b"x" * 100_000


def test_write_returns_after_every_byte_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:7]))
    write_synced(f"{tmp_path}/file", bytes(range(100)))
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


def test_write_syncs_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    write_synced(f"{tmp_path}/file", b"content")
    sync_folder(str(tmp_path))
    assert synced == [f"{tmp_path}/file", str(tmp_path)]


@pytest.mark.parametrize("make", [make_folder, make_fifo, make_link, make_dangling_link, make_large])
def test_write_never_writes_over_what_is_there(tmp_path: Path, make: object):
    make(tmp_path / "file")
    with pytest.raises(FileExistsError):
        write_synced(f"{tmp_path}/file", b"content")
    assert not (tmp_path / "nowhere").exists()


def test_sync_of_a_folder_bears_file_systems_that_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def refuse(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(files.os, "fsync", refuse)
    sync_folder(str(tmp_path))
    assert len(calls) == 1


def test_unlink_removes_and_bears_what_is_not_there(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    unlink_quietly(f"{tmp_path}/file")
    unlink_quietly(f"{tmp_path}/file")
    unlink_quietly(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_scan_lists_in_order_of_name(tmp_path: Path):
    for name in ("b", "c", "a"):
        (tmp_path / name).touch()
    assert [entry.name for entry in scan(str(tmp_path))] == ["a", "b", "c"]


def test_scan_of_nothing_is_empty(tmp_path: Path):
    (tmp_path / "file").touch()
    assert scan(f"{tmp_path}/folder") == []
    assert scan(f"{tmp_path}/file") == []


def test_scan_says_that_permission_is_denied(public_path: Path):
    folder = public_path / "folder"
    folder.mkdir(0o700)
    folder.chmod(0o000)

    def list_it() -> str:
        with pytest.raises(StoreError) as caught:
            scan(str(folder))
        return str(caught.value)

    assert as_nobody(list_it) == f"cannot list {folder}: Permission denied"
