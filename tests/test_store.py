"""The store: what was published is read back, and what is not that is never returned."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import (
    OTHER_TOOLCHAIN,
    TOOLCHAIN,
    as_nobody,
    entry_path,
    files_below,
    flip,
    make_artifact,
    make_spec,
    object_path,
    raises_os_error,
    read_spec,
)

from kreg import Artifact, Store
from kreg import root as root_module
from kreg.errors import StoreError
from kreg.header import NewerFormat
from kreg.keylock import FileLock
from kreg.store import BadEntry

ONE, TWO = make_artifact(1), make_artifact(2)


def assert_holds(store: Store, artifact: Artifact) -> None:
    """Check that a store holds an artifact, byte for byte."""
    found = read_spec(store, artifact)
    assert found is not None
    assert (found.manifest_bytes, found.cubin) == (artifact.manifest_bytes, artifact.cubin)


def quarantined(store: Store) -> list[str]:
    """Return the names of what was set aside, without the random part and the reasons."""
    names = os.listdir(f"{store.root}/quarantine")
    return sorted(name.rpartition(".")[0] for name in names if not name.endswith(".reason"))


def reason(store: Store) -> str:
    """Return the only reason in the quarantine."""
    (path,) = Path(store.root, "quarantine").glob("*.reason")
    return path.read_text(encoding="utf-8")


def test_artifact_is_read_back(store: Store):
    assert store.publish(ONE) == str(entry_path(store, ONE))
    assert_holds(store, ONE)
    assert read_spec(store, ONE).origin == str(entry_path(store, ONE))


def test_artifact_that_is_not_there_is_none(store: Store, full: Store):
    assert store.read(make_spec(params={"size": 4}), TOOLCHAIN.fingerprint) is None
    assert store.read(make_spec(), OTHER_TOOLCHAIN.fingerprint) is None
    assert store.read(make_spec(version=2), TOOLCHAIN.fingerprint) is None


def test_reading_makes_nothing(store: Store, tmp_path: Path):
    assert read_spec(store, ONE) is None
    assert store.toolchain_keys(make_spec()) == []
    assert list(store.entry_files()) == list(store.object_files()) == []
    assert not store.is_marked()
    assert os.listdir(tmp_path) == []


def test_layout_is_as_documented(full: Store):
    expected = {"CACHEDIR.TAG", "locks/sweep.lock"}
    for artifact in (ONE, TWO):
        digest = artifact.cubin_digest
        expected.add(f"entries-v1/fake@1/{artifact.key}-{TOOLCHAIN.fingerprint}.json")
        expected.add(f"objects-v1/{digest[:2]}/{digest}.cubin")
    assert set(files_below(full.root)) == expected
    assert Path(full.root, "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    assert object_path(full, ONE).read_bytes() == ONE.cubin
    assert entry_path(full, ONE).read_bytes() == ONE.manifest_bytes
    assert full.is_marked()


def test_files_of_a_store_are_listed_in_order(full: Store):
    assert list(full.entry_files()) == sorted(str(entry_path(full, artifact)) for artifact in (ONE, TWO))
    assert list(full.object_files()) == sorted(str(object_path(full, artifact)) for artifact in (ONE, TWO))


def test_entries_with_one_cubin_share_an_object(store: Store):
    other = make_artifact(2, ONE.cubin)
    store.publish(ONE)
    inode = object_path(store, ONE).stat().st_ino
    store.publish(other)
    assert list(store.object_files()) == [str(object_path(store, ONE))]
    assert object_path(store, ONE).stat().st_ino == inode
    assert_holds(store, ONE)
    assert_holds(store, other)


def test_entry_that_is_there_is_replaced(store: Store):
    store.publish(ONE)
    newer = make_artifact(1, TWO.cubin)
    store.publish(newer)
    assert_holds(store, newer)


def test_toolchains_of_a_spec_are_listed(store: Store):
    for toolchain in (TOOLCHAIN, OTHER_TOOLCHAIN):
        store.publish(make_artifact(1, toolchain_key=toolchain.fingerprint))
    store.publish(TWO)
    folder = entry_path(store, ONE).parent
    for name in (f"{ONE.key}-short.json", f"{ONE.key}-{'X' * 64}.json", f"{ONE.key}-{'a' * 64}.txt"):
        (folder / name).touch()
    assert store.toolchain_keys(make_spec()) == sorted([TOOLCHAIN.fingerprint, OTHER_TOOLCHAIN.fingerprint])
    assert store.toolchain_keys(make_spec(version=2)) == []


def test_object_is_written_before_the_entry_and_each_is_synced_before_it_is_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    store.prepare()
    done: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        done.append("sync file" if os.path.isfile(path) else f"sync {Path(path).name}")
        real_sync(descriptor)

    def rename(source: str, target: str) -> None:
        done.append(f"rename to {Path(target).suffix}")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    store.publish(ONE)
    assert done == [
        "sync file", "rename to .cubin", f"sync {ONE.cubin_digest[:2]}",
        "sync file", "rename to .json", "sync fake@1",
    ]  # fmt: skip


# Bad entries: an error that is kept with what was set aside, and then a miss.


def assert_set_aside(store: Store, artifact: Artifact, bad: Path, message: str) -> None:
    """Check that a read refuses and sets aside the file ``bad``, says why, and is a miss from then on."""
    name = bad.name
    with pytest.raises(BadEntry) as caught:
        read_spec(store, artifact)
    (place,) = (path for path in Path(store.root, "quarantine").iterdir() if path.suffix != ".reason")
    assert place.name.startswith(f"{name}.")
    assert str(caught.value) == f"{message}; set aside as {place}"
    assert reason(store) == f"{bad}\n{message}\n"
    assert not os.path.lexists(bad)
    assert read_spec(store, artifact) is None
    store.publish(artifact)
    assert_holds(store, artifact)
    assert_holds(store, TWO if artifact is ONE else ONE)


@pytest.mark.parametrize("length", [0, 1, 20, 92, 93, 300, len(ONE.manifest_bytes) - 1])
def test_manifest_that_is_cut_short_is_set_aside(full: Store, length: int):
    path = entry_path(full, ONE)
    path.write_bytes(ONE.manifest_bytes[:length])
    what = "does not begin as a manifest" if length < 24 else "does not match its own digest"
    assert_set_aside(full, ONE, path, f"manifest {path} {what}")


def test_manifest_that_is_cut_short_anywhere_is_never_returned(full: Store):
    path = entry_path(full, ONE)
    for length in range(0, len(ONE.manifest_bytes), 7):
        path.write_bytes(ONE.manifest_bytes[:length])
        with pytest.raises(BadEntry):
            read_spec(full, ONE)
    assert len(quarantined(full)) == len(range(0, len(ONE.manifest_bytes), 7))


@pytest.mark.parametrize("position", [30, 120, 500, -2])
def test_manifest_with_a_flipped_bit_is_set_aside(full: Store, position: int):
    path = entry_path(full, ONE)
    flip(path, position)
    assert_set_aside(full, ONE, path, f"manifest {path} does not match its own digest")


@pytest.mark.parametrize("content", [b"", b"null", b"{}", b'{"registers": 3}\n', os.urandom(300), b"\0" * 5000])
def test_manifest_of_the_wrong_shape_is_set_aside(full: Store, content: bytes):
    path = entry_path(full, ONE)
    path.write_bytes(content)
    assert_set_aside(full, ONE, path, f"manifest {path} does not begin as a manifest")


def test_manifest_that_is_too_large_is_set_aside(full: Store):
    path = entry_path(full, ONE)
    os.truncate(path, (1 << 20) + 1)
    assert_set_aside(full, ONE, path, f"{path} has {(1 << 20) + 1} bytes, more than the {1 << 20} allowed")


def test_manifest_of_another_entry_is_set_aside(full: Store):
    path = entry_path(full, ONE)
    path.write_bytes(TWO.manifest_bytes)
    message = f"manifest {path} belongs to another entry, {TWO.key[:12]}-{TOOLCHAIN.fingerprint[:12]}"
    assert_set_aside(full, ONE, path, message)


def test_entries_that_were_swapped_are_both_refused(full: Store):
    paths = [entry_path(full, artifact) for artifact in (ONE, TWO)]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    for artifact in (ONE, TWO):
        with pytest.raises(BadEntry, match="belongs to another entry"):
            read_spec(full, artifact)
    assert quarantined(full) == sorted(path.name for path in paths)


def test_manifest_of_another_toolchain_is_set_aside(full: Store):
    path = entry_path(full, ONE)
    path.write_bytes(make_artifact(1, toolchain_key=OTHER_TOOLCHAIN.fingerprint).manifest_bytes)
    message = f"manifest {path} belongs to another entry, {ONE.key[:12]}-{OTHER_TOOLCHAIN.fingerprint[:12]}"
    assert_set_aside(full, ONE, path, message)


@pytest.mark.parametrize("position", [0, 700, -1])
def test_cubin_with_a_flipped_bit_is_set_aside(full: Store, position: int):
    path = object_path(full, ONE)
    flip(path, position)
    assert_set_aside(full, ONE, path, f"the cubin of manifest {entry_path(full, ONE)} does not match its digest")


@pytest.mark.parametrize("length", [0, 1, len(ONE.cubin) // 2, len(ONE.cubin) - 1])
def test_cubin_that_is_cut_short_is_set_aside(full: Store, length: int):
    path = object_path(full, ONE)
    os.truncate(path, length)
    assert_set_aside(full, ONE, path, f"the cubin of manifest {entry_path(full, ONE)} does not match its digest")


def test_cubins_that_were_swapped_are_both_refused(full: Store):
    one, two = object_path(full, ONE), object_path(full, TWO)
    one.write_bytes(TWO.cubin)
    two.write_bytes(ONE.cubin)
    for artifact in (ONE, TWO):
        with pytest.raises(BadEntry, match="does not match its digest"):
            read_spec(full, artifact)


def test_cubin_that_is_missing_is_a_miss(full: Store):
    object_path(full, ONE).unlink()
    assert read_spec(full, ONE) is None
    full.publish(ONE)
    assert_holds(full, ONE)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    (path / "inner").mkdir(parents=True)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def replace_by_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


@pytest.mark.parametrize("place", [entry_path, object_path])
@pytest.mark.parametrize("replace", [replace_by_folder, replace_by_fifo, replace_by_link, replace_by_dangling_link])
def test_what_is_no_file_is_set_aside(
    full: Store, place: Callable[[Store, Artifact], Path], replace: Callable[[Path], None]
):
    path = place(full, ONE)
    replace(path)
    assert_set_aside(full, ONE, path, f"{path} is not a regular file")


@pytest.mark.parametrize("replace", [replace_by_folder, replace_by_fifo, replace_by_link, replace_by_dangling_link])
def test_publish_replaces_what_is_no_file_or_says_that_it_cannot(full: Store, replace: Callable[[Path], None]):
    for path in (entry_path(full, ONE), object_path(full, ONE)):
        replace(path)
    if replace is replace_by_folder:
        with pytest.raises(StoreError, match=r"^cannot write .*\.cubin: Is a directory$"):
            full.publish(ONE)
    else:
        full.publish(ONE)
        assert_holds(full, ONE)
    assert os.listdir(f"{full.root}/tmp") == []


def test_object_with_wrong_bytes_is_replaced_when_it_is_published(full: Store):
    flip(object_path(full, ONE), 100)
    full.publish(ONE)
    assert_holds(full, ONE)


def test_bad_entry_that_cannot_be_set_aside_is_refused_all_the_same(full: Store, monkeypatch: pytest.MonkeyPatch):
    path = entry_path(full, ONE)
    flip(path, 500)
    monkeypatch.setattr(os, "rename", raises_os_error(errno.EROFS, lambda *_: True, os.rename))
    for _ in range(2):
        with pytest.raises(BadEntry) as caught:
            read_spec(full, ONE)
        assert str(caught.value) == f"manifest {path} does not match its own digest (it could not be set aside)"


def make_newer(path: Path) -> bytes:
    """Turn a manifest into one of the next format."""
    data = path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2')
    path.write_bytes(data)
    return data


def test_manifest_of_a_newer_format_is_a_miss_and_left_alone(full: Store):
    path = entry_path(full, ONE)
    data = make_newer(path)
    assert read_spec(full, ONE) is None
    with pytest.raises(NewerFormat) as caught:
        full.publish(ONE)
    assert str(caught.value) == f"manifest {path} has format 2; this kreg reads format 1"
    assert path.read_bytes() == data
    assert quarantined(full) == []


# Roots that cannot be used.


def test_root_that_is_a_file_is_refused(store: Store):
    Path(store.root).write_bytes(b"content")
    message = f"the store {store.root} is not a directory; set KREG_STORE or --store to one"
    for action in (lambda: read_spec(store, ONE), lambda: store.publish(ONE), lambda: list(store.entry_files())):
        with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
            action()
    assert Path(store.root).read_bytes() == b"content"


def test_root_below_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "store")
    for action in (lambda: read_spec(store, ONE), lambda: store.publish(ONE)):
        with pytest.raises(StoreError, match=f"^cannot use the store {re.escape(store.root)}: Not a directory$"):
            action()


def test_root_that_is_a_loop_of_links_is_refused(store: Store):
    os.symlink(store.root, store.root)
    with pytest.raises(StoreError, match=r"^cannot use the store .*: Too many levels of symbolic links$"):
        read_spec(store, ONE)


def test_root_that_is_a_link_to_a_folder_is_used(store: Store, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    os.symlink("elsewhere", store.root)
    store.publish(ONE)
    assert_holds(Store(tmp_path / "elsewhere"), ONE)


def test_root_that_is_an_empty_folder_is_used(store: Store):
    os.mkdir(store.root)
    store.publish(ONE)
    assert_holds(store, ONE)


@pytest.mark.parametrize(
    "content",
    [
        {"notes.txt": b"mine"},
        {"logs/today.log": b"mine"},
        {"quarantine/patient": b"mine"},
        {"CACHEDIR.TAG": b"Signature: 8a477f597d28d172789f06886806bc55\n# of another program\n", "logs/a": b"mine"},
    ],
)
def test_folder_of_somebody_else_is_refused_and_left_as_it_is(store: Store, content: dict[str, bytes]):
    for name, data in content.items():
        path = Path(store.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    first = min(name.partition("/")[0] for name in content)
    message = f"{store.root} is not empty and not a kreg store (it holds {first!r}); name another directory"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        store.publish(ONE)
    assert files_below(store.root) == content


def test_store_that_lost_its_tag_gets_it_back(full: Store):
    os.unlink(f"{full.root}/CACHEDIR.TAG")
    Store(full.root).publish(ONE)
    assert Store(full.root).is_marked()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_root_that_cannot_be_made_is_said(store: Store, monkeypatch: pytest.MonkeyPatch, number: int):
    monkeypatch.setattr(os, "mkdir", raises_os_error(number, lambda *_: True, os.mkdir))
    with pytest.raises(StoreError) as caught:
        store.publish(ONE)
    assert str(caught.value) == f"cannot create the store {store.root}: {os.strerror(number)}"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_failed_write_is_said_and_leaves_nothing(full: Store, monkeypatch: pytest.MonkeyPatch, call: str, number: int):
    before = files_below(full.root)

    def concerns_a_temporary(what: object, *_: object) -> bool:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
        return "/tmp/" in path.removeprefix(full.root) and path.startswith(full.root)

    monkeypatch.setattr(os, call, raises_os_error(number, concerns_a_temporary, getattr(os, call)))
    three = make_artifact(3)
    with pytest.raises(StoreError) as caught:
        full.publish(three)
    assert str(caught.value) == f"cannot write {object_path(full, three)}: {os.strerror(number)}"
    assert files_below(full.root) == before


def test_write_that_fails_between_object_and_entry_leaves_a_miss(full: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        os, "rename", raises_os_error(errno.ENOSPC, lambda _, target: target.endswith(".json"), os.rename)
    )
    three = make_artifact(3)
    with pytest.raises(StoreError, match=r"^cannot write .*\.json: No space left on device$"):
        full.publish(three)
    assert object_path(full, three).exists()
    assert read_spec(full, three) is None
    assert os.listdir(f"{full.root}/tmp") == []


def test_interrupted_write_leaves_nothing(full: Store, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = files_below(full.root)
    monkeypatch.setattr(os, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        full.publish(make_artifact(3))
    assert files_below(full.root) == before


@pytest.fixture
def read_only(public_path: Path) -> Store:
    """Return a store that another user may read and not write."""
    store = Store(public_path / "store")
    store.publish(ONE)
    for folder, _, files in os.walk(store.root):
        os.chmod(folder, 0o555)
        for name in files:
            os.chmod(f"{folder}/{name}", 0o444)
    return store


def as_other_user(store: Store, action: Callable[[Store], object]) -> str:
    """Return what an action says to somebody who may not write."""

    def act() -> str:
        try:
            return str(action(Store(store.root)))
        except StoreError as error:
            return f"{type(error).__name__}: {error}"

    return as_nobody(act)


def test_read_only_store_is_read(read_only: Store):
    assert as_other_user(read_only, lambda store: read_spec(store, ONE).cubin == ONE.cubin) == "True"


def test_read_only_store_says_that_it_cannot_be_written(read_only: Store):
    said = as_other_user(read_only, lambda store: store.publish(TWO))
    place = object_path(read_only, TWO)
    assert said == f"StoreError: cannot write {place}: Permission denied"


def test_bad_entry_of_a_read_only_store_is_refused(read_only: Store):
    path = entry_path(read_only, ONE)
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    said = as_other_user(read_only, lambda store: read_spec(store, ONE))
    assert said == f"BadEntry: manifest {path} does not match its own digest (it could not be set aside)"


def test_store_that_cannot_be_reached_says_so(read_only: Store):
    os.chmod(os.path.dirname(read_only.root), 0o700)
    said = as_other_user(read_only, lambda store: read_spec(store, ONE))
    assert said == f"StoreError: cannot use the store {read_only.root}: Permission denied"


def test_entry_that_may_not_be_read_is_said_and_not_called_bad(read_only: Store):
    os.chmod(entry_path(read_only, ONE).parent, 0o000)
    said = as_other_user(read_only, lambda store: read_spec(store, ONE))
    assert said == f"Unreadable: cannot read {entry_path(read_only, ONE)}: Permission denied"


# The default root.


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default root, in a cache directory of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kreg"


def test_default_root_is_made_for_its_owner_alone(default: Path):
    Store().publish(ONE)
    assert stat.S_IMODE(default.stat().st_mode) == 0o700


def test_named_root_is_made_as_the_user_s_mask_says(store: Store):
    mask = os.umask(0o027)
    try:
        store.publish(ONE)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(os.stat(store.root).st_mode) == 0o750


@pytest.mark.parametrize("action", [lambda: read_spec(Store(), ONE), lambda: Store().publish(ONE)])
def test_default_root_of_another_user_is_refused(
    default: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]
):
    Store().publish(ONE)
    owner = default.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    message = f"the default store {default} belongs to user {owner}; to use it all the same, name it in KREG_STORE"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        action()


def test_default_root_that_everybody_can_write_is_refused(default: Path):
    Store().publish(ONE)
    default.chmod(0o777)
    message = f"the default store {default} can be written by everybody; to use it all the same, name it in KREG_STORE"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        read_spec(Store(), ONE)


def test_default_root_that_is_refused_is_used_when_it_is_named(default: Path, monkeypatch: pytest.MonkeyPatch):
    Store().publish(ONE)
    default.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: default.stat().st_uid + 1)
    assert_holds(Store(default), ONE)
    monkeypatch.setenv("KREG_STORE", str(default))
    assert_holds(Store(), ONE)


# Locks and logs.


def test_key_lock_excludes_the_same_key_only(store: Store):
    store.prepare()
    with store.key_lock("ab" * 32, 0) as held:
        assert held
        with store.key_lock("ab" * 32, 0) as again, store.key_lock("cd" * 32, 0) as other:
            assert (again, other) == (False, True)


def test_publish_keeps_a_sweep_out(store: Store, monkeypatch: pytest.MonkeyPatch):
    seen = []
    real = os.rename

    def rename(source: str, target: str) -> None:
        with FileLock(f"{store.root}/locks/sweep.lock", wait=0) as held:
            seen.append(held)
        real(source, target)

    store.prepare()
    monkeypatch.setattr(os, "rename", rename)
    store.publish(ONE)
    assert seen == [False, False]


def test_publish_goes_on_where_locks_do_not_work(store: Store):
    store.prepare()
    shutil.rmtree(f"{store.root}/locks")
    store.publish(ONE)
    assert_holds(store, ONE)


def test_log_is_kept(store: Store):
    path = store.save_log("a" * 64, "line 7: error\nsurrogate \udc80\n")
    assert path == f"{store.root}/logs/{'a' * 64}.log"
    assert Path(path).read_bytes() == b"line 7: error\nsurrogate \\udc80\n"
    assert Store(store.root).save_log("a" * 64, "again") == path
    assert Path(path).read_text(encoding="utf-8") == "again"


@pytest.mark.parametrize("given", ["~/store", "store"])
def test_root_is_absolute(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Store(given).root == f"{tmp_path}/store"
    assert repr(Store(given)) == f"Store('{tmp_path}/store')"


@pytest.mark.parametrize("call", ["write_synced", "sync_folder"])
def test_publish_bears_that_its_folder_is_removed_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch, call: str):
    # A clear on a file system without locks removes folders that are empty for a moment.
    store.prepare()
    real = getattr(root_module, call)
    removed: list[Path] = []

    def remove_once(*arguments: object) -> None:
        real(*arguments)
        folder = object_path(store, ONE).parent
        if not removed and folder.exists() and not os.listdir(folder):
            removed.append(folder)
            folder.rmdir()

    monkeypatch.setattr(root_module, call, remove_once)
    store.publish(ONE)
    assert_holds(store, ONE)
