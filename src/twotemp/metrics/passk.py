"""Unbiased pass@k, and the same curve against the cost of the samples (NFE, forwards, seconds)."""

from __future__ import annotations

from collections.abc import Sequence

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


def at_budget(values: ArrayLike, cost: float, budgets: ArrayLike) -> Floats:
    """Return each question's rate at equal budgets; `values[:, i]` is the rate with i + 1 samples.

    A budget buys budget / cost samples. A fraction, say 2.3, means 2 samples with probability 0.7 and 3
    otherwise, so linear interpolation between neighbouring k is exact, not a smoothing. NaN for less than one
    sample and for more than there are.
    """
    curves = np.asarray(values, dtype=np.float64)
    if curves.ndim != 2 or not curves.shape[1]:
        raise UserError("curves must be [questions, k], with every k from 1 on")
    if not cost > 0:
        raise UserError(f"the cost of a sample must be above 0, not {cost}")
    bought = np.atleast_1d(np.asarray(budgets, dtype=np.float64)) / cost
    # A budget of exactly k samples may come out a rounding error away from k.
    bought = np.where(np.isclose(bought, np.rint(bought), rtol=1e-12, atol=0), np.rint(bought), bought)
    inside = (bought >= 1) & (bought <= curves.shape[1])
    low = np.clip(np.floor(bought), 1, curves.shape[1]).astype(np.int64)
    share = np.where(inside, bought - low, 0.0)
    # A whole number of samples has no upper neighbour: that one may be NaN (k > n).
    high = np.minimum(low + (share > 0), curves.shape[1])
    return np.where(inside, curves[:, low - 1] + share * (curves[:, high - 1] - curves[:, low - 1]), np.nan)


def tokens_per_forward(tokens: Sequence[ArrayLike], forwards: Sequence[ArrayLike]) -> float:
    """Return the tokens per forward pass: all tokens over all passes (a ratio of sums, not a mean of ratios)."""
    passes = sum(float(np.sum(f)) for f in forwards)
    if not passes > 0:
        raise UserError("no forward pass was counted; tokens per forward is undefined")
    return sum(float(np.sum(t)) for t in tokens) / passes
