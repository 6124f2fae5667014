"""The benchmark's arithmetic and test data; what it measures is no test."""

from __future__ import annotations

import itertools

import pytest
from builders import make_artifact, read_spec
from kreg.cache_tools.bench import figure, in_turn, show_seconds, synthetic

from kreg import Store
from kreg.cubin import Cubin
from kreg.inventory import entries
from kreg.upkeep import Verifier


def test_two_things_are_measured_in_turn_after_a_round_that_does_not_count():
    counter = itertools.count(1)
    times, limits = in_turn(lambda: float(next(counter)), lambda: float(next(counter)), 3)
    assert times == [3, 5, 7]
    assert limits == [4, 6, 8]


def test_figure_has_medians_spread_and_the_median_of_the_ratios():
    found = figure("a hit", [2, 9, 4], "a read", [1, 3, 4], "2x")
    assert (found.seconds, found.fastest, found.slowest, found.limit_seconds, found.ratio) == (4, 2, 9, 3, 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (31e-9, "31.0 ns"),
        (310e-9, "310 ns"),
        (4.52e-6, "4.52 us"),
        (12.34e-3, "12.3 ms"),
        (0.99951, "1.00 s"),
        (1.7, "1.70 s"),
        (83.0, "83.00 s"),
    ],
)
def test_seconds(seconds: float, text: str):
    assert show_seconds(seconds) == text


def test_synthetic_artifacts_are_sound_different_and_of_the_size_asked_for(store: Store):
    made = list(synthetic(make_artifact(), 5, 4096))
    for spec, artifact in made:
        store.publish(artifact)
        assert artifact.manifest.spec == spec
        assert read_spec(store, artifact).cubin == artifact.cubin
        assert len(artifact.cubin) == 4096
        assert Cubin(artifact.cubin).facts("tiny").registers == 24
    verifier = Verifier(store)
    assert [verifier.check(entry) for entry in entries(store)] == [None] * 5
    assert len({artifact.cubin_digest for _, artifact in made}) == 5
    assert len(next(synthetic(make_artifact(), 1, 1 << 20, is_elf=False))[1].cubin) == 1 << 20
