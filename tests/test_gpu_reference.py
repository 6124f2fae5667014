"""The reference that GPU tests rest on must itself find fault with wrong answers; no GPU needed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "gpu"))

import reference


def answer(logits: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact answer, by a stable sort in float64."""
    ids = np.argsort(-reference.selections(logits, bias), kind="stable")[:16].astype(np.int32)
    chosen = reference.scores(logits, bias)[ids]
    return ids, (chosen / (chosen.sum() + 1e-20)).astype(np.float32)


def test_corpus_has_the_classes_and_counts():
    counts = Counter(name for name, _, _ in reference.corpus())
    assert sum(counts.values()) == 5300
    assert sum(counts[name] for name in ("all -inf", "merge", "lane", "1 to 15 finite", "nan")) == 240
    assert all(counts[f"{finite} finite"] == 200 for finite in (15, 16, 17))


def test_corpus_is_the_same_from_the_same_seed():
    first, second = reference.corpus(), reference.corpus()
    assert all(np.array_equal(a[1], b[1], equal_nan=True) for a, b in zip(first, second, strict=True))


def test_reference_accepts_the_exact_answer_on_every_row():
    for name, logits, bias in reference.corpus():
        assert reference.explain(*answer(logits, bias), logits, bias) is None, name


@pytest.mark.parametrize("change", ["repeat", "swap", "drop best", "weight", "out of range"])
def test_reference_finds_a_wrong_answer(change: str):
    name, logits, bias = reference.corpus()[0]
    assert name == "random"
    ids, weights = answer(logits, bias)
    if change == "repeat":
        ids[15] = ids[0]
    elif change == "swap":
        ids[[0, 15]] = ids[[15, 0]]
    elif change == "drop best":
        ids[0] = np.argsort(reference.selections(logits, bias))[0]
    elif change == "weight":
        weights[3] += 1e-5
    else:
        ids[2] = 900
    assert reference.explain(ids, weights, logits, bias) is not None


def test_reference_finds_a_tie_in_the_wrong_order():
    logits, bias = np.zeros(896, np.float32), np.zeros(896, np.float32)
    ids, weights = answer(logits, bias)
    assert ids.tolist() == list(range(16))
    assert reference.explain(ids[::-1].copy(), weights, logits, bias) is not None
    assert reference.explain(ids + 1, weights, logits, bias) is not None
