"""Successive halving with paired intervals: many candidates on few questions, then few on many. Plain arrays only.

A round measures everyone still in the race on the same questions, more of them each time. A candidate that is beaten
beyond doubt by one that costs no more leaves, whatever the round; of the others half stay: the most promising, and
the frontier. So the race is about the best, and about the best for less, in one go.

What is to be expected of a candidate is estimated from its own questions and, where these are few, from those of
its neighbours (`neighbours.estimates`): on a handful of questions many are equal, and luck would choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from twotemp import metrics
from twotemp.errors import UserError
from twotemp.metrics.passk import Floats
from twotemp.tuning.neighbours import estimates, strangers

FINALISTS = 4
PROBE = 2  # questions from which the first prices are known
LEAST = 4  # questions of the first round
LEVEL = 0.99  # of the paired intervals that decide
_RESAMPLES = 4000

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """One candidate on the first so many questions."""

    values: Floats  # [questions]: the goal, in [0, 1]; NaN: not measured
    cost: float  # NFE per question: where it stands on the frontier
    spent: float  # NFE of all its samples
    # [questions]: the goal with half of the samples. Of two that reach it on a few questions, the one that does so
    # with fewer samples is more likely to reach it on others.
    sooner: Floats | None = None

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.values)) if not np.isnan(self.values).all() else math.nan


@dataclass(frozen=True)
class Round(Generic[T]):
    """Who was measured on how many questions, and who goes on."""

    questions: int
    outcomes: dict[T, Outcome]
    kept: tuple[T, ...]


Measure = Callable[[Sequence[T], int], Sequence[Outcome]]
Apart = Callable[[Sequence[T]], Floats]


def race(
    candidates: Sequence[T],
    measure: Measure[T],
    budget: float,
    questions: int,
    finalists: int = FINALISTS,
    apart: Apart[T] = strangers,
) -> list[Round[T]]:
    """Spend about `budget` NFE. measure(some, q): their outcomes on the first q questions, again from the start.
    apart(some): [n, n], how many steps they are from each other.

    Rounds share what is left of the budget evenly, as in successive halving: fewer candidates, more questions.
    """
    if not candidates:
        raise UserError("no candidate to tune; name some policies, e.g. --policies tlc,tct")
    alive, at = tuple(candidates), min(PROBE, questions)
    known = dict(zip(alive, measure(alive, at)))
    if all(math.isnan(outcome.mean) for outcome in known.values()):
        raise _unmeasured()  # before the budget is spent
    rounds: list[Round[T]] = []
    left = 1 + max(0, math.ceil(math.log2(len(alive) / finalists)))
    while True:
        price = max(1.0, sum(known[one].spent for one in alive) / at)
        share = (budget - sum(outcome.spent for outcome in known.values())) / left
        more = min(questions, at + max(0, int(share / price)))
        if not rounds and more < min(LEAST, questions):
            needed = price * (at + (min(LEAST, questions) - at) * left)
            raise UserError(
                f"a budget of {budget:,.0f} NFE is too small for {len(alive)} candidates: {LEAST} questions each in "
                f"the first of {left} rounds take about {needed:,.0f}; raise --budget (what was drawn is kept), or "
                "name fewer values: tct:t_pos=0.1,threshold=0.6|0.8"
            )
        if more > at:
            known |= zip(alive, measure(alive, more))
        at, left = more, left - 1
        here = {one: known[one] for one in alive}
        kept = alive if left == 0 else survivors(here, finalists, apart)
        rounds.append(Round(at, here, kept))
        if left == 0 or len(kept) == 1:
            return rounds
        alive = kept


def survivors(outcomes: dict[T, Outcome], finalists: int, apart: Apart[T] = strangers) -> tuple[T, ...]:
    """Not beaten, and half of all: the most promising, and as many of the frontier; in the order they came."""
    beaten = beaten_by(outcomes)
    hopes = promises(outcomes, apart)
    ranked = sorted(
        (one for one in hopes if one not in beaten), key=lambda one: (-hopes[one], outcomes[one].cost)
    )
    ahead = sorted((one for one in frontier(outcomes) if one in hopes), key=lambda one: _merit(outcomes[one]))
    places = max(finalists, math.ceil(len(outcomes) / 2))
    best = ranked[: math.ceil(places / 2)]
    chosen = set(list(dict.fromkeys([*best, *ahead, *ranked]))[:places])
    return tuple(one for one in outcomes if one in chosen)


def promises(outcomes: dict[T, Outcome], apart: Apart[T] = strangers) -> dict[T, float]:
    """What to expect of everyone that was measured: the mean of the goal and of half of it, neighbours heard."""
    some = [one for one, outcome in outcomes.items() if not math.isnan(outcome.mean)]
    if not some:
        return {}
    here = [outcomes[one] for one in some]
    values = [o.values if o.sooner is None else (o.values + o.sooner) / 2 for o in here]
    found = estimates(np.nan_to_num(np.stack(values, axis=1)), apart(some))
    return dict(zip(some, np.round(found, 9).tolist()))


def _merit(outcome: Outcome) -> tuple[float, float]:
    """What to sort by, the best first: the goal, and for equal ones what they cost. The unmeasured come last."""
    return 1.0 if math.isnan(outcome.mean) else -round(outcome.mean, 9), outcome.cost


def frontier(outcomes: dict[T, Outcome]) -> list[T]:
    """Those that no other equals for less, from the cheapest to the best."""
    best, found = -math.inf, []
    for one in sorted(outcomes, key=lambda one: (outcomes[one].cost, _merit(outcomes[one]))):
        if outcomes[one].mean > best + 1e-9:
            best = outcomes[one].mean
            found.append(one)
    return found


def beaten_by(outcomes: dict[T, Outcome]) -> dict[T, T]:
    """Loser -> winner: a rival on the frontier costs no more and is better, the whole paired interval below 0."""
    names, rivals = list(outcomes), frontier(outcomes)
    pairs = [(one, rival) for rival in rivals for one in names if outcomes[rival].cost <= outcomes[one].cost]
    if not pairs:  # nobody could be measured
        return {}
    first, second = (np.stack([outcomes[one].values for one in side], axis=1) for side in zip(*pairs))
    # Percentiles of resamples: a candidate that ties with all should stay, and a prior would keep others as well.
    high = metrics.paired_bootstrap(
        first, second, method="percentile", resamples=_RESAMPLES, level=LEVEL
    ).high
    return {one: rival for (one, rival), most in zip(pairs, high) if most < 0}


@dataclass(frozen=True)
class Standing(Generic[T]):
    """Where a candidate ended. Intervals are 95 % over questions; `behind` is the paired difference to the winner."""

    candidate: T
    questions: int  # how many it was measured on
    mean: float
    low: float
    high: float
    cost: float
    finalist: bool = False
    on_frontier: bool = False  # among the finalists
    behind: tuple[float, float, float] | None = None  # mean, low, high; of finalists
    chance: float | None = None  # that it is the best finalist, if these questions are typical


def standings(rounds: Sequence[Round[T]], apart: Apart[T] = strangers) -> list[Standing[T]]:
    """Everyone: finalists from the most promising, then those who left, the last ones first."""
    final = rounds[-1]
    here = final.outcomes
    hopes = promises(here, apart)
    ranked = sorted(hopes, key=lambda one: (-hopes[one], here[one].cost))
    if not ranked:
        raise _unmeasured()
    ahead = frontier(here)
    values = np.stack([here[one].values for one in ranked], axis=1)
    behind = metrics.paired_bootstrap(values, np.repeat(values[:, :1], len(ranked), axis=1))
    gaps = list(zip(behind.mean.tolist(), behind.low.tolist(), behind.high.tolist()))
    gaps[0] = (0.0, 0.0, 0.0)  # the winner, to itself
    found = [
        replace(one, finalist=True, on_frontier=one.candidate in ahead, behind=gap, chance=chance)
        for one, gap, chance in zip(_seen(final, ranked), gaps, _chances(values).tolist())
    ]
    known = set(ranked)
    for round_ in reversed(rounds):
        left = [one for one in round_.outcomes if one not in known]
        known.update(left)
        if left:
            found += _seen(round_, sorted(left, key=lambda one: _merit(round_.outcomes[one])))
    return found


def _unmeasured() -> UserError:
    return UserError("no candidate could be measured: one sample costs more NFE than --at allows; raise it")


def _seen(round_: Round[T], some: Sequence[T]) -> list[Standing[T]]:
    """Some candidates, as this round saw them."""
    outcomes = [round_.outcomes[one] for one in some]
    interval = metrics.bootstrap(np.stack([outcome.values for outcome in outcomes], axis=1))
    lows, highs = interval.low.tolist(), interval.high.tolist()
    return [
        Standing(one, round_.questions, outcome.mean, low, high, outcome.cost)
        for one, outcome, low, high in zip(some, outcomes, lows, highs)
    ]


def _chances(values: Floats) -> Floats:
    """How often each column is the best if the questions are drawn again; equal ones share."""
    table = np.nan_to_num(values)
    even = np.full(len(table), 1 / len(table))
    counts = np.random.default_rng(0).multinomial(len(table), even, size=_RESAMPLES)
    means = counts @ table
    best = np.isclose(means, means.max(axis=1, keepdims=True), rtol=0, atol=1e-9)
    chances: Floats = (best / best.sum(axis=1, keepdims=True)).mean(axis=0)
    return chances
