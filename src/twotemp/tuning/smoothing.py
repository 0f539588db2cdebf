"""Smooth the means of similar candidates: a few questions say more about a neighbourhood than about one candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from twotemp.metrics.passk import Floats
from twotemp.records import Policy

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

    Two values of a parameter that are neighbours among the values tried are at distance 1, and so are two structures.
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
