"""Choose a portfolio: how many samples each policy draws, from the counts of right samples on validation problems.

The pass rate of a set grows with every sample, and each further sample adds less (it is monotone and submodular). So
the greedy order, which always adds the most useful sample next, is close to the best set of every size.

Sets are judged by the share of all sets of stored samples with their composition that have a right one: an unbiased
estimate, for one policy as for a mixture. Shrunken rates would be biased: with a prior for each policy alone, what
is not known of each looks like independent chances, and mixing seems to help; with a common prior, a policy that
spreads its right samples over more questions loses what sets it apart.

A portfolio must earn its place: unless it is ahead of the best single policy on questions that neither was chosen on,
by more than a standard error, that policy draws all samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twotemp import metrics
from twotemp.metrics import Estimate
from twotemp.metrics.estimates import Floats
from twotemp.tuning.goal import Goal, Tally

_MOST = 4096  # samples in an order


@dataclass(frozen=True)
class Comparison:
    """A portfolio and the best single policy on questions that neither was chosen on; rates in [0, 1]."""

    portfolio: float
    single: float
    difference: Estimate  # paired
    questions: int


@dataclass(frozen=True)
class ChosenOrder:
    """Which policy draws which sample, and how that compares with the best single policy."""

    order: list[int]  # numbers of policies; all the same if no portfolio has earned its place
    single: int
    compared: Comparison  # of the greedy portfolio, chosen or not


def greedy_choice(tallies: Sequence[Tally], goal: Goal) -> tuple[list[int], int]:
    """Return which policy draws which sample for a goal, and the best single policy.

    For pass@k the next sample is the one that adds most, for pass@NFE the one that adds most per function evaluation.
    The order ends with the sample at which the budget is spent. Where the best single policy has the higher rate, it
    draws all samples.
    """
    greedy = _greedy(tallies, goal)
    alone = [[policy] * _length(goal, tally.cost) for policy, tally in enumerate(tallies)]
    means = [float(rates(tallies, order, goal).mean()) for order in (*alone, greedy)]
    *singles, mixed = (round(mean, 12) if mean == mean else -1.0 for mean in means)
    single = int(np.argmax(singles))
    return (greedy if mixed > singles[single] else alone[single]), single


def _length(goal: Goal, cost: float) -> int:
    return goal.k or min(_MOST, int(np.ceil((goal.nfe or 1) / cost - 1e-9)))


def _greedy(tallies: Sequence[Tally], goal: Goal) -> list[int]:
    """Return the order; a policy draws at most as many samples as every question has."""
    available = [int(tally.n.min()) for tally in tallies]
    misses = [
        np.pad(1 - metrics.pass_at_k(t.n, t.correct, range(1, n + 1)), ((0, 0), (1, 0)), constant_values=1.0)
        for t, n in zip(tallies, available)
    ]  # [questions, n + 1] of each policy: the share of sets of j samples that are all wrong
    taken = [0] * len(tallies)
    order: list[int] = []
    spent = 0.0
    while len(order) < (goal.k or _MOST) and (goal.nfe is None or spent < goal.nfe - 1e-9):
        gains = np.full(len(tallies), -1.0)
        for policy, tally in enumerate(tallies):
            if (count := taken[policy]) < available[policy]:
                others = [missed[:, n] for p, (missed, n) in enumerate(zip(misses, taken)) if p != policy]
                fewer = misses[policy][:, count] - misses[policy][:, count + 1]
                gains[policy] = np.prod([fewer, *others], axis=0).mean() / (1.0 if goal.k else tally.cost)
        best = int(np.argmax(np.round(gains, 15)))
        if gains[best] < 0:
            break  # too few samples for the goal
        taken[best] += 1
        spent += tallies[best].cost
        order.append(best)
    return order


def rates(tallies: Sequence[Tally], order: Sequence[int], goal: Goal) -> Floats:
    """Return the unbiased pass rate of each question at the goal; NaN where a question has too few samples.

    Args:
        tallies: Of all policies, on the questions to judge by.
        order: The policy of each sample.
        goal: How many samples, or NFE.
    """
    if len(order) < (goal.k or 1):
        return np.full(len(tallies[0].n), np.nan)
    taken = np.cumsum(np.eye(len(tallies), dtype=np.int64)[list(order)], axis=0)
    n, correct = (np.stack([getattr(t, name) for t in tallies], axis=1) for name in ("n", "correct"))
    curve = metrics.pass_of_allocations(n, correct, taken)
    return goal.rates(curve, np.array([tallies[policy].cost for policy in order]))


def choose(tallies: Sequence[Tally], goal: Goal) -> ChosenOrder:
    """Return the greedy portfolio if it has earned its place, else the best single policy."""
    order, single = greedy_choice(tallies, goal)
    gaps = cross_fitted(tallies, goal)
    known = gaps[:, ~np.isnan(gaps).any(axis=0)]
    questions = known.shape[1]
    if not questions or np.subtract(*known).mean() <= np.subtract(*known).std() / math.sqrt(questions):
        order = [single] * _length(goal, tallies[single].cost)
    mixed, alone = known.mean(axis=1).tolist() if questions else (math.nan, math.nan)
    return ChosenOrder(order, single, Comparison(mixed, alone, metrics.paired_bootstrap(*gaps), questions))


def cross_fitted(tallies: Sequence[Tally], goal: Goal, folds: int = 5) -> Floats:
    """Return the rates of portfolio and single policy on each question, chosen on the other folds: [2, questions]."""
    questions = np.arange(len(tallies[0].n))
    pass_rates = np.full((2, len(questions)), np.nan)
    for fold in range(min(folds, len(questions))):
        inside = questions % folds == fold
        seen, unseen = ([tally.only(rows) for tally in tallies] for rows in (~inside, inside))
        if not inside.all():
            order, single = greedy_choice(seen, goal)
            alone = [single] * _length(goal, seen[single].cost)
            pass_rates[:, inside] = rates(unseen, order, goal), rates(unseen, alone, goal)
    return pass_rates


def useful(tallies: Sequence[Tally], goal: Goal, resamples: int = 20) -> list[int]:
    """Return the policies that the portfolio, or the best single policy, of some resample of the questions uses."""
    rng, size = np.random.default_rng(0), len(tallies[0].n)
    used: set[int] = set()
    for rows in (np.arange(size), *rng.integers(0, size, (resamples, size))):
        order, single = greedy_choice([tally.only(rows) for tally in tallies], goal)
        used |= {*order, single}
    return sorted(used)
