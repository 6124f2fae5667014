"""Races between processes: one compile per key, and never a wrong byte."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from builders import finish, make_artifact, read_spec, start_python

from kreg import Store
from kreg.inventory import entries
from kreg.sweep import Limits, gc
from kreg.upkeep import Verifier

Race = Callable[..., list[list[str]]]


@pytest.fixture
def race() -> Iterator[Callable[..., list[list[str]]]]:
    """Return a function that starts a process for each list of arguments, together, and returns what each says."""
    children: list[subprocess.Popen[str]] = []

    def run(*arguments: Sequence[str], **variables: str) -> list[list[str]]:
        children.extend(start_python("faults/racer.py", *given, **variables) for given in arguments)
        for child in children:
            assert child.stdout.readline() == "ready\n", child.communicate()[1]
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        return [finish(child).split() for child in children]

    yield run
    for child in children:
        if child.returncode is None:
            child.kill()
            child.communicate()


def test_processes_that_want_one_cold_key_compile_once(root: str, runs: Callable[[], int], race: Race, is_long: bool):
    racers = 32 if is_long else 16
    said = race(*[("resolve", root)] * racers)
    assert runs() == 1
    assert [compiled for compiled, *_ in said].count("True") == 1
    assert len({tuple(digests) for _, *digests in said}) == 1
    assert len(said) == racers


def test_processes_without_locks_all_get_the_same(root: str, runs: Callable[[], int], race: Race):
    Store(root).prepare()
    (Path(root) / "locks").rmdir()
    (Path(root) / "locks").touch()
    said = race(*[("resolve", root)] * 4, PYTHONWARNINGS="ignore")
    assert 1 <= runs() <= 4
    assert len({tuple(digests) for _, *digests in said}) == 1


@pytest.mark.parametrize("locks", ["work", "succeed", "fail", "deleted"])
def test_everything_at_once_never_gives_a_wrong_byte(root: str, locks: str, race: Race, is_long: bool):
    store = Store(root)
    store.prepare()
    roles = ["publish", "publish", "read", "serve", "warm", "look", "sweep", "collect"]
    if locks == "deleted":
        roles.append("unlock")
    how = "work" if locks == "deleted" else locks
    counts = [
        int(count) for (count,) in race(*((role, root, "60" if is_long else "3") for role in roles), RACE_LOCKS=how)
    ]
    assert min(counts) > 0, dict(zip(roles, counts, strict=True))
    check_whole(store, are_locks_sound=locks == "work")


def check_whole(store: Store, *, are_locks_sound: bool) -> None:
    """Check that every entry is sound, or, where locks were none, lacks its cubin at most; and that all still works."""
    verifier = Verifier(store)
    found = [verifier.check(entry) for entry in entries(store)]
    bad = [finding.reason for finding in found if finding is not None]
    assert all(reason.endswith(" is missing") for reason in bad)
    assert not (bad and are_locks_sound)
    assert list((Path(store.root) / "tmp").iterdir()) == []
    assert list((Path(store.root) / "quarantine").iterdir()) == []
    gc(store, Limits(), grace=0)
    assert [verifier.check(entry) for entry in entries(store)] == [None] * len(list(store.entry_files()))
    store.publish(make_artifact(1))
    assert read_spec(store, make_artifact(1)) is not None
