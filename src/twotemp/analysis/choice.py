"""Choosing one answer from many: Best@k and Best@NFE, what was chosen, and how spread the answers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any

import numpy as np

from twotemp import metrics
from twotemp.analysis.cells import Graded, k_grid, unique
from twotemp.analysis.compare import (
    Pair,
    by_model,
    conclude,
    largest_budgets,
    mean_nfe,
    measured,
    pairs_of,
    pooled,
    sides,
)
from twotemp.analysis.names import signed, task_name
from twotemp.analysis.selectors import SELECTORS, best_at, best_for, choices
from twotemp.metrics import NO_ANSWER, Estimate
from twotemp.metrics.passk import Floats
from twotemp.policies import spell

# The paper's question: does TCT's diversity pay off once one answer has to be chosen?
FIRST, SECONDS = "tct", ("ar", "ct")


@dataclass(frozen=True, eq=False)
class Choice:
    """One policy on one task under one selector."""

    cell: Graded
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
        """As JSON data."""
        rewarded = SELECTORS[self.selector].needs == "rewards"
        return {
            **self.cell.summary(),
            "selector": self.selector,
            "reward_model": self.cell.reward_model if rewarded else None,
            "without_answer": self.cell.unread,
            "best": {
                str(k): {"nfe": float(nfe), **interval(self.estimate, at)}
                for at, (k, nfe) in enumerate(zip(self.ks, self.nfe))
            },
        }

    def chosen(self) -> Iterator[dict[str, Any]]:
        """The answer chosen from all samples of each question; null where no sample has one."""
        for ballot, at in zip(self.cell.ballots, choices(self.cell, self.selector)):
            number = NO_ANSWER if at is None else int(ballot.answers[at])
            yield {
                "task": self.cell.task,
                "policy": spell(self.cell.policy),
                "selector": self.selector,
                "question": ballot.question,
                "sample": None if at is None else int(ballot.index[at]),
                "answer": None if number == NO_ANSWER else ballot.spelled[number],
                "votes": None if number == NO_ANSWER else int((ballot.answers == number).sum()),
                "samples": len(ballot.passed),
                "passed": at is not None and bool(ballot.passed[at]),
            }


def interval(estimate: Estimate, at: int) -> dict[str, float | None]:
    """One column as JSON data; an interval that there is none of is null."""
    numbers = {name: float(getattr(estimate, name)[at]) for name in ("mean", "low", "high")}
    return {name: None if np.isnan(number) else number for name, number in numbers.items()}


def every_choice(cells: Sequence[Graded], selectors: Sequence[str]) -> list[Choice]:
    return [Choice(one, name, tuple(k_grid([one]))) for one in cells for name in selectors]


def entropy(cell: Graded, ks: Sequence[int]) -> Estimate:
    """Mean entropy of the answers among k samples, in nats: at most log k."""
    return metrics.bootstrap(cell.entropy(ks), bounds=(0.0, np.log(ks)))


def selection_findings(found: Sequence[Choice]) -> Iterator[str]:
    """TCT against AR and CT: at equal NFE under every selector, and the entropy of the answers."""
    selectors = unique(choice.selector for choice in found)
    for here, suffix in by_model(unique(choice.cell for choice in found)):
        for second in SECONDS:
            if not (pairs := pairs_of(here, FIRST, second)):
                continue
            spent = largest_budgets(pairs)
            for selector in selectors:
                where = f"choosing by {selector} for equal NFE ({mean_nfe(spent)} per question){suffix}"
                values = [
                    ((a, b), (best_for(a, selector, nfe), best_for(b, selector, nfe)))
                    for (a, b), nfe in spent
                ]
                yield from (finding.sentence for finding in conclude(values, where, here))
            yield from _entropies(pairs, suffix)


def _entropies(pairs: Sequence[Pair], suffix: str) -> Iterator[str]:
    k = min(one.samples for pair in pairs for one in pair)
    kept = measured([((a, b), (a.entropy([k])[:, 0], b.entropy([k])[:, 0])) for a, b in pairs])
    if not kept:
        return
    estimate = pooled([values for _, values in kept], largest=log(k) if k > 1 else 1.0)
    mean, low, high = (float(x[0]) for x in (estimate.mean, estimate.low, estimate.high))
    first, second = sides([pair for pair, _ in kept])
    apart = ", ".join(f"{task_name(a.task)} {signed(float(np.nanmean(x - y)), 2)}" for (a, _), (x, y) in kept)
    verdict = "is higher than" if low > 0 else "is lower than" if high < 0 else "cannot be told from"
    span = f"95 % interval {signed(low, 2)} to {signed(high, 2)}"
    if np.isnan(low):
        verdict = "compared with"
        span = f"{int(estimate.questions[0])} questions: too few for an interval"
    yield (
        f"The entropy of {first}'s answers to a question ({k} samples){suffix} {verdict} that of {second}: "
        f"{signed(mean, 2)} nats ({span}; {apart})."
    )
