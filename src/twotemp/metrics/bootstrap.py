"""Intervals by resampling questions: the questions are the sample, their answers are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twotemp.errors import UserError
from twotemp.metrics.passk import Floats

RESAMPLES = 10_000
_CHUNK = 500  # resamples drawn at once: 500 x 1,319 counts are 5 MB


@dataclass(frozen=True)
class Estimate:
    """Means over questions with a percentile interval; one entry a column of the values given."""

    mean: Floats
    low: Floats
    high: Floats
    questions: NDArray[np.int64]  # how many had a value (n >= k); the others are left out of the mean

    @property
    def half_width(self) -> Floats:
        """The +- of the paper's tables."""
        return (self.high - self.low) / 2


def bootstrap(
    values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> Estimate:
    """Mean over questions of `values` [questions, columns] and its bootstrap interval.

    A resample draws as many questions as there are, with replacement: counts are multinomial, and all means
    of a resample are one matrix product, (counts @ values) / (counts @ present). A NaN says that the question
    has no value in that column (k > n); `Estimate.questions` says how many had one. A column in which no
    question has a value is NaN.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or not table.shape[0]:
        raise UserError("a bootstrap needs values of at least one question, [questions, columns]")
    if resamples < 1 or not 0 < level < 1:
        raise UserError(f"resamples must be >= 1 and level in (0, 1), not {resamples} and {level}")
    present = ~np.isnan(table)
    filled = np.where(present, table, 0.0)
    count = present.sum(axis=0)
    # Most tables have no hole; then every resample holds exactly as many values as there are questions.
    holes = not present.all()
    rng = np.random.default_rng(seed)
    even = np.full(len(table), 1 / len(table))
    means = np.empty((resamples, table.shape[1]))
    for start in range(0, resamples, _CHUNK):
        stop = min(start + _CHUNK, resamples)
        counts = rng.multinomial(len(table), even, size=stop - start).astype(np.float64)
        with np.errstate(invalid="ignore"):  # a resample may miss every question that has a value
            means[start:stop] = (counts @ filled) / (counts @ present if holes else len(table))
    tail = (1 - level) / 2
    low, high = np.full((2, table.shape[1]), np.nan)
    some = count > 0
    if some.any():
        low[some], high[some] = np.nanquantile(means[:, some], [tail, 1 - tail], axis=0)
    with np.errstate(invalid="ignore"):
        mean = filled.sum(axis=0) / count
    return Estimate(mean, low, high, count)


def align(first: Sequence[str], second: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the questions two runs have in common, in the first one's order."""
    place = {question: row for row, question in enumerate(second)}
    pairs = [(row, place[question]) for row, question in enumerate(first) if question in place]
    if not pairs:
        raise UserError("the two runs have no question in common; compare runs of the same task and subset")
    rows = np.asarray(pairs, dtype=np.int64)
    return rows[:, 0], rows[:, 1]


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """The difference first - second of two policies on the same questions (rows in the same order: `align`).

    Both sides of a resample use the same questions, so what makes a question hard cancels: this is the
    bootstrap of the question-wise differences.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise UserError(
            f"a paired difference needs the same questions and columns, not {a.shape} and {b.shape}"
        )
    return bootstrap(a - b, resamples=resamples, seed=seed, level=level)
