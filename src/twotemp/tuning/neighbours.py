"""What candidates that are alike say about each other: few questions tell more of a neighbourhood than of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from twotemp.metrics.passk import Floats
from twotemp.records import Policy

LIKENESS = 0.8  # correlation of two candidates that are one step apart
_LEAST_SPREAD = 0.1  # of the noise: candidates are never taken to be all the same


def estimates(values: Floats, apart: Floats) -> Floats:
    """[n]: what to expect of each candidate, from values [questions, n] and steps between candidates [n, n].

    The posterior mean of a Gaussian process, K (K + s^2 / q)^-1 (y - mean) + mean, with K = spread^2 LIKENESS^apart,
    where y are means over q questions and s^2 is the variance that neither question nor candidate explains. With
    more questions every candidate speaks for itself; strangers (apart = inf) keep the order of their means.
    """
    questions, count = values.shape
    y: Floats = values.mean(0)
    if count == 1:
        return y
    rest = values - values.mean(1, keepdims=True) - y + y.mean()
    noise = rest.var() * count / (count - 1) / questions
    spread = max(y.var() - noise, _LEAST_SPREAD * noise, 1e-9)
    kernel = spread * LIKENESS**apart
    found: Floats = y.mean() + kernel @ np.linalg.solve(
        kernel + (noise + 1e-12) * np.eye(count), y - y.mean()
    )
    return found


def strangers(some: Sequence[object]) -> Floats:
    """Nobody tells anything about anybody else."""
    return np.where(np.eye(len(some), dtype=bool), 0.0, np.inf)


def apart(some: Sequence[Policy]) -> Floats:
    """[n, n]: steps between policies. A step is the next value of a number, of those that are tried, or another kind
    of policy."""
    kinds = [policy.structure for policy in some]
    steps = np.array([[float(one != other) for other in kinds] for one in kinds])
    for field in fields(Policy):
        values = [getattr(policy, field.name) for policy in some]
        if all(isinstance(value, int | float) for value in values):
            place = {value: n for n, value in enumerate(sorted(set(values)))}
            index = np.array([place[value] for value in values], dtype=float)
            steps += abs(index[:, None] - index)
    return steps
