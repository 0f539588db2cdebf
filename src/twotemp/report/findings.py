"""What a run shows, in plain sentences. Every one is computed from a paired bootstrap; none is written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from twotemp import metrics
from twotemp.metrics.passk import Floats
from twotemp.report import style
from twotemp.report.series import Series, difference, difference_at, unique

# The paper's questions, as pairs of policies: does tempering the position bring back what confidence takes away?
AT_EQUAL_SAMPLES = (("tlc", "lc"), ("tlc", "ar"), ("tct", "ct"))
AT_EQUAL_COST = (("tct", "ar"),)


@dataclass(frozen=True)
class Finding:
    """first - second in points of the pass rate, over all tasks the two share, with its 95 % interval."""

    first: str
    second: str
    where: str  # "with 64 samples a question", "for 800 NFE a question"
    mean: float
    low: float
    high: float
    tasks: tuple[tuple[str, float], ...]  # the difference on each task

    @property
    def sentence(self) -> str:
        apart = "".join(f", {style.task_name(task)} {mean:+.1f}" for task, mean in self.tasks)
        span = f"95 % interval {self.low:+.1f} to {self.high:+.1f}" + apart * (len(self.tasks) > 1)
        where = self.where[0].upper() + self.where[1:]
        if self.low <= 0 <= self.high:
            verdict = f"{self.first} and {self.second} cannot be told apart: {self.mean:+.1f} points"
        else:
            more = "more" if self.mean > 0 else "fewer"
            verdict = f"{self.first} solves {abs(self.mean):.1f} points {more} than {self.second}"
        return f"{where}, {verdict} ({span})."


def compare(series: Sequence[Series]) -> list[Finding]:
    """The paper's comparisons that the run has data for, model by model."""
    found = []
    models = unique(s.model for s in series)
    for model in models:
        by_name: dict[str, dict[str, Series]] = {}
        for one in series:
            if one.model == model:
                # In a sweep of one number there is no single "TLC" to speak of: the first stands for it.
                by_name.setdefault(one.policy.name, {}).setdefault(one.task, one)
        suffix = f" ({style.model_name(model)})" if len(models) > 1 else ""
        for first, second in AT_EQUAL_SAMPLES:
            found += _difference(by_name, first, second, suffix, _equal_samples)
        for first, second in AT_EQUAL_COST:
            found += _difference(by_name, first, second, suffix, _one_sample)
            found += _difference(by_name, first, second, suffix, _equal_cost)
    return found


Pairs = list[tuple[str, Series, Series]]


def _difference(
    by_name: dict[str, dict[str, Series]],
    first: str,
    second: str,
    suffix: str,
    differences: Callable[[Pairs], tuple[str, list[Floats]]],
) -> list[Finding]:
    tasks = by_name.get(first, {}).keys() & by_name.get(second, {}).keys()
    pairs = [(t, by_name[first][t], by_name[second][t]) for t in by_name.get(first, {}) if t in tasks]
    if not pairs:
        return []
    where, values = differences(pairs)
    if all(np.isnan(v).all() for v in values):  # no budget that both can spend
        return []
    # Questions of all tasks are one sample: each counts the same, and their differences are independent.
    pooled = metrics.bootstrap(100 * np.concatenate(values))
    return [
        Finding(
            style.label(pairs[0][1].policy, plain=True),
            style.label(pairs[0][2].policy, plain=True),
            where + suffix,
            float(pooled.mean[0]),
            float(pooled.low[0]),
            float(pooled.high[0]),
            tuple((task, float(100 * np.nanmean(v))) for (task, _, _), v in zip(pairs, values)),
        )
    ]


def _equal_samples(pairs: Pairs) -> tuple[str, list[Floats]]:
    k = min(s.samples for _, a, b in pairs for s in (a, b))
    return f"with {k} samples a question", [difference(a, b, k) for _, a, b in pairs]


def _one_sample(pairs: Pairs) -> tuple[str, list[Floats]]:
    """For the price of a single sample of the second: what do several of the first get?"""
    budgets = [b.cost("nfe") for _, _, b in pairs]
    values = [difference_at(a, b, budget, "nfe") for (_, a, b), budget in zip(pairs, budgets)]
    name = style.label(pairs[0][2].policy, plain=True)
    return f"for the NFE of one {name} sample ({np.mean(budgets):.0f})", values


def _equal_cost(pairs: Pairs) -> tuple[str, list[Floats]]:
    """On each task at the largest budget that both can spend."""
    budgets = [min(a.cost("nfe") * a.samples, b.cost("nfe") * b.samples) for _, a, b in pairs]
    values = [difference_at(a, b, budget, "nfe") for (_, a, b), budget in zip(pairs, budgets)]
    return f"for equal NFE ({np.mean(budgets):.0f} a question)", values
