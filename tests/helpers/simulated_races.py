"""Races on simulated tables, where the winner is known."""

from __future__ import annotations

import numpy as np

from twotemp.tuning import Measurement, race


def unrelated(candidates) -> np.ndarray:
    """Distances under which no candidate says anything about another."""
    return np.where(np.eye(len(candidates), dtype=bool), 0.0, np.inf)


class Simulated:
    """Candidates with true rates and prices; a question is passed if its level is below the rate."""

    def __init__(self, rates, prices=None, questions=1000, seed=0, common=True):
        self.rates, self.questions = list(rates), questions
        self.prices = list(prices or [10.0] * len(self.rates))
        noise = np.random.default_rng(seed)
        levels = noise.random((questions, 1 if common else len(self.rates)))
        self.passed = (levels < np.array(self.rates)).astype(float)
        self.calls: list[tuple[int, int]] = []

    def measure(self, candidates, questions):
        self.calls.append((len(candidates), questions))
        return [
            Measurement(self.passed[:questions, i], self.prices[i], self.prices[i] * questions)
            for i in candidates
        ]

    def race(self, budget):
        candidates = range(len(self.rates))
        return race(candidates, self.measure, unrelated, budget=budget, questions=self.questions)

    @property
    def full(self) -> float:
        return sum(self.prices) * self.questions
