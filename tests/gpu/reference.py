"""The meaning of the top 16 in float64 and integers, and the corpus of rows it is checked on.

What the reference leaves open is only what f32 leaves open: the order of selections closer together than the error of
a score (2.1e-7) and of a sum. Equal inputs must be ordered by expert, exactly; so must those at minus infinity.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

EXPERTS, TOP = 896, 16
SCORE_ERROR = 2.1e-7
SMALLEST_NORMAL = 2.0**-126

Row = tuple[str, np.ndarray, np.ndarray]


def scores(logits: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the exact scores [896] in float64; those below the smallest normal f32 are 0."""
    finite = np.isfinite(logits) & np.isfinite(bias)
    with np.errstate(over="ignore"):
        exact = 1.0 / (1.0 + np.exp(-np.where(finite, logits, 0.0).astype(np.float64)))
    return np.where(finite & (exact >= SMALLEST_NORMAL), exact, 0.0)


def selections(logits: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the exact selections [896] in float64, minus infinity where an input is not finite."""
    finite = np.isfinite(logits) & np.isfinite(bias)
    return np.where(finite, scores(logits, bias) + np.where(finite, bias, 0.0).astype(np.float64), -np.inf)


def explain(ids: np.ndarray, weights: np.ndarray, logits: np.ndarray, bias: np.ndarray) -> str | None:
    """Return what is wrong with one row's ids [16] and weights [16], or None."""
    if len(set(ids.tolist())) != TOP or ids.min() < 0 or ids.max() >= EXPERTS:
        return f"ids {ids.tolist()} repeat or are out of range"
    exact = selections(logits, bias)
    finite = np.flatnonzero(exact > -np.inf)
    count = min(TOP, len(finite))
    rest = np.flatnonzero(exact == -np.inf)[: TOP - count]
    if not np.isin(ids[:count], finite).all() or not np.array_equal(ids[count:], rest):
        return f"ids {ids.tolist()}: {count} are finite, then come {rest.tolist()}"
    return _explain_order(ids[:count], exact, logits, bias) or _explain_weights(ids, weights, logits, bias)


def _explain_order(ids: np.ndarray, exact: np.ndarray, logits: np.ndarray, bias: np.ndarray) -> str | None:
    if not len(ids):
        return None
    chosen = exact[ids]
    slack = 2 * (SCORE_ERROR + 2.0**-23 * np.abs(chosen))
    if (chosen[1:] > chosen[:-1] + slack[:-1]).any():
        return f"selections {chosen.tolist()} do not descend"
    left = np.setdiff1d(np.flatnonzero(exact > -np.inf), ids)
    if len(left) and exact[left].max() > chosen[-1] + slack[-1]:
        return f"expert {left[exact[left].argmax()]} should be among {ids.tolist()}"
    pairs = np.stack([logits, bias]).view(np.uint32).T.copy().view(np.uint64).ravel()
    place = {int(expert): rank for rank, expert in enumerate(ids)}
    for value in np.unique(pairs[ids]):
        alike = np.flatnonzero(pairs == value)
        ranks = [place.get(int(expert), TOP) for expert in alike]
        if ranks != sorted(ranks):
            return f"experts {alike.tolist()} are alike, and come at ranks {ranks}"
    return None


def _explain_weights(ids: np.ndarray, weights: np.ndarray, logits: np.ndarray, bias: np.ndarray) -> str | None:
    chosen = scores(logits, bias)[ids]
    expected = chosen / (chosen.sum() + 1e-20)
    worst = np.abs(weights.astype(np.float64) - expected).max()
    return None if worst <= 2e-6 else f"a weight is off by {worst:.3g}"


def corpus(seed: int = 20261201) -> list[Row]:
    """Return 5,300 rows (class, logits [896] f32, bias [896] f32): 5,060 random and adversarial, 240 corners."""
    rng = np.random.default_rng(seed)
    rows = [*_adversarial(rng), *_corners(rng)]
    assert len(rows) == 5300
    return rows


def _row(rng: np.random.Generator, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    logits = np.clip(scale * rng.standard_normal(EXPERTS), -3.4e38, 3.4e38).astype(np.float32)
    return logits, (0.1 * rng.standard_normal(EXPERTS)).astype(np.float32)


def _adversarial(rng: np.random.Generator) -> Iterator[Row]:
    for count, scale, name in ((2000, 1.0, "random"), (500, 10.0, "wide")):
        yield from ((name, *_row(rng, scale)) for _ in range(count))
    for count, value, name in ((300, np.nan, "nan logits"), (150, np.inf, "inf logits"), (150, -np.inf, "-inf logits")):
        yield from ((name, *_spoil(rng, _row(rng), 0, value)) for _ in range(count))
    for count, value in ((100, np.nan), (100, np.inf)):
        yield from (("spoiled bias", *_spoil(rng, _row(rng), 1, value)) for _ in range(count))
    for _ in range(60):
        logits, _ = _row(rng)
        yield "all -inf bias", logits, np.full(EXPERTS, -np.inf, np.float32)
    for finite in (15, 16, 17):
        yield from ((f"{finite} finite", *_keep(rng, rng.choice(EXPERTS, finite, replace=False))) for _ in range(200))
    for _ in range(400):
        logits = rng.integers(-2, 3, EXPERTS).astype(np.float32)
        yield "ties", logits, rng.integers(0, 2, EXPERTS).astype(np.float32)
    for _ in range(100):
        yield "all equal", np.full(EXPERTS, rng.standard_normal(), np.float32), np.zeros(EXPERTS, np.float32)
    for _ in range(300):
        yield "saturation", *_row(rng, float(rng.choice([50.0, 1e4, 3e38])))
    for _ in range(300):
        logits = rng.uniform(-110, -80, EXPERTS).astype(np.float32)
        yield "denormals", logits, (rng.standard_normal(EXPERTS) * 1e-40).astype(np.float32)


def _spoil(
    rng: np.random.Generator, row: tuple[np.ndarray, np.ndarray], which: int, value: float
) -> tuple[np.ndarray, np.ndarray]:
    row[which][rng.random(EXPERTS) < rng.uniform(0.01, 0.99)] = value
    return row


def _keep(rng: np.random.Generator, experts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Make a row in which only these experts are finite."""
    logits, bias = _row(rng)
    kept = np.full(EXPERTS, rng.choice([np.nan, np.inf, -np.inf]), np.float32)
    kept[experts] = logits[experts]
    return kept, bias


def _corners(rng: np.random.Generator) -> Iterator[Row]:
    """Yield rows in which fewer than 16 selections are above minus infinity somewhere in the two levels."""
    none = np.array([], dtype=np.int64)
    yield from (("all -inf", *_keep(rng, none)) for _ in range(40))
    for number in range(60):  # Lanes of the second level give both their keys: of warp 0, then of warp 2, ranks alike.
        few = 1 + number % 7
        logits, bias = _keep(rng, np.concatenate([np.arange(few), 512 + np.arange(few)]))
        logits[512 : 512 + few] += 8.0 * (-1) ** (number % 2)
        yield "merge", logits, bias
    for number in range(60):  # A lane of the first level gives all its keys, 4 + 4 experts, those at -inf included.
        start = 256 * (number // 15 % 3) + 4 * (number % 4)
        lane = np.concatenate([np.arange(start + 128, start + 132), rng.permutation(np.arange(start, start + 4))])
        yield "lane", *_keep(rng, lane[: 4 + number % 5])
    for number in range(60):
        yield "1 to 15 finite", *_keep(rng, rng.choice(EXPERTS, 1 + number % 15, replace=False))
    for _ in range(20):
        yield "nan", np.full(EXPERTS, np.nan, np.float32), _row(rng)[1]
