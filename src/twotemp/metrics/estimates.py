"""Unbiased pass@k, also against the cost of the samples, and intervals over questions.

For an interval the questions are the random sample; their values are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twotemp.errors import UserError

Floats = NDArray[np.float64]


def grid(ks: Sequence[int]) -> NDArray[np.int64]:
    """Return the subset sizes as an array; anything but integers >= 1 raises a UserError."""
    array = np.asarray(ks)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or array.min() < 1:
        raise UserError(f"k must be integers >= 1, not {ks!r}")
    return array.astype(np.int64)


def pass_at_k(n: ArrayLike, correct: ArrayLike, ks: Sequence[int]) -> Floats:
    """Return the probability that a random subset of k of a question's n samples has a right one; [questions, ks].

        pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod_{j<k} (1 - c / (n - j))

    Unbiased for any n >= k; NaN where k > n; n may differ between questions. The product is summed as
    log1p and inverted with expm1, so c = 1 of a million keeps its digits, and one cumulative sum serves all k.
    """
    sizes = grid(ks)
    n_, c = np.broadcast_arrays(np.asarray(n, dtype=np.int64), np.asarray(correct, dtype=np.int64))
    n_, c = np.atleast_1d(n_), np.atleast_1d(c)
    if n_.ndim != 1 or (c < 0).any() or (c > n_).any():
        raise UserError(
            "pass@k needs one n and one count of right samples for each question, 0 <= correct <= n"
        )
    left = n_[:, None] - np.arange(sizes.max())[None, :]  # samples not drawn yet, before draw j
    hit = np.minimum(c[:, None] / np.maximum(left, 1), 1.0)  # 1: only right samples are left
    with np.errstate(divide="ignore"):
        log_miss = np.log1p(-hit)
    values = 0.0 - np.expm1(np.cumsum(log_miss, axis=1)[:, sizes - 1])
    return np.where(sizes[None, :] <= n_[:, None], values, np.nan)


def mean_cost(costs: Sequence[ArrayLike]) -> float:
    """Return the mean cost of a sample (NFE, forwards or seconds); every question counts the same, whatever its n."""
    if not len(costs):
        raise UserError("no question to average a cost over")
    return float(np.mean([np.mean(np.asarray(cost, dtype=np.float64)) for cost in costs]))


def cost_axis(costs: Sequence[ArrayLike], ks: Sequence[int]) -> Floats:
    """Return the x axis of pass@NFE and pass@wall-clock: k samples cost k times the mean sample.

    As in the paper, "the same data, only the x axis changes": cumulative cost = k * mean cost. `costs` has
    one array per question: `nfe` for the paper's accounting, `forwards` for the passes run, or `seconds`.
    """
    return grid(ks).astype(np.float64) * mean_cost(costs)


def pass_of_allocations(n: ArrayLike, correct: ArrayLike, counts: ArrayLike) -> Floats:
    """Return the pass rate of sets that mix policies, [questions, sets]; `pass_at_k` is the case of one policy.

    A set takes counts[s, j] of the samples of each policy j at random. It has no right one with probability

        prod_j C(n_j - c_j, counts_j) / C(n_j, counts_j).

    Unbiased; NaN where a policy has fewer samples of a question than the set takes.

    Args:
        n: Samples of each question and policy, [questions, policies].
        correct: How many of them are right, the same shape.
        counts: [sets, policies].
    """
    n_, c, taken = (np.asarray(values, dtype=np.int64) for values in (n, correct, counts))
    if n_.ndim != 2 or n_.shape != c.shape or taken.ndim != 2 or taken.shape[1] != n_.shape[1]:
        raise UserError(
            f"counts of samples must be [questions, policies] and [sets, policies], not {n_.shape}, {c.shape} and "
            f"{taken.shape}"
        )
    miss = np.ones((len(n_), len(taken)))
    for policy in range(n_.shape[1]):
        column = taken[:, policy]
        rates = pass_at_k(n_[:, policy], c[:, policy], range(1, max(1, int(column.max())) + 1))
        miss *= np.concatenate([np.ones((len(n_), 1)), 1 - rates], axis=1)[:, column]
    return 1 - miss


def at_budget(values: ArrayLike, cost: float | ArrayLike, budgets: ArrayLike) -> Floats:
    """Return each question's rate at equal budgets; `values[:, i]` is the rate with i + 1 samples.

    `cost` is that of a sample, or of each sample in their order if they differ.

    A budget buys budget / cost samples. A fraction, say 2.3, means 2 samples with probability 0.7 and 3
    otherwise, so linear interpolation between neighboring k is exact, not a smoothing. NaN for less than one
    sample and for more than there are.
    """
    curves = np.asarray(values, dtype=np.float64)
    if curves.ndim != 2 or not curves.shape[1]:
        raise UserError("curves must be [questions, k], with every k from 1 on")
    spendable = np.atleast_1d(np.asarray(budgets, dtype=np.float64))
    each = np.asarray(cost, dtype=np.float64)
    if not (each > 0).all():
        raise UserError(f"the cost of a sample must be above 0, not {cost!r}")
    if each.ndim == 0:
        bought = spendable / each
    else:
        steps = np.arange(1, len(each) + 1)
        bought = np.interp(spendable, np.cumsum(each), steps, left=0, right=len(each) + 1)
    # A budget of exactly k samples may come out a rounding error away from k.
    bought = np.where(np.isclose(bought, np.rint(bought), rtol=1e-12, atol=0), np.rint(bought), bought)
    inside = (bought >= 1) & (bought <= curves.shape[1])
    low = np.clip(np.floor(bought), 1, curves.shape[1]).astype(np.int64)
    share = np.where(inside, bought - low, 0.0)
    # A whole number of samples has no upper neighbor: that one may be NaN (k > n).
    high = np.minimum(low + (share > 0), curves.shape[1])
    return np.where(inside, curves[:, low - 1] + share * (curves[:, high - 1] - curves[:, low - 1]), np.nan)


def tokens_per_forward(tokens: Sequence[ArrayLike], forwards: Sequence[ArrayLike]) -> float:
    """Return the tokens per forward pass: all tokens over all passes (a ratio of sums, not a mean of ratios)."""
    passes = sum(float(np.sum(f)) for f in forwards)
    if not passes > 0:
        raise UserError("no forward pass was counted; tokens per forward is undefined")
    return sum(float(np.sum(t)) for t in tokens) / passes


Method = Literal["bayesian", "percentile"]
RESAMPLES = 10_000
FEWEST_QUESTIONS = 10  # questions for an interval: with fewer, no method has the coverage it claims
_IMPOSSIBLE = 0.4  # least weight of impossible questions that were not drawn; see `bootstrap`
_CHUNK = 500  # resamples drawn at once: 500 x 1,319 weights are 5 MB


@dataclass(frozen=True)
class Estimate:
    """Means over questions with an interval; one entry for each column of the values given."""

    mean: Floats
    low: Floats  # NaN: too few questions for an interval
    high: Floats
    questions: NDArray[np.int64]  # how many have a value (n >= k); the others are left out of the mean


def bootstrap(
    values: ArrayLike,
    *,
    method: Method = "bayesian",
    bounds: tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """Return the mean over questions of each column, with its interval.

    "percentile" is the paper's method: questions drawn with replacement, quantiles of the means. Its interval is
    empty if all questions agree (100 ± 0 after three of three).

    "bayesian" is Rubin's Bayesian bootstrap with a prior. Questions get weights W_i ~ Exp(1), and a prior
    question at either bound of the values gets a weight B ~ Gamma(w): quantiles of

        ( sum_i W_i v_i + B_0 low + B_1 high ) / ( sum_i W_i + B_0 + B_1 ),     w = 0.2 + 0.6 r,

    where r = sum_i (v_i - m)^2 / (Q (m - low)(high - m)) is the variance as a share of the largest that values with
    this mean can have. So the prior matters near the bounds and with few questions: for 0/1 values (r = 1) the
    interval is that of Beta(s + 0.8, f + 0.8), between Jeffreys' 1/2 and Laplace's 1.

    The prior stands for the questions that were not drawn: some of them may be impossible even if all of ours were
    solved, and a small variance is no evidence against that. So for the lower end B_0 has a weight of at least
    `_IMPOSSIBLE`. Moreover, along a curve such as pass@k the weight is not constant: at k = 4 all questions may be
    nearly solved, with hardly any variance, and at k = 8 all are solved, where the variance says nothing and r is 1.
    Alone, the lower end would fall although pass@k can only rise. Hence, if no question has a lower value in the next
    column, the lower end is at most that of the next column, and the upper end at least that of the column before:
    both ends rise with k.

    No rule covers exactly with discrete counts. This one stays between 92 and 98 % in the cases of
    tests/metrics/test_intervals.py, with one exception: 91.6 % at k = 8 if 5 % of 50 questions are impossible. The
    weight was chosen on these cases, so expect a little less on others: 0.45 lifts the exception to 92.8 %, but
    covers 98.2 % where all questions are the same. Coverage falls to 87 % where values are alike and low and the few
    questions that are much easier were not drawn: nothing in the data shows that they exist. Fewer than
    `FEWEST_QUESTIONS` questions get no interval.

    Args:
        values: [questions, columns]; NaN: the question has no value in this column.
        method: "bayesian" or "percentile".
        bounds: The smallest and largest possible value, of all columns or of each.
        resamples: How many means the quantiles are taken of.
        seed: Of the resamples.
        level: The probability that the interval should cover.
    """
    table = _table(values)
    low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), table.shape[1]) for b in bounds)
    mean, size = _mean(table)
    spread = np.nansum((table - mean) ** 2, axis=0)
    most = size * (mean - low) * (high - mean)
    share = np.divide(spread, most, out=np.ones_like(mean), where=most > 1e-12)
    weight = _weight(share)
    prior = _Prior(low, high, weight, unseen=np.maximum(_IMPOSSIBLE - weight, 0))
    return _rising(table, _estimate(table, method, prior, resamples, seed, level))


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    method: Method = "bayesian",
    largest: float = 1.0,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """Return the difference first - second of two policies on the same questions, with its interval.

    Both sides of a resample use the same questions, so that the difficulty of a question cancels: this is the
    bootstrap of the differences d per question. The bounds of "bayesian" are ± the largest difference observed, or
    ± `largest` if all questions tie, and r = sum d^2 / (max |d| sum |d|): 1 if questions differ fully or not at all.

    Args:
        first: [questions, columns] or [questions].
        second: The same shape; rows in the same order (`align`).
        method: "bayesian" or "percentile".
        largest: The largest possible difference.
        resamples: How many means the quantiles are taken of.
        seed: Of the resamples.
        level: The probability that the interval should cover.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise UserError(
            f"a paired difference needs the same questions and columns, not {a.shape} and {b.shape}"
        )
    table = _table(a - b)
    size = np.nan_to_num(np.abs(table))
    observed, total = size.max(axis=0), size.sum(axis=0)
    share = np.divide((size**2).sum(axis=0), observed * total, out=np.ones_like(total), where=total > 0)
    bound = np.where(observed > 0, observed, largest)
    prior = _Prior(-bound, bound, _weight(share), unseen=np.zeros_like(bound))
    return _estimate(table, method, prior, resamples, seed, level)


def align(first: Sequence[str], second: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the common questions in either run, in the order of the first."""
    row_of = {question: row for row, question in enumerate(second)}
    pairs = [(row, row_of[question]) for row, question in enumerate(first) if question in row_of]
    if not pairs:
        raise UserError("the two runs have no question in common; compare runs of the same task and subset")
    rows = np.asarray(pairs, dtype=np.int64)
    return rows[:, 0], rows[:, 1]


def _table(values: ArrayLike) -> Floats:
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not table.shape[0]:
        raise UserError("a bootstrap needs values of at least one question, [questions, columns]")
    return table


def _mean(table: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the mean of each column (NaN if it is empty) and the number of its values."""
    size = (~np.isnan(table)).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.nansum(table, axis=0) / size, size


@dataclass(frozen=True)
class _Prior:
    """The prior questions of "bayesian"; one entry per column."""

    low: Floats  # the value of the lower one
    high: Floats
    weight: Floats  # w of both
    unseen: Floats  # what the lower one weighs in addition where the lower end is computed


def _weight(share: Floats) -> Floats:
    return 0.2 + 0.6 * np.clip(share, 0, 1)


def _estimate(
    table: Floats, method: Method, prior: _Prior, resamples: int, seed: int, level: float
) -> Estimate:
    """Return the mean of each column with quantiles of its resampled means; arguments as for `bootstrap`."""
    if method not in ("bayesian", "percentile"):
        raise UserError(f"the method must be bayesian or percentile, not {method!r}")
    if resamples < 1 or not 0 < level < 1:
        raise UserError(f"resamples must be >= 1 and level in (0, 1), not {resamples} and {level}")
    bayesian = method == "bayesian"
    means = _resampled_means(table, prior if bayesian else None, resamples, seed)
    mean, size = _mean(table)
    enough = size >= (FEWEST_QUESTIONS if bayesian else 1)
    ends = np.full((2, table.shape[1]), np.nan)
    if enough.any():
        tail = (1 - level) / 2
        for end, quantile in enumerate((tail, 1 - tail)):
            ends[end, enough] = np.nanquantile(means[end][:, enough], quantile, axis=0)
    if bayesian:  # if all values are at a bound, the prior must not push the interval off the mean
        ends = np.array([np.minimum(ends[0], mean), np.maximum(ends[1], mean)])
    return Estimate(mean, ends[0], ends[1], size)


def _resampled_means(table: Floats, prior: _Prior | None, resamples: int, seed: int) -> Floats:
    """Return means of resampled questions, [2, resamples, columns]: those for the lower and those for the upper end.

    The means of a chunk of resamples are (weights @ values) / (weights @ present).

    Args:
        table: [questions, columns].
        prior: Of "bayesian"; None: "percentile".
        resamples: How many means.
        seed: Of the resamples.
    """
    present = ~np.isnan(table)
    filled = np.where(present, table, 0.0)
    holes = not present.all()
    rows, columns = table.shape
    # Separate streams, so that the weights of the questions do not depend on the number of columns.
    rng, prior_rng, unseen_rng = (np.random.default_rng(key) for key in (seed, [seed, 1], [seed, 2]))
    means = np.empty((2, resamples, columns))
    for start in range(0, resamples, _CHUNK):
        part = slice(start, min(start + _CHUNK, resamples))
        count = part.stop - start
        weights = (
            rng.standard_exponential((count, rows))
            if prior is not None
            else rng.multinomial(rows, np.full(rows, 1 / rows), size=count).astype(np.float64)
        )
        total = weights @ present if holes else weights.sum(axis=1, keepdims=True)
        sums = weights @ filled
        unseen, lower = np.zeros((count, columns)), sums
        if prior is not None:
            below, above = prior_rng.standard_gamma(prior.weight, (2, count, columns))
            sums, total = sums + below * prior.low + above * prior.high, total + below + above
            unseen = unseen_rng.standard_gamma(prior.unseen, (count, columns))
            lower = sums + unseen * prior.low
        with np.errstate(invalid="ignore"):  # a resample may miss every question that has a value
            means[0, part] = lower / (total + unseen)
            means[1, part] = sums / total
    return means


def _rising(table: Floats, estimate: Estimate) -> Estimate:
    """Widen the intervals so that both ends rise from column to column wherever every question's value does."""
    present = ~np.isnan(table)
    step = np.diff(np.where(present, table, 0.0), axis=1)
    rises = ((step >= -1e-12) & (present[:, 1:] == present[:, :-1])).all(axis=0)
    low, high = estimate.low.copy(), estimate.high.copy()
    for column in np.flatnonzero(rises)[::-1]:
        low[column] = min(low[column], low[column + 1])
    for column in np.flatnonzero(rises):
        high[column + 1] = max(high[column], high[column + 1])
    return replace(estimate, low=low, high=high)
