"""Acts that are killed: at every call they make, and at random moments.

Whatever was cut off, no torn or mixed entry is served, what was published is there, the next resolve works, and what
lies about is named by verify and removed by gc.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from acts import ACTS, Place, begin, check
from calls import Calls, count_calls

ROUNDS, LONG_ROUNDS = 15, 150
"""Kills at random moments of each act."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def in_child(action: Callable[[], object]) -> int:
    """Start a process that does something; return its number."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(1)
    return child


def end(_name: str, _first: object) -> None:
    """End this process as a kill does."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(place: Place, name: str, number: int) -> bool:
    """Do an act in a process that is killed before its call ``number``; say whether it came so far."""

    def act() -> None:
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(place.folder, patch)
            calls.at, calls.act = number, end
            ACTS[name](place)

    _, status = os.waitpid(in_child(act), 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("name", ACTS)
def test_act_killed_before_any_of_its_calls_leaves_nothing_wrong(place: Place, name: str):
    begin(place, name)
    calls = count_calls(place.folder, lambda: ACTS[name](place))
    assert len(calls) > 10
    dirty = 0
    for number in range(1, len(calls) + 1):
        begin(place, name)
        what = f"{name}, killed before call {number}, {calls[number - 1]}, of {calls}"
        assert killed_at(place, name, number), what
        dirty += bool(check(place, what))
    assert dirty or name in {"lock", "export"}


@pytest.mark.parametrize("name", ACTS)
def test_act_killed_at_random_moments_leaves_nothing_wrong(place: Place, name: str, is_long: bool):
    def repeat() -> None:
        while True:
            begin(place, name)
            ACTS[name](place)

    chance = random.Random(name)
    for number in range(LONG_ROUNDS if is_long else ROUNDS):
        begin(place, name)
        child = in_child(repeat)
        time.sleep(chance.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        check(place, f"{name}, kill {number}")


def test_what_a_killed_writer_left_beside_a_file_goes_with_a_later_write(place: Place):
    place.fill()
    for age in (0, 7200):
        left = Path(f"{place.lockfile}.{age}abc.kreg-tmp")
        left.touch()
        os.utime(left, (time.time() - age, time.time() - age))
    ACTS["lock"](place)
    assert [file.name for file in Path(place.folder).glob("*.kreg-tmp")] == ["kreg.lock.0abc.kreg-tmp"]
