"""The errors: one tree, and each survives the way from a worker process."""

from __future__ import annotations

import pickle

import pytest

from kreg import errors
from kreg.errors import CompileError, KregError, nearest

ERRORS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, KregError)]


def test_errors_are_drawn_in_the_docstring():
    drawn = [line.split()[1] for line in errors.__doc__.splitlines() if line.startswith(("├──", "└──"))]
    assert sorted(drawn) == sorted(error.__name__ for error in ERRORS if error is not KregError)


@pytest.mark.parametrize("error", ERRORS)
def test_error_is_the_same_after_pickling(error: type[KregError]):
    copy = pickle.loads(pickle.dumps(error("what went wrong")))
    assert (type(copy), str(copy)) == (error, "what went wrong")


def test_compile_error_keeps_its_log_when_pickled():
    copy = pickle.loads(pickle.dumps(CompileError("it failed", "line 7: error")))
    assert (str(copy), copy.log) == ("it failed", "line 7: error")


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("wrld_size", ["transport", "world_size"], " (did you mean 'world_size'?)"),
        ("sm_90", ["sm_90a", "sm_100a"], " (did you mean 'sm_90a'?)"),
        ("2", [2, 4], " (did you mean '2'?)"),
        ("elephant", ["sm_90a"], ""),
        ("anything", [], ""),
    ],
)
def test_nearest_names_the_closest_or_nothing(name: str, known: list[object], hint: str):
    assert nearest(name, known) == hint
