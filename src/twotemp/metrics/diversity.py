"""Diversity of the answers to one question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twotemp.errors import UserError
from twotemp.metrics.passk import Floats, grid


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
