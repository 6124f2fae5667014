"""Files of an entry that are not what they were: a miss with one warning, set aside, and never a wrong cubin."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from builders import resolve_anew, warnings_of
from fake_backend import KERNEL

import kreg
from kreg import Store
from kreg.build import compile_artifact
from kreg.selector import Selector
from kreg.upkeep import verify

KINDS = ("entry", "object")
GOOD = {size: compile_artifact(KERNEL, KERNEL.spec("sm_90a", {"size": size})) for size in (1, 2)}


def place_of(store: Store, kind: str, size: int = 1) -> Path:
    """Return where the manifest or the cubin of the entry for a size lies."""
    good = GOOD[size]
    path = store.entry_path("fake", 1, good.key, good.toolchain_key)
    return Path(path if kind == "entry" else store.object_path(good.cubin_digest))


def set_aside(store: Store) -> list[str]:
    """Return what has been set aside, without the reasons."""
    return [name for name in os.listdir(f"{store.root}/quarantine") if not name.endswith(".reason")]


def damaged(store: Store, kind: str, damages: Iterable[tuple[str, Callable[[Path], object]]]) -> int:
    """Do each damage to a sound entry, and check what becomes of it; return how many were done."""
    path = place_of(store, kind)
    resolve_anew(store.root)
    count = 0
    for what, damage in damages:
        count += 1
        damage(path)
        assert verify(store, Selector(), kreg.REGISTRY).findings, what
        with pytest.raises(kreg.KregError):
            resolve_anew(store.root, policy="frozen")
        if os.path.lexists(path):  # It could not be set aside.
            raise AssertionError(what)
        resolve_anew(store.root)
        damage(path)
        found, said = warnings_of(lambda: resolve_anew(store.root))
        assert (found.cubin, found.origin, len(said)) == (GOOD[1].cubin, "compiled", 1), (what, said)
        assert path.name in said[0], (what, said)
        assert len(set_aside(store)) == 2, what
        again, said = warnings_of(lambda: resolve_anew(store.root))
        assert (again.cubin, said, again.origin == "compiled") == (GOOD[1].cubin, [], False), what
        shutil.rmtree(f"{store.root}/quarantine")
        os.mkdir(f"{store.root}/quarantine")
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_counts(store: Store, kind: str, is_long: bool):
    resolve_anew(store.root)
    data = place_of(store, kind).read_bytes()

    def flip(at: int) -> Callable[[Path], object]:
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        return lambda path: path.write_bytes(changed)

    positions = range(0, len(data), 1 if is_long else 29)
    assert damaged(store, kind, ((f"byte {at}", flip(at)) for at in positions)) == len(positions)


@pytest.mark.parametrize("kind", KINDS)
def test_every_length_counts(store: Store, kind: str, is_long: bool):
    resolve_anew(store.root)
    data = place_of(store, kind).read_bytes()
    lengths = [*range(0, len(data), 1 if is_long else 29), len(data) - 1]
    cuts = ((f"{length} bytes", lambda path, length=length: path.write_bytes(data[:length])) for length in lengths)
    assert damaged(store, kind, cuts) == len(lengths)
    longer = ((f"{len(more)} more", lambda path, more=more: path.write_bytes(data + more)) for more in (b"\0", data))
    assert damaged(store, kind, longer) == 2


def giant(path: Path) -> None:
    """Put a file of 1 TiB that takes no space in the place."""
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def remade(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a function that removes what lies at a path and makes something else there."""

    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


THINGS: dict[str, Callable[[Path], object]] = {
    "folder": remade(os.mkdir),
    "folder that is not empty": remade(lambda path: os.makedirs(path / "deep" / "deeper")),
    "fifo": remade(os.mkfifo),
    "dangling symbolic link": remade(lambda path: path.symlink_to("nowhere")),
    "symbolic link to itself": remade(lambda path: path.symlink_to(path)),
    "symbolic link to a good copy": lambda path: (path.rename(f"{path}.good"), path.symlink_to(f"{path}.good")),
    "symbolic link to a device": remade(lambda path: path.symlink_to("/dev/zero")),
    "giant": remade(giant),
    "empty file": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(os.urandom(2000)),
    "a pickle": lambda path: path.write_bytes(b"cos\nmkdir\n(S'/tmp/kreg-was-here'\ntR."),
    "another's JSON": lambda path: path.write_bytes(b'{"name": "else"}'),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("thing", THINGS)
def test_other_things_in_the_place_of_a_file_are_set_aside(store: Store, kind: str, thing: str):
    assert damaged(store, kind, [(thing, THINGS[thing])]) == 1
    assert not os.path.exists("/tmp/kreg-was-here")


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_were_swapped_are_never_taken_for_each_other(store: Store, tmp_path: Path, kind: str):
    for size in (1, 2):
        resolve_anew(store.root, size=size)
    one, two = place_of(store, kind, 1), place_of(store, kind, 2)
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    for size in (1, 2):
        found, said = warnings_of(lambda size=size: resolve_anew(store.root, size=size))
        assert (found.cubin, len(said)) == (GOOD[size].cubin, 1)
    assert len(set_aside(store)) == 2


def test_entry_under_another_s_name_is_a_miss(store: Store):
    resolve_anew(store.root, size=2)
    place_of(store, "entry", 2).rename(place_of(store, "entry", 1))
    found, said = warnings_of(lambda: resolve_anew(store.root))
    assert (found.cubin, len(said)) == (GOOD[1].cubin, 1)
    assert "belongs to another entry" in said[0]


def test_entry_copied_from_another_store_without_its_cubin_is_a_miss(store: Store, tmp_path: Path):
    other = Store(tmp_path / "other")
    resolve_anew(other.root)
    resolve_anew(store.root, size=2)
    shutil.copy(place_of(other, "entry"), place_of(store, "entry"))
    found, said = warnings_of(lambda: resolve_anew(store.root))
    assert (found.cubin, found.origin, said) == (GOOD[1].cubin, "compiled", [])
    assert resolve_anew(store.root).origin != "compiled"


def test_entry_copied_from_another_store_with_its_cubin_is_a_hit(store: Store, tmp_path: Path):
    other = Store(tmp_path / "other")
    resolve_anew(other.root)
    shutil.copytree(other.root, store.root)
    assert resolve_anew(store.root).origin == str(place_of(store, "entry"))
