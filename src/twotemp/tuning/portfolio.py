"""Choose a portfolio: how many samples each policy draws, from the counts of right samples on validation problems.

The pass rate of a set of samples grows with every sample and by less the more there are (it is monotone and
submodular), so the greedy order, which adds the most useful sample next, is close to the best set of every size.

A portfolio must earn its place: unless it is ahead of the best single policy on questions that neither was chosen on,
by more than a standard error, that policy draws all samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics
from twotemp.metrics import Estimate
from twotemp.metrics.estimates import Floats
from twotemp.tuning.goal import Goal, Tally

_PRECISIONS = np.geomspace(0.05, 500, 41)  # a + b of the prior
_MOST = 4096  # samples in an order
_log_gamma = np.vectorize(math.lgamma, otypes=[float])


@dataclass(frozen=True)
class Comparison:
    """A portfolio and the best single policy on questions that neither was chosen on; rates in [0, 1]."""

    portfolio: float
    single: float
    difference: Estimate  # paired
    questions: int


@dataclass(frozen=True)
class Choice:
    """Which policy draws which sample, and how that compares with the best single policy."""

    order: list[int]  # numbers of policies; all the same if no portfolio has earned its place
    single: int
    compared: Comparison  # of the greedy portfolio, chosen or not


def expected_misses(tallies: Sequence[Tally], most: int) -> Floats:
    """Return the probability that the next j samples of a policy are all wrong: [policies, questions, most + 1].

    A question's rate under a policy has a Beta(a, b) prior, so that 0 right of 16 is not taken for 0. After c right
    of n,

        P(j wrong) = prod_{i < j} (b + n - c + i) / (a + b + n + i).

    The prior's mean is the rate of the question under the other policies, shifted to the level of this one, and its
    strength a + b the likeliest of a grid. With a prior that knows nothing of the other policies, a question that
    none of them has solved would look like so many independent chances, and mixing would always seem to help.
    """
    means, left = _prior_means(tallies), np.arange(most)[None, :]
    misses = []
    for tally, mean in zip(tallies, means):
        precision = _fitted_precision(tally, mean)
        wrong = (precision * (1 - mean) + tally.n - tally.correct)[:, None] + left
        misses.append(np.cumprod(wrong / ((precision + tally.n)[:, None] + left), axis=1))
    return np.concatenate([np.ones((*means.shape, 1)), np.stack(misses)], axis=2)


def _prior_means(tallies: Sequence[Tally]) -> Floats:
    """Return the rate that the other policies suggest, [policies, questions]; of a single policy its mean rate."""
    n, correct = (np.stack([getattr(tally, name) for tally in tallies]) for name in ("n", "correct"))
    level = np.clip((correct / np.maximum(n, 1)).mean(axis=1, keepdims=True), 1e-3, 1 - 1e-3)
    if len(tallies) == 1:
        return np.broadcast_to(level, n.shape)
    others = (level.sum() - level) / (len(tallies) - 1)
    # One right and one wrong sample at the overall rate are added: no question is certain.
    pooled = (correct.sum(axis=0) - correct + 2 * level.mean()) / (n.sum(axis=0) - n + 2)
    odds = pooled / (1 - pooled) * (level / (1 - level)) / (others / (1 - others))
    shifted: Floats = odds / (1 + odds)
    return shifted


def _fitted_precision(tally: Tally, mean: Floats) -> float:
    """Return the likeliest a + b of the grid."""

    def rising(start: Floats, counts: NDArray[np.int64]) -> float:
        """Return the sum over questions of log of start (start + 1) ... with `counts` factors."""
        return float((_log_gamma(start + counts) - _log_gamma(start)).sum())

    def log_likelihood(precision: float) -> float:
        a, b = precision * mean, precision * (1 - mean)
        return rising(a, tally.correct) + rising(b, tally.n - tally.correct) - rising(a + b, tally.n)

    return float(max(_PRECISIONS, key=log_likelihood))


def greedy_choice(tallies: Sequence[Tally], goal: Goal) -> tuple[list[int], int]:
    """Return which policy draws which sample for a goal, and the best single policy, judged alike.

    For pass@k the next sample is the one that adds most, for pass@NFE the one that adds most per function evaluation.
    The order ends with the sample at which the budget is spent. Where the best single policy promises more than the
    greedy set, it draws all samples.
    """
    most = goal.k or min(_MOST, int((goal.nfe or 1) / min(tally.cost for tally in tallies)) + 1)
    misses = expected_misses(tallies, most)
    costs = np.array([tally.cost for tally in tallies])
    greedy = _greedy(misses, costs, goal)
    alone = [[policy] * _length(goal, tally.cost, most) for policy, tally in enumerate(tallies)]
    *promises, mixed = (round(_promise(order, misses, costs, goal), 12) for order in (*alone, greedy))
    single = int(np.argmax(promises))
    return (greedy if mixed > promises[single] else alone[single]), single


def _length(goal: Goal, cost: float, most: int) -> int:
    return goal.k or min(most, int(np.ceil((goal.nfe or 1) / cost - 1e-9)))


def _greedy(misses: Floats, costs: Floats, goal: Goal) -> list[int]:
    policies, _, width = misses.shape
    taken = np.zeros(policies, dtype=np.int64)
    order: list[int] = []
    miss = np.ones(misses.shape[1])
    spent = 0.0
    while len(order) < (goal.k or width - 1) and (goal.nfe is None or spent < goal.nfe - 1e-9):
        now = misses[np.arange(policies), :, taken]
        left = misses[np.arange(policies), :, taken + 1] / now
        gains = (miss * (1 - left)).mean(axis=1) / (1.0 if goal.k else costs)
        best = int(np.argmax(np.round(gains, 15)))
        miss = miss * left[best]
        taken[best] += 1
        spent += costs[best]
        order.append(best)
    return order


def _promise(order: Sequence[int], misses: Floats, costs: Floats, goal: Goal) -> float:
    """Return the expected rate of an order at the goal; -1 if the goal does not buy one sample."""
    taken = np.cumsum(np.eye(len(costs), dtype=np.int64)[list(order)], axis=0)  # [samples, policies]
    columns = [misses[policy][:, taken[:, policy]] for policy in range(len(costs))]
    curve = 1 - np.prod(columns, axis=0)
    return float(np.nan_to_num(goal.of(curve, costs[list(order)]).mean(), nan=-1.0))


def rates(tallies: Sequence[Tally], order: Sequence[int], goal: Goal) -> Floats:
    """Return the unbiased pass rate of each question at the goal; NaN where a question has too few samples.

    Args:
        tallies: Of all policies, on the questions to judge by.
        order: The policy of each sample.
        goal: How many samples, or NFE.
    """
    taken = np.cumsum(np.eye(len(tallies), dtype=np.int64)[list(order)], axis=0)
    n, correct = (np.stack([getattr(t, name) for t in tallies], axis=1) for name in ("n", "correct"))
    curve = metrics.pass_of_allocations(n, correct, taken)
    return goal.of(curve, np.array([tallies[policy].cost for policy in order]))


def choose(tallies: Sequence[Tally], goal: Goal) -> Choice:
    """Return the greedy portfolio if it has earned its place, else the best single policy."""
    order, single = greedy_choice(tallies, goal)
    gaps = cross_fitted(tallies, goal)
    known = gaps[:, ~np.isnan(gaps).any(axis=0)]
    questions = known.shape[1]
    if not questions or np.subtract(*known).mean() <= np.subtract(*known).std() / math.sqrt(questions):
        order = [single] * _length(goal, tallies[single].cost, _MOST)
    mixed, alone = known.mean(axis=1).tolist() if questions else (math.nan, math.nan)
    return Choice(order, single, Comparison(mixed, alone, metrics.paired_bootstrap(*gaps), questions))


def cross_fitted(tallies: Sequence[Tally], goal: Goal, folds: int = 5) -> Floats:
    """Return the rates of portfolio and single policy on each question, chosen on the other folds: [2, questions]."""
    questions = np.arange(len(tallies[0].n))
    found = np.full((2, len(questions)), np.nan)
    for fold in range(min(folds, len(questions))):
        inside = questions % folds == fold
        seen, unseen = ([tally.only(rows) for tally in tallies] for rows in (~inside, inside))
        if not inside.all():
            order, single = greedy_choice(seen, goal)
            alone = [single] * _length(goal, seen[single].cost, _MOST)
            found[:, inside] = rates(unseen, order, goal), rates(unseen, alone, goal)
    return found


def useful(tallies: Sequence[Tally], goal: Goal, resamples: int = 20) -> list[int]:
    """Return the policies that the portfolio, or the best single policy, of some resample of the questions uses."""
    rng, size = np.random.default_rng(0), len(tallies[0].n)
    used: set[int] = set()
    for rows in (np.arange(size), *rng.integers(0, size, (resamples, size))):
        order, single = greedy_choice([tally.only(rows) for tally in tallies], goal)
        used |= {*order, single}
    return sorted(used)
