"""Choose one answer from many: Best@k and Best@NFE, what was chosen, and how diverse the answers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any

import numpy as np

from twotemp import metrics
from twotemp.analysis.cells import GradedCell, k_grid, unique
from twotemp.analysis.compare import (
    ComparisonBudget,
    Finding,
    Pair,
    by_model,
    conclude,
    largest_budgets,
    mean_budget,
    pairs_of,
)
from twotemp.analysis.selectors import SELECTORS, best_at, best_for, choices
from twotemp.metrics import NO_ANSWER, Estimate
from twotemp.metrics.passk import Floats
from twotemp.policies import spell

# The paper's question: does TCT's diversity pay off once one answer has to be chosen?
FIRST, SECONDS = "tct", ("ar", "ct")


@dataclass(frozen=True, eq=False)
class Choice:
    """Best@k of one policy on one task under one selector."""

    cell: GradedCell
    selector: str
    ks: tuple[int, ...]

    @cached_property
    def values(self) -> Floats:
        return best_at(self.cell, self.selector, self.ks)

    @cached_property
    def estimate(self) -> Estimate:
        return metrics.bootstrap(self.values)

    @property
    def nfe(self) -> Floats:
        return self.cell.costs("nfe", self.ks)

    def summary(self) -> dict[str, Any]:
        """Return the curve as JSON data."""
        rewarded = SELECTORS[self.selector].needs == "rewards"
        return {
            **self.cell.summary(),
            "selector": self.selector,
            "reward_model": self.cell.reward_model if rewarded else None,
            "without_answer": self.cell.unread,
            "best": {
                str(k): {"nfe": float(nfe), **interval(self.estimate, column)}
                for column, (k, nfe) in enumerate(zip(self.ks, self.nfe))
            },
        }

    def chosen(self) -> Iterator[dict[str, Any]]:
        """Yield the answer chosen from all samples of each question; null if no sample has an answer."""
        for ballot, position in zip(self.cell.ballots, choices(self.cell, self.selector)):
            number = NO_ANSWER if position is None else int(ballot.answers[position])
            yield {
                "task": self.cell.task,
                "policy": spell(self.cell.policy),
                "selector": self.selector,
                "question": ballot.question,
                "sample": None if position is None else int(ballot.index[position]),
                "answer": None if number == NO_ANSWER else ballot.spelled[number],
                "votes": None if number == NO_ANSWER else int((ballot.answers == number).sum()),
                "samples": len(ballot.passed),
                "passed": position is not None and bool(ballot.passed[position]),
            }


def interval(estimate: Estimate, column: int) -> dict[str, float | None]:
    """Return one column as JSON data; the ends are null if there are too few questions for an interval."""
    numbers = {name: float(getattr(estimate, name)[column]) for name in ("mean", "low", "high")}
    return {name: None if np.isnan(number) else number for name, number in numbers.items()}


def every_choice(cells: Sequence[GradedCell], selectors: Sequence[str]) -> list[Choice]:
    """Return Best@k of every cell under every selector."""
    return [Choice(cell, name, tuple(k_grid([cell]))) for cell in cells for name in selectors]


def entropy(cell: GradedCell, ks: Sequence[int]) -> Estimate:
    """Return the mean entropy of the answers among k samples, in nats: at most log k."""
    return metrics.bootstrap(cell.entropy(ks), bounds=(0.0, np.log(ks)))


def selection_findings(curves: Sequence[Choice]) -> list[Finding]:
    """Compare TCT with AR and CT: at equal NFE under every selector, and in the entropy of the answers."""
    selectors = unique(curve.selector for curve in curves)
    result: list[Finding] = []
    for model, cells in by_model(unique(curve.cell for curve in curves)):
        for second in SECONDS:
            pairs = pairs_of(cells, FIRST, second)
            spent = largest_budgets(pairs)
            for selector in selectors:
                values = [
                    ((a, b), (best_for(a, selector, nfe), best_for(b, selector, nfe)))
                    for (a, b), nfe in spent
                ]
                result += conclude(values, mean_budget(spent), cells, model, selector=selector)
            result += _entropy_findings(pairs, cells, model)
    return result


def _entropy_findings(pairs: Sequence[Pair], cells: Sequence[GradedCell], model: str | None) -> list[Finding]:
    k = min((cell.samples for pair in pairs for cell in pair), default=1)
    values = [((a, b), (a.entropy([k])[:, 0], b.entropy([k])[:, 0])) for a, b in pairs]
    largest = log(k) if k > 1 else 1.0
    return conclude(values, ComparisonBudget("samples", k), cells, model, metric="entropy", largest=largest)
