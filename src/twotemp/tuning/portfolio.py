"""Choose a portfolio: how many samples each policy draws, from the counts of right samples on validation problems.

The pass rate of a set of samples grows with every sample and by less the more there are (it is monotone and
submodular), so the greedy order, which adds the most useful sample next, is close to the best set of every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics
from twotemp.metrics import Estimate
from twotemp.metrics.estimates import Floats
from twotemp.tuning.goal import Goal, Tally

_PRECISIONS = np.geomspace(0.05, 50, 31)  # a + b of the prior
_MOST = 4096  # samples in an order


@dataclass(frozen=True)
class Comparison:
    """A portfolio and the best single policy on questions that neither was chosen on; rates in [0, 1]."""

    portfolio: float
    single: float
    difference: Estimate  # paired
    questions: int


def expected_misses(tally: Tally, most: int) -> Floats:
    """Return the probability that the next j samples of a question are all wrong, j = 0 to `most`: [questions, j].

    A question's rate has a Beta(a, b) prior over the questions of this policy, fitted to all of them, so that 0 right
    of 16 is not taken for 0: after c right of n,

        P(j wrong) = prod_{i < j} (b + n - c + i) / (a + b + n + i).
    """
    a, b = _fitted_prior(tally)
    left = np.arange(most)[None, :]
    wrong = b + (tally.n - tally.correct)[:, None] + left
    misses = np.cumprod(wrong / (a + b + tally.n[:, None] + left), axis=1)
    return np.concatenate([np.ones((len(misses), 1)), misses], axis=1)


def _fitted_prior(tally: Tally) -> tuple[float, float]:
    """Return a and b: the mean is that of the questions, a + b the likeliest of a grid."""
    rate = float(np.clip(np.mean(tally.correct / np.maximum(tally.n, 1)), 1e-3, 1 - 1e-3))
    steps = np.arange(int(tally.n.max()))

    def log_likelihood(precision: float) -> float:
        def rising(start: float, counts: NDArray[np.int64]) -> Floats:
            """Return log of start (start + 1) ... with `counts` factors."""
            return np.concatenate([[0.0], np.cumsum(np.log(start + steps))])[counts]

        a, b = precision * rate, precision * (1 - rate)
        parts = rising(a, tally.correct) + rising(b, tally.n - tally.correct) - rising(precision, tally.n)
        return float(parts.sum())

    precision = max(_PRECISIONS, key=log_likelihood)
    return float(precision * rate), float(precision * (1 - rate))


def greedy_order(tallies: Sequence[Tally], goal: Goal) -> list[int]:
    """Return which policy draws which sample, for a goal: numbers of policies in the order of their samples.

    For pass@k the next sample is the one that adds most, for pass@NFE the one that adds most per function evaluation.
    The order ends with the sample at which the budget is spent. Where a single policy promises more than the greedy
    set, it draws all samples.
    """
    most = goal.k or min(_MOST, int((goal.nfe or 1) / min(tally.cost for tally in tallies)) + 1)
    misses = np.stack([expected_misses(tally, most) for tally in tallies])  # [policies, questions, most + 1]
    costs = np.array([tally.cost for tally in tallies])
    orders = [_greedy(misses, costs, goal)]
    orders += [[policy] * _length(goal, tally.cost, most) for policy, tally in enumerate(tallies)]
    return max(orders, key=lambda order: round(_promise(order, misses, costs, goal), 12))


def best_single(tallies: Sequence[Tally], goal: Goal) -> int:
    """Return the number of the policy that promises most if it draws all samples, judged like a portfolio."""
    orders = [greedy_order([tally], goal) for tally in tallies]
    most = max(map(len, orders))
    misses = np.stack([expected_misses(tally, most) for tally in tallies])
    costs = np.array([tally.cost for tally in tallies])
    promises = [_promise([policy] * len(order), misses, costs, goal) for policy, order in enumerate(orders)]
    return int(np.argmax(np.round(promises, 12)))


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


def choose_order(tallies: Sequence[Tally], goal: Goal) -> tuple[list[int], int]:
    """Return the order of a portfolio, and the best single policy."""
    return greedy_order(tallies, goal), best_single(tallies, goal)


def cross_fitted(tallies: Sequence[Tally], goal: Goal, folds: int = 5) -> Comparison:
    """Choose portfolio and single policy on all folds of the questions but one, judge them on that one, and so on."""
    questions = np.arange(len(tallies[0].n))
    columns: list[Floats] = []
    for fold in range(min(folds, len(questions))):
        inside = questions % folds == fold
        seen, unseen = ([tally.only(rows) for tally in tallies] for rows in (~inside, inside))
        if not inside.all():
            order, single = choose_order(seen, goal)
            alone = [single] * len(greedy_order([seen[single]], goal))
            columns.append(np.stack([rates(unseen, order, goal), rates(unseen, alone, goal)]))
    mixed, one = np.concatenate(columns, axis=1)
    return Comparison(
        float(np.nanmean(mixed)), float(np.nanmean(one)), metrics.paired_bootstrap(mixed, one), len(mixed)
    )


def useful(tallies: Sequence[Tally], goal: Goal, resamples: int = 20) -> list[int]:
    """Return the policies that the portfolio, or the best single policy, of some resample of the questions uses."""
    rng, size = np.random.default_rng(0), len(tallies[0].n)
    used: set[int] = set()
    for rows in (np.arange(size), *rng.integers(0, size, (resamples, size))):
        order, single = choose_order([tally.only(rows) for tally in tallies], goal)
        used |= {*order, single}
    return sorted(used)
