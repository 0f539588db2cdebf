"""Best@k, how often the one answer chosen from k samples is right on average over subsets, and answer entropy.

Each function takes one question's n samples; those with `ks` return an entry for each k (NaN for k > n). The oracle,
which picks a right sample whenever there is one, is pass@k.

`answers` are group numbers: equal answers share a number >= 0, a sample without an answer is -1; it counts
among the k, but is never elected, and a subset without any answer is wrong. Ties are shared evenly: the expectation
of a fair tie-break, so the result does not depend on the order of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twotemp.errors import UserError
from twotemp.metrics.estimates import Floats, grid, pass_at_k

NO_ANSWER = -1
_MAX_VOTES = 1000  # C(1000, 500) is near the largest float64


def best_by_score(passed: ArrayLike, scores: ArrayLike, ks: Sequence[int]) -> Floats:
    """Return Best@k if the highest score wins.

    Exact: with the samples sorted from the best, sample r is chosen iff it is drawn and none of the r better ones is,

        P(r) = C(n - r - 1, k - 1) / C(n, k) = pass@k with c = r + 1, minus pass@k with c = r.

    Equal scores share their ranks evenly.
    """
    right, score = _samples(passed, scores)
    if np.isnan(score).any():
        raise UserError("a score is NaN; check the reward model, or leave its samples out")
    _, level, size = np.unique(-score, return_inverse=True, return_counts=True)
    share = np.bincount(level, weights=right) / size  # how often a sample of this level is right
    by_rank = np.repeat(share, size)
    hit = pass_at_k(len(right), np.arange(len(right) + 1), ks)
    return by_rank @ np.diff(hit, axis=0)


def auc(passed: ArrayLike, scores: ArrayLike) -> float:
    """Return the probability that a right sample scores above a wrong one, ties counting half (Mann and Whitney).

    NaN if all samples are right or all are wrong; 1/2 is chance, whatever the share of right samples.
    """
    right, score = _samples(passed, scores)
    _, level, size = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(size) - (size - 1) / 2)[level]  # from 1; equal scores share the mean of their ranks
    rights, wrongs = right.sum(), (1 - right).sum()
    if not rights or not wrongs:
        return math.nan
    return float((rank @ right - rights * (rights + 1) / 2) / (rights * wrongs))


def best_by_vote(passed: ArrayLike, answers: ArrayLike, ks: Sequence[int]) -> Floats:
    """Return Best@k if the most frequent answer wins (self-consistency). Exact for every k, by counting subsets.

    Answer g with m samples wins with v votes in a subset of size k when no other answer has more; with t others
    that also have v votes it gets 1 / (t + 1) of it. The number of such subsets is C(m, v) times the coefficient of
    x^(k-v) y^t in  prod_h ( sum_{j<v} C(m_h, j) x^j + C(m_h, v) x^v y ),  the product over the other answers,
    where samples without an answer contribute (1 + x)^u. Only answers that are right need the count.
    """
    right, group = _samples(passed, answers)
    sizes = grid(ks)
    n, top = len(right), int(sizes.max())
    if n > _MAX_VOTES:
        raise UserError(f"the exact vote counts subsets of at most {_MAX_VOTES} samples, not {n}")
    _, votes, share = _groups(right, group)
    wins = np.zeros(top + 1)
    for g in np.flatnonzero(share > 0):
        others = [int(m) for h, m in enumerate(votes) if h != g]
        mute = n - int(votes.sum())
        for v in range(1, min(int(votes[g]), top) + 1):
            ways = _ways(others, mute, v, top - v)
            wins[v:] += (
                share[g] * math.comb(int(votes[g]), v) * (ways @ (1 / np.arange(1, ways.shape[1] + 1)))
            )
    subsets = np.array([float(math.comb(n, int(k))) if k <= n else np.nan for k in sizes])
    chance: Floats = wins[sizes] / subsets
    return chance


def _ways(sizes: list[int], mute: int, v: int, degree: int) -> Floats:
    """Return W[a, t]: the ways to take `a` samples so that no answer exceeds v votes and t answers have exactly v."""
    large = [m for m in sizes if m >= v]
    free = mute + sum(m for m in sizes if m < v)  # answers with fewer samples cannot reach v: no constraint
    ways = np.zeros((degree + 1, min(len(large), degree // v) + 1))
    ways[:, 0] = [math.comb(free, a) for a in range(degree + 1)]
    for m in large:
        product = np.zeros_like(ways)
        for j in range(min(v - 1, degree) + 1):
            product[j:] += math.comb(m, j) * ways[: degree + 1 - j]
        if v <= degree:
            product[v:, 1:] += math.comb(m, v) * ways[: degree + 1 - v, :-1]
        ways = product
    return ways


def best_by_weighted_vote(
    passed: ArrayLike,
    answers: ArrayLike,
    weights: ArrayLike,
    ks: Sequence[int],
    *,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Return Best@k if the answer with the largest total weight wins (weighted Best-of-N), and its standard error.

    Args:
        passed: Whether each sample is right.
        answers: The number of each sample's answer.
        weights: The weight of each sample's vote.
        ks: Subset sizes.
        draws: If there are at most this many subsets, all are used (error 0), else this many random ones.
        seed: Of the random subsets.
    """
    right, group = _samples(passed, answers)
    _, weight = _samples(passed, weights)
    if not np.isfinite(weight).all():
        raise UserError("a weight is not finite; check the scores that the vote is weighted by")
    if draws < 2:
        raise UserError(f"draws must be >= 2, not {draws}")
    labels, _, share = _groups(right, group)
    member = (group[:, None] == labels[None, :]).astype(np.float64)  # [n, answers]
    n = len(right)
    shuffled = np.argsort(np.random.default_rng(seed).random((draws, n)), axis=1)
    values, errors = [], []
    for k in grid(ks):
        if k > n:
            values.append(np.nan)
            errors.append(np.nan)
            continue
        every = math.comb(n, int(k)) <= draws
        chosen = np.array(list(combinations(range(n), int(k)))) if every else shuffled[:, :k]
        drawn = np.zeros((len(chosen), n))
        np.put_along_axis(drawn, chosen, 1.0, axis=1)
        won = _elect((drawn * weight) @ member, drawn @ member > 0, share)
        values.append(float(won.mean()))
        errors.append(0.0 if every else float(won.std(ddof=1) / math.sqrt(draws)))
    return np.array(values), np.array(errors)


def _elect(total: Floats, present: NDArray[np.bool_], share: Floats) -> Floats:
    """Return how right the elected answer of each subset is; `total` and `present` are [subsets, answers]."""
    if not total.shape[1]:
        return np.zeros(len(total))
    total = np.where(present, total, -np.inf)
    best = total.max(axis=1, keepdims=True)
    # Equal sums added in another order may differ in the last digits; they still tie.
    scale = np.maximum(1.0, np.abs(np.where(np.isfinite(best), best, 0.0)))
    tied = present & (total >= best - 1e-12 * scale)
    right: Floats = (tied @ share) / np.maximum(tied.sum(axis=1), 1)
    return right


def _samples(passed: ArrayLike, other: ArrayLike) -> tuple[Floats, NDArray[Any]]:
    right, values = np.asarray(passed, dtype=np.float64), np.asarray(other)
    if right.ndim != 1 or right.shape != values.shape or not len(right):
        raise UserError(
            f"one verdict and one value per sample are needed, not {right.shape} and {values.shape}"
        )
    return right, values


def _groups(right: Floats, group: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
    """Return the answers (without NO_ANSWER), the number of samples of each, and the share that passed."""
    answered = group != NO_ANSWER
    labels, inverse, size = np.unique(group[answered], return_inverse=True, return_counts=True)
    return labels, size, np.bincount(inverse, weights=right[answered], minlength=len(labels)) / size


def answer_entropy(answers: ArrayLike, ks: Sequence[int]) -> Floats:
    """Return the expected entropy (nats) of the empirical answer distribution of k of the n samples; NaN for k > n.

    Exact by linearity: an answer with m samples has v of the k with hypergeometric probability, so

        E[H] = - sum_answers sum_v  C(m, v) C(n - m, k - v) / C(n, k) * (v / k) log (v / k).

    NO_ANSWER is one more outcome here: it spreads the distribution like any other.
    """
    group = np.asarray(answers)
    if group.ndim != 1 or not len(group) or group.dtype.kind not in "iu":
        raise UserError(
            "answers must be one group number per sample (equal answers share one, -1: no answer)"
        )
    _, sizes = np.unique(group, return_counts=True)
    n = len(group)
    log_factorial: Floats = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])

    def log_choose(total: Any, part: Any) -> Any:
        return log_factorial[total] - log_factorial[part] - log_factorial[np.subtract(total, part)]

    result = np.full(len(ks), np.nan)
    for column, k in enumerate(grid(ks)):
        if k > n:
            continue
        result[column] = 0.0
        for m in sizes:
            v = np.arange(max(1, k - (n - m)), min(m, k) + 1)
            chance = np.exp(log_choose(m, v) + log_choose(n - m, k - v) - log_choose(n, k))
            result[column] -= chance @ (v / k * np.log(v / k))
    return result
