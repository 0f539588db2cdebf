"""Diversity of the samples of one question: of their answers, and of the order of writing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twotemp.errors import UserError
from twotemp.metrics.best import NO_ANSWER
from twotemp.metrics.passk import Floats, grid, pass_at_k


def distinct_answers(answers: ArrayLike, ks: Sequence[int]) -> Floats:
    """Return the expected number of different answers among k of the n samples; NaN for k > n.

    It is the sum over answers of the probability that the subset has one of its m samples (pass@k with c = m).
    NO_ANSWER is not counted.
    """
    group = _labels(answers)
    _, sizes = np.unique(group[group != NO_ANSWER], return_counts=True)
    if not len(sizes):
        return np.where(grid(ks) <= len(group), 0.0, np.nan)
    expected: Floats = pass_at_k(np.full(len(sizes), len(group)), sizes, ks).sum(axis=0)
    return expected


def answer_entropy(answers: ArrayLike, ks: Sequence[int]) -> Floats:
    """Return the expected entropy (nats) of the empirical answer distribution of k of the n samples; NaN for k > n.

    Exact by linearity: an answer with m samples has v of the k with hypergeometric probability, so

        E[H] = - sum_answers sum_v  C(m, v) C(n - m, k - v) / C(n, k) * (v / k) log (v / k).

    NO_ANSWER is one more outcome here: it spreads the distribution like any other.
    """
    group = _labels(answers)
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


def order_entropy(steps: ArrayLike, block: int | None = None) -> float:
    """Return how variable the order of writing is over the samples of one question, in nats.

    For each pair of positions, a sample wrote one or the other first, or both in the same step. The result is the
    entropy of these three outcomes, averaged over pairs: 0 for one order in all samples, log 2 for random orders with
    one token per step. Pairs are used because step numbers are not comparable between samples with different numbers
    of steps.

    Args:
        steps: [samples, positions], from `Trace.steps`; -1 (never written, after EOS) counts as last.
        block: Count only pairs inside a decoding block of this length: between blocks the order is fixed.
    """
    order = np.asarray(steps, dtype=np.int64)
    if order.ndim != 2 or not order.shape[0] or order.shape[1] < 2:
        raise UserError(
            "order entropy needs the steps of at least one sample and two positions; draw with --trace"
        )
    if block is not None and block < 2:
        raise UserError(f"block must be at least 2 positions wide, not {block}")
    order = np.where(order < 0, np.iinfo(np.int64).max, order)
    width = block or order.shape[1]
    total, pairs = 0.0, 0
    for start in range(0, order.shape[1], width):
        part = order[:, start : start + width]
        first, second = np.triu_indices(part.shape[1], k=1)
        if not len(first):
            continue
        a, b = part[:, first], part[:, second]
        chances = np.stack([(a < b).mean(axis=0), (a == b).mean(axis=0), (a > b).mean(axis=0)])
        total -= float(np.sum(chances * np.log(np.where(chances > 0, chances, 1.0))))
        pairs += len(first)
    return total / pairs


def _labels(answers: ArrayLike) -> np.ndarray:
    group = np.asarray(answers)
    if group.ndim != 1 or not len(group) or group.dtype.kind not in "iu":
        raise UserError(
            "answers must be one group number per sample (equal answers share one, -1: no answer)"
        )
    return group
