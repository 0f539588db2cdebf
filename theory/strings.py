"""Compute the exact law of the strings that a policy writes, by enumerating token draws and commit sets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from theory.anchor_fork import has
from theory.exact import commit_sets
from twotemp.records import Policy

Partial = tuple[int | None, ...]  # a string with None where it is still masked
Predictor = Callable[[Partial, int], np.ndarray]  # q^k(. | x_t): the distribution at a masked position


def entropy(p: np.ndarray) -> float:
    """Return -sum p log p in nats, over all entries."""
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


@dataclass(frozen=True)
class StringLaw:
    """The exact law of the strings that a policy writes."""

    strings: Mapping[tuple[int, ...], float]
    commit_entropy: tuple[float, ...]  # H-bar of every position

    def law_of(self, feature: Callable[[tuple[int, ...]], Hashable]) -> dict[Hashable, float]:
        """Return the law of a function of the string, such as one token or the meaning."""
        law: dict[Hashable, float] = defaultdict(float)
        for string, p in self.strings.items():
            law[feature(string)] += p
        return dict(law)

    def joint(
        self, rows: Callable[[tuple[int, ...]], Hashable], columns: Callable[[tuple[int, ...]], Hashable]
    ) -> np.ndarray:
        """Return the joint table of two functions of the string."""
        row_ids = {r: i for i, r in enumerate(dict.fromkeys(rows(s) for s in self.strings))}
        column_ids = {c: i for i, c in enumerate(dict.fromkeys(columns(s) for s in self.strings))}
        table = np.zeros((len(row_ids), len(column_ids)))
        for s, p in self.strings.items():
            table[row_ids[rows(s)], column_ids[columns(s)]] += p
        return table


def temper(q: np.ndarray, t_token: float) -> np.ndarray:
    """Return softmax(log q / T_token), with all mass on the argmax at T_token = 0."""
    weight: np.ndarray
    if t_token == 0:
        weight = np.eye(len(q))[q.argmax()]
    else:
        with np.errstate(divide="ignore"):
            scaled = np.log(q) / t_token
        weight = np.exp(scaled - scaled.max())
    weight /= weight.sum()
    return weight


def string_law(predict: Predictor, length: int, policy: Policy) -> StringLaw:
    """Return the law of the strings, by enumerating all token draws and the sets committed given them."""
    visits: dict[Partial, float] = {(None,) * length: 1.0}
    strings: dict[tuple[int, ...], float] = defaultdict(float)
    commit_entropy = [0.0] * length
    while visits:
        # A state with the fewest committed tokens cannot be reached from another one, so its probability is complete.
        state = min(visits, key=lambda s: sum(x is not None for x in s))
        visited = visits.pop(state)
        masked = [k for k, x in enumerate(state) if x is None]
        if not masked:
            strings[state] += visited  # type: ignore[index]
            continue
        q = {k: predict(state, k) for k in masked}
        drawn = {k: temper(q[k], policy.t_token) for k in masked}
        scored = q if policy.confidence == "model" else drawn
        h = {k: entropy(scored[k]) for k in masked}
        for tokens in product(*(np.flatnonzero(drawn[k]) for k in masked)):
            x = dict(zip(masked, map(int, tokens)))
            draw = visited * float(np.prod([drawn[k][x[k]] for k in masked]))
            confidence = {k: float(scored[k][x[k]]) for k in masked}
            for committed, p in commit_sets(policy, confidence).items():
                after = tuple(x[k] if k in x and has(committed, k) else old for k, old in enumerate(state))
                visits[after] = visits.get(after, 0.0) + draw * p
                for k in masked:
                    commit_entropy[k] += draw * p * h[k] * has(committed, k)
    return StringLaw(dict(strings), tuple(commit_entropy))
