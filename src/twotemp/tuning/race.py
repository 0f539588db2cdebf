"""Successive halving with paired intervals: many candidates on few questions, then few on many. Plain arrays only.

A round measures all remaining candidates on the same questions, more of them each time. In any
round, a candidate that is significantly worse than one that costs no more is eliminated. Half of the others stay:
those with the highest expected scores, and the frontier. So one race finds the best candidate and the best cheaper
ones.

The expected score of a candidate is estimated from its own questions and, while these are few, from those of similar
candidates (`smoothed_means`). Otherwise chance would choose, because on a handful of questions many tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import numpy as np

from twotemp import metrics
from twotemp.errors import UserError
from twotemp.metrics.estimates import Floats
from twotemp.records import Policy

FINALISTS = 4  # candidates that the last round should have
PROBE = 2  # questions drawn first, to learn the costs
FIRST_QUESTIONS = 4  # questions of the first round
LEVEL = 0.99  # of the paired intervals that eliminate
_RESAMPLES = 4000

T = TypeVar("T")


def affordable_questions(budget: float, price: float, most: int, candidates: int) -> int:
    """Return how many questions a first round may have; raise a UserError if the budget does not pay for a few.

    Args:
        budget: NFE of all samples.
        price: NFE of one question with all candidates.
        most: How many questions there are.
        candidates: How many candidates there are.
    """
    fewest, affordable = min(FIRST_QUESTIONS, most), int(budget / price)
    if affordable < fewest:
        raise UserError(
            f"a budget of {budget:,.0f} NFE is too small: {fewest} questions of {candidates} candidates take about "
            f"{price * fewest:,.0f}; raise --budget (drawn samples are kept), or name fewer candidates"
        )
    return min(affordable, most)


@dataclass(frozen=True)
class Measurement:
    """One candidate on the first questions of the task."""

    values: Floats  # [questions]: the goal, in [0, 1]; NaN: not measured
    cost: float  # NFE per question: the x axis of the frontier
    spent: float  # NFE of all its samples
    # [questions]: the goal with half of the samples. Of two candidates that reach the goal on a few questions, the
    # one that needs fewer samples is more likely to reach it on others.
    half_budget: Floats | None = None

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.values)) if not np.isnan(self.values).all() else math.nan


@dataclass(frozen=True)
class Round(Generic[T]):
    """The measurements of a round, and the candidates that it kept."""

    questions: int
    measurements: dict[T, Measurement]
    kept: tuple[T, ...]


Measure = Callable[[Sequence[T], int], Sequence[Measurement]]
Distances = Callable[[Sequence[T]], Floats]


def race(
    candidates: Sequence[T], measure: Measure[T], distances: Distances[T], *, budget: float, questions: int
) -> list[Round[T]]:
    """Race the candidates for about `budget` NFE.

    The rounds share the remaining budget evenly, as in successive halving: fewer candidates, more questions.

    Args:
        candidates: What to compare.
        measure: Returns the measurements of some candidates on the first q questions, including earlier ones.
        distances: Returns the distances between some candidates, [n, n].
        budget: NFE of all samples.
        questions: How many questions there are.
    """
    if not candidates:
        raise UserError("no candidate to tune; name some policies, e.g. --policies tlc,tct")
    alive, measured = tuple(candidates), min(PROBE, questions)
    known = dict(zip(alive, measure(alive, measured)))
    if all(math.isnan(measurement.mean) for measurement in known.values()):
        raise _unmeasured()  # before the budget is spent
    rounds: list[Round[T]] = []
    left = 1 + max(0, math.ceil(math.log2(len(alive) / FINALISTS)))
    while True:
        price = max(1.0, sum(known[candidate].spent for candidate in alive) / measured)
        share = (budget - sum(measurement.spent for measurement in known.values())) / left
        more = min(questions, measured + max(0, int(share / price)))
        if not rounds and more < min(FIRST_QUESTIONS, questions):
            needed = price * (measured + (min(FIRST_QUESTIONS, questions) - measured) * left)
            raise UserError(
                f"a budget of {budget:,.0f} NFE is too small for {len(alive)} candidates: {FIRST_QUESTIONS} "
                f"questions each in the first of {left} rounds take about {needed:,.0f}; raise --budget (drawn "
                "samples are kept), or name fewer values: tct:t_pos=0.1,threshold=0.6|0.8"
            )
        if more > measured:
            known |= zip(alive, measure(alive, more))
        measured, left = more, left - 1
        current = {candidate: known[candidate] for candidate in alive}
        kept = alive if left == 0 else survivors(current, distances)
        rounds.append(Round(measured, current, kept))
        if left == 0 or len(kept) == 1:
            return rounds
        alive = kept


def survivors(measurements: dict[T, Measurement], distances: Distances[T]) -> tuple[T, ...]:
    """Return half of the candidates, none of them beaten, in their given order.

    Half of the slots go to the highest expected scores, the others to the frontier first.
    """
    beaten = beaten_by(measurements)
    scores = expected_scores(measurements, distances)
    ranked = sorted((c for c in scores if c not in beaten), key=lambda c: (-scores[c], measurements[c].cost))
    ends = sorted((c for c in frontier(measurements) if c in scores), key=lambda c: _merit(measurements[c]))
    slots = max(FINALISTS, math.ceil(len(measurements) / 2))
    best = ranked[: math.ceil(slots / 2)]
    chosen = set(list(dict.fromkeys([*best, *ends, *ranked]))[:slots])
    return tuple(candidate for candidate in measurements if candidate in chosen)


def expected_scores(measurements: dict[T, Measurement], distances: Distances[T]) -> dict[T, float]:
    """Return the smoothed mean of each measured candidate, averaged over the goal and the goal at half the budget."""
    candidates = [c for c, measurement in measurements.items() if not math.isnan(measurement.mean)]
    if not candidates:
        return {}
    measured = [measurements[candidate] for candidate in candidates]
    values = [m.values if m.half_budget is None else (m.values + m.half_budget) / 2 for m in measured]
    means = smoothed_means(np.nan_to_num(np.stack(values, axis=1)), distances(candidates))
    return dict(zip(candidates, np.round(means, 9).tolist()))


def _merit(measurement: Measurement) -> tuple[float, float]:
    """Return a sort key, best first: the goal, then the cost. Unmeasured candidates come last."""
    return 1.0 if math.isnan(measurement.mean) else -round(measurement.mean, 9), measurement.cost


def frontier(measurements: dict[T, Measurement]) -> list[T]:
    """Return the candidates that no cheaper one equals, from the cheapest to the best."""
    best, ends = -math.inf, []
    for candidate in sorted(measurements, key=lambda c: (measurements[c].cost, _merit(measurements[c]))):
        if measurements[candidate].mean > best + 1e-9:
            best = measurements[candidate].mean
            ends.append(candidate)
    return ends


def beaten_by(measurements: dict[T, Measurement]) -> dict[T, T]:
    """Return loser -> winner: the winner is on the frontier, costs no more, and the paired interval favors it."""
    candidates, rivals = list(measurements), frontier(measurements)
    pairs = [
        (c, rival) for rival in rivals for c in candidates if measurements[rival].cost <= measurements[c].cost
    ]
    if not pairs:  # no candidate could be measured
        return {}
    first, second = (np.stack([measurements[c].values for c in side], axis=1) for side in zip(*pairs))
    # Plain percentiles: a candidate that ties on all questions stays, whereas a prior would keep others as well.
    high = metrics.paired_bootstrap(
        first, second, method="percentile", resamples=_RESAMPLES, level=LEVEL
    ).high
    return {candidate: rival for (candidate, rival), end in zip(pairs, high) if end < 0}


@dataclass(frozen=True)
class Standing(Generic[T]):
    """The result of a candidate, with 95 % intervals over questions."""

    candidate: T
    questions: int  # how many it was measured on
    mean: float
    low: float
    high: float
    cost: float
    finalist: bool = False
    on_frontier: bool = False  # among the finalists
    # Of finalists: the difference to the winner (mean, low, high).
    behind: tuple[float, float, float] | None = None
    chance: float | None = None  # that it is the best finalist, if these questions are typical


def standings(rounds: Sequence[Round[T]], distances: Distances[T]) -> list[Standing[T]]:
    """Return all candidates: finalists by expected score, then the eliminated ones, the last eliminated first."""
    final = rounds[-1]
    measurements = final.measurements
    scores = expected_scores(measurements, distances)
    ranked = sorted(scores, key=lambda c: (-scores[c], measurements[c].cost))
    if not ranked:
        raise _unmeasured()
    ends = frontier(measurements)
    values = np.stack([measurements[candidate].values for candidate in ranked], axis=1)
    behind = metrics.paired_bootstrap(values, np.repeat(values[:, :1], len(ranked), axis=1))
    gaps = list(zip(behind.mean.tolist(), behind.low.tolist(), behind.high.tolist()))
    gaps[0] = (0.0, 0.0, 0.0)  # the winner, to itself
    result = [
        replace(row, finalist=True, on_frontier=row.candidate in ends, behind=gap, chance=chance)
        for row, gap, chance in zip(_standings_in(final, ranked), gaps, _chances(values).tolist())
    ]
    listed = set(ranked)
    for round_ in reversed(rounds):
        left = [candidate for candidate in round_.measurements if candidate not in listed]
        listed.update(left)
        if left:
            result += _standings_in(round_, sorted(left, key=lambda c: _merit(round_.measurements[c])))
    return result


def _unmeasured() -> UserError:
    return UserError("no candidate could be measured: one sample costs more NFE than --at allows; raise it")


def _standings_in(round_: Round[T], candidates: Sequence[T]) -> list[Standing[T]]:
    """Return the standings of some candidates by the measurements of this round."""
    measured = [round_.measurements[candidate] for candidate in candidates]
    interval = metrics.bootstrap(np.stack([measurement.values for measurement in measured], axis=1))
    lows, highs = interval.low.tolist(), interval.high.tolist()
    return [
        Standing(candidate, round_.questions, measurement.mean, low, high, measurement.cost)
        for candidate, measurement, low, high in zip(candidates, measured, lows, highs)
    ]


def _chances(values: Floats) -> Floats:
    """Return how often each column is the best if the questions are resampled; ties share."""
    table = np.nan_to_num(values)
    even = np.full(len(table), 1 / len(table))
    counts = np.random.default_rng(0).multinomial(len(table), even, size=_RESAMPLES)
    means = counts @ table
    best = np.isclose(means, means.max(axis=1, keepdims=True), rtol=0, atol=1e-9)
    chances: Floats = (best / best.sum(axis=1, keepdims=True)).mean(axis=0)
    return chances


CORRELATION = 0.8  # of two candidates at distance 1
_LEAST_SPREAD = 0.1  # of the noise: candidates are never assumed to be all equal


def smoothed_means(values: Floats, distances: Floats) -> Floats:
    """Return the expected value of each candidate, [n].

    The posterior mean of a Gaussian process, K (K + s^2 / q)^-1 (y - mean) + mean, with K = spread^2 CORRELATION^d,
    where y are means over q questions, d distances, and s^2 the variance that neither question nor candidate
    explains. With more questions each candidate is judged more by its own; unrelated candidates (d = inf) keep the
    order of their means.

    Args:
        values: [questions, n].
        distances: [n, n], between candidates.
    """
    questions, count = values.shape
    y: Floats = values.mean(0)
    if count == 1:
        return y
    rest = values - values.mean(1, keepdims=True) - y + y.mean()
    noise = rest.var() * count / (count - 1) / questions
    spread = max(y.var() - noise, _LEAST_SPREAD * noise, 1e-9)
    kernel = spread * CORRELATION**distances
    smoothed: Floats = y.mean() + kernel @ np.linalg.solve(
        kernel + (noise + 1e-12) * np.eye(count), y - y.mean()
    )
    return smoothed


def policy_distances(policies: Sequence[Policy]) -> Floats:
    """Return the distances between policies, [n, n].

    Two values of a parameter that are neighbors among the values tried are at distance 1, and so are two structures.
    """
    structures = [policy.structure for policy in policies]
    distances = np.array([[float(a != b) for b in structures] for a in structures])
    for field in fields(Policy):
        values = [getattr(policy, field.name) for policy in policies]
        if all(isinstance(value, int | float) for value in values):
            rank = {value: n for n, value in enumerate(sorted(set(values)))}
            ranks = np.array([rank[value] for value in values], dtype=float)
            distances += abs(ranks[:, None] - ranks)
    return distances
