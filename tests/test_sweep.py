"""gc: what it removes, what it never removes, and in which order."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import (
    TOOLCHAIN,
    entry_path,
    files_below,
    flip,
    make_artifact,
    make_spec,
    object_path,
    read_spec,
    start_python,
    warnings_of,
)
from click.testing import CliRunner
from fake_backend import KERNEL
from kreg.cache_tools import main

import kreg
from kreg import Store, StoreError
from kreg.inventory import entries
from kreg.selector import Selector
from kreg.sweep import Limits, Sweep, gc, leftovers
from kreg.upkeep import verify

DAY = 86400.0


def put(store: Store, size: int, *, written: float = 0.0, used: float | None = None, **changes: Any) -> kreg.Artifact:
    """Publish an artifact as if so many days ago."""
    artifact = make_artifact(size, **changes)
    store.publish(artifact)
    now = time.time()
    os.utime(entry_path(store, artifact), (now - DAY * (written if used is None else used), now - DAY * written))
    return artifact


def sizes(store: Store) -> list[int]:
    """Return the sizes whose entries are there and can be read."""
    found = [entry.manifest.params["size"] for entry in entries(store) if entry.manifest]
    return sorted(int(size) for size in found)


def sweep(store: Store, **options: Any) -> Sweep:
    limits = {name: options.pop(name) for name in Limits.__slots__ if name in options}
    return gc(store, Limits(**limits), **options)


def is_clean(store: Store) -> bool:
    return not verify(store, Selector(), kreg.REGISTRY).findings and leftovers(store) == []


@pytest.fixture
def aged(store: Store) -> Store:
    """Return a store with five entries: written 5, 4, 3, 2, 1 days ago, size 5 used today."""
    for size in (1, 2, 3, 4):
        put(store, size, written=size)
    put(store, 5, written=5, used=0)
    return store


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"age": 3.5 * DAY}, [1, 2, 3]),
        ({"age": 0}, []),
        ({"unused": 3.5 * DAY}, [1, 2, 3, 5]),
        ({"entries": 2}, [1, 5]),
        ({"entries": 0}, []),
        ({"entries": 9}, [1, 2, 3, 4, 5]),
        ({"entries": 3, "age": 4.5 * DAY}, [1, 2, 3]),
        ({"size": 0}, []),
        ({"size": 10**9}, [1, 2, 3, 4, 5]),
    ],
)
def test_limits_take_the_old_and_the_least_used(aged: Store, limits: dict[str, Any], left: list[int]):
    before = sorted(Path(aged.root).rglob("*"))
    planned = sweep(aged, **limits, dry_run=True)
    assert sorted(Path(aged.root).rglob("*")) == before
    done = sweep(aged, **limits)
    assert sizes(aged) == left
    assert (done.left, len(done.entries)) == (len(left), 5 - len(left))
    assert [e.path for e in done.entries] == [e.path for e in planned.entries]
    assert is_clean(aged)


def test_size_limit_is_kept_and_no_more_goes_than_must(aged: Store):
    total = sum(len(data) for name, data in files_below(aged.root).items() if "-v1/" in name)
    one = max(len(data) for data in files_below(aged.root).values()) * 2
    for limit in (total - 1, total // 2, one):
        sweep(aged, size=limit)
        held = sum(len(data) for name, data in files_below(aged.root).items() if "-v1/" in name)
        assert limit - one < held <= limit
    assert 5 in sizes(aged)


def test_cubin_that_two_entries_share_counts_once_and_stays_with_the_last(store: Store):
    cubin = make_artifact(1).cubin
    first, second = put(store, 1, written=2), put(store, 2, written=1, cubin=cubin)
    total = len(first.manifest_bytes) + len(second.manifest_bytes) + len(cubin)
    assert sweep(store, size=total).entries == ()
    done = sweep(store, size=total - 1)
    assert (sizes(store), done.objects, object_path(store, second).exists()) == ([2], (), True)
    assert sweep(store, entries=0).objects == (str(object_path(store, second)),)


def test_pinned_entry_stays_whatever_the_limits(aged: Store):
    pinned = make_artifact(4).entry_key
    done = sweep(aged, age=0, unused=0, entries=0, size=0, pinned={pinned})
    assert (sizes(aged), done.pinned, done.left) == ([4], 1, 1)
    # A pin takes room that others would have had.
    put(aged, 6)
    assert sweep(aged, entries=1, pinned={pinned}).left == 1
    assert sizes(aged) == [4]


def test_leftovers_go_when_they_are_old_enough(store: Store):
    artifact = put(store, 1)
    orphan = Path(store.object_path("ab" + "0" * 62))
    orphan.parent.mkdir(parents=True)
    left = [orphan, *(Path(f"{store.root}/{name}") for name in ("tmp/1-2", "quarantine/x.json.1", "logs/k.log"))]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left")
    assert sorted(leftovers(store)) == sorted(map(str, left[:3]))
    assert sweep(store).leftovers == ()
    hours = time.time() - 2 * 3600
    for path in left:
        os.utime(path, (hours, hours))
    done = sweep(store)
    assert (done.objects, done.leftovers) == ((str(left[0]),), (str(left[1]),))
    weeks = time.time() - 8 * DAY
    for path in left[2:]:
        os.utime(path, (weeks, weeks))
    assert set(sweep(store).leftovers) == set(map(str, left[2:]))
    assert read_spec(store, artifact) is not None
    assert is_clean(store)


def test_age_is_told_by_the_clock_of_the_store(store: Store, monkeypatch: pytest.MonkeyPatch):
    put(store, 1)
    Path(f"{store.root}/tmp/1-2").write_bytes(b"")
    real = time.time
    for shift in (67, -67, 10 * 365 * DAY, -10 * 365 * DAY):
        monkeypatch.setattr(time, "time", lambda shift=shift: real() + shift)
        assert sweep(store, age=DAY, unused=DAY).size == 0


def test_entry_from_the_future_or_from_1970_is_no_trouble(store: Store):
    for size, seconds in ((1, time.time() + 1000 * DAY), (2, 0.0)):
        artifact = put(store, size)
        os.utime(entry_path(store, artifact), (seconds, seconds))
    assert sweep(store, entries=1).left == 1
    assert sizes(store) == [1]


def test_entries_that_can_never_hit_go(store: Store):
    bad, dangling, good = (put(store, size) for size in (1, 2, 3))
    flip(entry_path(store, bad), 400)
    object_path(store, dangling).unlink()
    assert len(sweep(store, grace=0).entries) == 2
    assert sizes(store) == [3]
    assert read_spec(store, good) is not None
    assert is_clean(store)


def test_other_formats_stay_unless_asked(store: Store):
    newer = put(store, 1, written=9)
    path = entry_path(store, newer)
    path.write_bytes(path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2'))
    for name in ("entries-v2", "objects-v7", "entries-vx", "mine"):
        os.makedirs(f"{store.root}/{name}/deep")
    sweep(store, age=0, entries=0, size=0, grace=0)
    assert path.exists()
    assert object_path(store, newer).exists()
    done = sweep(store, other_formats=True)
    assert [os.path.basename(place) for place in done.others] == ["entries-v2", "objects-v7"]
    assert sorted(os.listdir(store.root)) == [
        "CACHEDIR.TAG", "entries-v1", "entries-vx", "locks", "mine", "objects-v1", "quarantine", "tmp",
    ]  # fmt: skip
    assert not path.exists()


def test_directory_that_is_no_store_is_refused(tmp_path: Path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear", encoding="utf-8")
    with pytest.raises(StoreError, match="is not a kreg store"):
        gc(Store(tmp_path / "home"), Limits(entries=0), other_formats=True)
    assert os.listdir(tmp_path / "home") == ["letter"]


def test_read_marks_an_entry_as_used_and_a_look_does_not(store: Store):
    artifact = put(store, 1, written=9)
    path = entry_path(store, artifact)
    before = path.stat()
    assert next(entries(store)).used == pytest.approx(before.st_mtime, abs=1)
    verify(store, Selector(), kreg.REGISTRY)
    sweep(store, dry_run=True)
    assert next(entries(store)).used == pytest.approx(before.st_mtime, abs=1)
    read_spec(store, artifact)
    assert next(entries(store)).used == pytest.approx(time.time(), abs=60)
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_publisher_that_reuses_an_old_cubin_keeps_it_from_the_sweep(store: Store):
    artifact = put(store, 1)
    entry_path(store, artifact).unlink()
    old = time.time() - 2 * 3600
    os.utime(object_path(store, artifact), (old, old))
    store._put_object(artifact)
    assert sweep(store).objects == ()


# Setting aside.


def test_good_entry_that_took_the_place_of_a_bad_one_is_put_back(store: Store, monkeypatch: pytest.MonkeyPatch):
    artifact = put(store, 1)
    path = entry_path(store, artifact)
    flip(path, 400)
    real = os.rename

    def slow(source: str, target: str) -> None:
        monkeypatch.setattr(os, "rename", real)
        store.publish(artifact)  # Another process was quicker.
        real(source, target)

    monkeypatch.setattr(os, "rename", slow)
    with pytest.raises(StoreError, match=r"it has been replaced in the meantime$"):
        read_spec(store, artifact)
    assert read_spec(store, artifact).cubin == artifact.cubin
    assert os.listdir(f"{store.root}/quarantine") == []


# Killed in the middle.

WORK = """
import sys
from builders import make_artifact
from kreg import Store
from kreg.sweep import Limits, gc
store, name = Store(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
number = 0
while True:
    number = number % 40 + 1
    if name == "publish":
        store.publish(make_artifact(number))
    else:
        gc(store, Limits(entries=number % 7), grace=0)
        for size in range(1, 8):
            store.publish(make_artifact(size))
"""


@pytest.mark.parametrize("name", ["publish", "gc"])
def test_process_killed_at_any_moment_leaves_nothing_wrong(tmp_path: Path, store: Store, name: str):
    (tmp_path / "work.py").write_text(WORK, encoding="utf-8")
    chance = random.Random(name)
    kept = put(store, 50)
    for _ in range(15):
        child = start_python(str(tmp_path / "work.py"), store.root, name)
        assert child.stdout.readline() == "ready\n"
        time.sleep(chance.random() * 0.1)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        for size in (*range(1, 41), 50):
            artifact = make_artifact(size)
            found, said = warnings_of(lambda artifact=artifact: read_spec(store, artifact))
            assert said == []
            assert found is None or found.cubin == artifact.cubin
        assert name == "gc" or read_spec(store, kept) is not None
        sweep(store, grace=0)
        assert is_clean(store)
    assert kreg.resolve(KERNEL, size=1, target="sm_90a", store=store) is not None


# kreg gc


def command(store: Store, *arguments: str, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(main, ["gc", "--store", store.root, *arguments], prog_name="kreg")
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def test_gc_says_what_goes_and_how_much(aged: Store):
    shown = command(aged, "--max-entries", "3", "--dry-run")
    assert sizes(aged) == [1, 2, 3, 4, 5]
    done = command(aged, "--max-entries", "3")
    assert [line.split()[:3] for line in done[0].splitlines()[1:]] == [["fake", "1", "size=4"], ["fake", "1", "size=3"]]
    assert shown[1].startswith("to remove: 2 entries, 2 cubins, 0 leftovers, ")
    assert done[1] == shown[1].replace("to remove", "removed")
    assert command(aged)[1] == "removed: 0 entries, 0 cubins, 0 leftovers, 0 B; 3 entries left\n"


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("--max-age", "84h"), [1, 2, 3]),
        (("--unused", "3d"), [1, 2, 5]),
        (("--max-size", "1GiB"), [1, 2, 3, 4, 5]),
        (("--max-size", "10 B"), []),
        (("--max-age", "0s", "--lockfile", "LOCK"), [2]),
    ],
)
def test_gc_takes_units_and_lockfiles(aged: Store, tmp_path: Path, arguments: tuple[str, ...], left: list[int]):
    from kreg.lockfile import Lockfile, pin, write_lockfile

    artifact = make_artifact(2)
    pins = (pin(str(artifact.manifest.spec), artifact.manifest, "fake"),)
    lockfile = Lockfile(toolchains={"fake": dict(TOOLCHAIN.distributions)}, pins=pins)
    write_lockfile(str(tmp_path / "kreg.lock"), lockfile)
    command(aged, *(word.replace("LOCK", str(tmp_path / "kreg.lock")) for word in arguments))
    assert sizes(aged) == left


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-age", "3 weeks"), "'3 weeks' is not a whole number with a unit, such as 10s, 10min, 10h, 10d"),
        (("--max-age", "3"), "'3' is not a whole number with a unit"),
        (("--max-size", "-1"), "'-1' is not a whole number with a unit, such as 10B, 10KiB,"),
        (("--max-entries", "-1"), "-1 is not in the range x>=0"),
    ],
)
def test_gc_refuses_an_amount_that_is_none(aged: Store, arguments: tuple[str, ...], said: str):
    assert said in command(aged, *arguments, code=2)[1]
    assert len(sizes(aged)) == 5


def test_gc_prints_json(aged: Store):
    done = json.loads(command(aged, "--max-entries", "4", "--json")[0])
    assert (done["removed"], done["left"], [e["spec"] for e in done["entries"]]) == (True, 4, ["fake@1[size=4]:sm_90a"])
    assert done["objects"] == [str(object_path(aged, make_artifact(4)))]


def test_verify_names_leftovers(store: Store, run_verify: Callable[[], tuple[str, str]]):
    put(store, 1, spec=make_spec())
    path = f"{store.root}/tmp/1-2"
    Path(path).touch()
    assert (
        f"{path}: no entry needs it\n1 leftover, which `kreg gc` removes when they are old enough\n" in run_verify()[1]
    )


@pytest.fixture
def run_verify(store: Store) -> Callable[[], tuple[str, str]]:
    def run() -> tuple[str, str]:
        done = CliRunner().invoke(main, ["verify", "--store", store.root], prog_name="kreg")
        assert done.exit_code == 0
        return done.stdout, done.stderr

    return run
