"""Races between processes: one compile per key, and never a wrong byte."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from builders import finish, make_artifact, read_spec, start_python

from kreg import Store
from kreg.inventory import entries
from kreg.upkeep import Verifier

RACERS = 16
Race = Callable[..., list[list[str]]]


@pytest.fixture
def race() -> Iterator[Callable[..., list[list[str]]]]:
    """Return a function that starts a process for each list of arguments, together, and returns what each says."""
    children: list[subprocess.Popen[str]] = []

    def run(*arguments: Sequence[str], **variables: str) -> list[list[str]]:
        children.extend(start_python("racer.py", *given, **variables) for given in arguments)
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


def test_processes_that_want_one_cold_key_compile_once(root: str, runs: Callable[[], int], race: Race):
    said = race(*[("resolve", root)] * RACERS)
    assert runs() == 1
    assert [compiled for compiled, *_ in said].count("True") == 1
    assert len({tuple(digests) for _, *digests in said}) == 1
    assert len(said) == RACERS


def test_processes_without_locks_all_get_the_same(root: str, runs: Callable[[], int], race: Race):
    Store(root).prepare()
    (Path(root) / "locks").rmdir()
    (Path(root) / "locks").touch()
    said = race(*[("resolve", root)] * 4, PYTHONWARNINGS="ignore")
    assert 1 <= runs() <= 4
    assert len({tuple(digests) for _, *digests in said}) == 1


@pytest.mark.parametrize("roles", [("publish", "publish", "read", "look"), ("publish", "publish", "read", "sweep")])
def test_writers_readers_and_sweepers_at_once_never_meet_a_wrong_byte(root: str, roles: tuple[str, ...], race: Race):
    store = Store(root)
    store.prepare()
    counts = [int(count) for (count,) in race(*((role, root, "2") for role in roles))]
    assert min(counts) > 0
    verifier = Verifier(store)
    assert [verifier.check(entry) for entry in entries(store)] == [None] * len(list(store.entry_files()))
    assert list((Path(root) / "tmp").iterdir()) == []
    assert list((Path(root) / "quarantine").iterdir()) == []
    store.publish(make_artifact(1))
    assert read_spec(store, make_artifact(1)) is not None
