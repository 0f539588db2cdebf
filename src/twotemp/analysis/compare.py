"""Two policies on the same questions: what a run shows, in plain sentences, each of them computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from twotemp import metrics
from twotemp.analysis.cells import Graded, shared, unique
from twotemp.analysis.names import label, model_name, signed, task_name
from twotemp.metrics import Estimate
from twotemp.metrics.passk import Floats
from twotemp.policies import PRESETS
from twotemp.records import Policy

# The paper's questions, as pairs of policies: does tempering the position bring back what confidence takes away?
AT_EQUAL_SAMPLES = (("tlc", "lc"), ("tlc", "ar"), ("tct", "ct"))
AT_EQUAL_COST = (("tct", "ar"),)

Pair = tuple[Graded, Graded]
Values = tuple[Floats, Floats]  # of both sides, on the same questions


@dataclass(frozen=True)
class Finding:
    """first - second in points of the pass rate, over all tasks the two share, with its 95 % interval."""

    first: str
    second: str
    where: str  # "with 64 samples per question", "for 800 NFE per question"
    mean: float
    low: float  # NaN: too few questions for an interval
    high: float
    questions: int
    tasks: tuple[tuple[str, float], ...]  # the difference on each task

    @property
    def sentence(self) -> str:
        apart = "".join(f", {task_name(task)} {signed(mean)}" for task, mean in self.tasks)
        span = f"95 % interval {signed(self.low)} to {signed(self.high)}" + apart * (len(self.tasks) > 1)
        where = self.where[0].upper() + self.where[1:]
        if np.isnan(self.low):
            verdict = f"{self.first} and {self.second} differ by {signed(self.mean)} points"
            span = f"{self.questions} questions: too few for an interval"
        elif self.low <= 0 <= self.high:
            verdict = f"{self.first} and {self.second} cannot be told apart: {signed(self.mean)} points"
        else:
            more = "more" if self.mean > 0 else "fewer"
            verdict = f"{self.first} solves {abs(self.mean):.1f} points {more} than {self.second}"
        return f"{where}, {verdict} ({span})."


def findings(cells: Sequence[Graded]) -> list[Finding]:
    """The paper's comparisons that the run has data for, model by model."""
    found: list[Finding] = []
    for here, suffix in by_model(cells):
        for first, second in AT_EQUAL_SAMPLES:
            found += _finding(here, first, second, suffix, _equal_samples)
        for first, second in AT_EQUAL_COST:
            found += _finding(here, first, second, suffix, _one_sample)
            found += _finding(here, first, second, suffix, _equal_cost)
    return found


def by_model(cells: Sequence[Graded]) -> Iterator[tuple[list[Graded], str]]:
    """The representatives of each model, and how a sentence says which model it is about."""
    models = unique(one.model for one in cells)
    for model in models:
        here = representatives([one for one in cells if one.model == model])
        yield here, f" ({model_name(model)})" if len(models) > 1 else ""


def representatives(cells: Sequence[Graded]) -> list[Graded]:
    """Cells of one policy for each name and model, the same on all tasks: in a sweep the one nearest the preset."""
    chosen: dict[tuple[str, str], Policy] = {}
    for one in cells:
        best = chosen.setdefault((one.model, one.policy.name), one.policy)
        if _changes(one.policy) < _changes(best):
            chosen[one.model, one.policy.name] = one.policy
    return [one for one in cells if one.policy == chosen[one.model, one.policy.name]]


def _changes(policy: Policy) -> int:
    """In how many parameters a policy differs from the preset of its name."""
    preset = PRESETS[policy.name].policy if policy.name in PRESETS else policy
    return sum(getattr(policy, f.name) != getattr(preset, f.name) for f in fields(policy))


def pairs_of(cells: Sequence[Graded], first: str, second: str) -> list[Pair]:
    """Two policies on every task that has both, with the questions that both have."""
    named = {(one.policy.name, one.task): one for one in cells}
    both = [
        (named.get((first, task)), named.get((second, task))) for task in unique(one.task for one in cells)
    ]
    found = [shared(a, b) for a, b in both if a is not None and b is not None]
    return [pair for pair in found if pair is not None]


def pooled(values: Sequence[Values], largest: float = 1.0) -> Estimate:
    """Questions of all tasks are one sample: each counts the same, and their differences are independent."""
    first, second = (np.concatenate(side) for side in zip(*values))
    return metrics.paired_bootstrap(first, second, largest=largest)


def conclude(pairs: Sequence[Pair], where: str, values: Sequence[Values], cells: Sequence[Graded]) -> Finding:
    """cells: all that were to be compared; where the pairs are of one task among several, the sentence names it."""
    estimate = pooled(values)
    if len(pairs) == 1 and len({one.task for one in cells}) > 1:
        where = f"on {task_name(pairs[0][0].task)}, {where}"
    names = [label(one.policy, plain=True) for one in pairs[0]]
    mean, low, high = (100 * float(x[0]) for x in (estimate.mean, estimate.low, estimate.high))
    apart = tuple((a.task, float(100 * np.nanmean(x - y))) for (a, _), (x, y) in zip(pairs, values))
    return Finding(names[0], names[1], where, mean, low, high, int(estimate.questions[0]), apart)


def _finding(
    cells: Sequence[Graded],
    first: str,
    second: str,
    suffix: str,
    compared: Callable[[Sequence[Pair]], tuple[str, list[Values]]],
) -> list[Finding]:
    pairs = pairs_of(cells, first, second)
    if not pairs:
        return []
    where, values = compared(pairs)
    # A task on which no budget can be spent by both says nothing.
    kept = [at for at, (a, b) in enumerate(values) if not np.isnan(a - b).all()]
    if not kept:
        return []
    return [conclude([pairs[at] for at in kept], where + suffix, [values[at] for at in kept], cells)]


def _equal_samples(pairs: Sequence[Pair]) -> tuple[str, list[Values]]:
    k = min(one.samples for pair in pairs for one in pair)
    return f"with {k} samples per question", [(a.passes[:, k - 1], b.passes[:, k - 1]) for a, b in pairs]


def _one_sample(pairs: Sequence[Pair]) -> tuple[str, list[Values]]:
    """For the price of a single sample of the second: what do several of the first get?"""
    budgets = [b.cost() for _, b in pairs]
    name = label(pairs[0][1].policy, plain=True)
    return f"for the NFE of one {name} sample ({np.mean(budgets):.0f})", _at_budgets(pairs, budgets)


def _equal_cost(pairs: Sequence[Pair]) -> tuple[str, list[Values]]:
    budgets = largest_budgets(pairs)
    return f"for equal NFE ({np.mean(budgets):.0f} per question)", _at_budgets(pairs, budgets)


def largest_budgets(pairs: Sequence[Pair]) -> list[float]:
    """On each task the largest budget (NFE) that both can spend."""
    return [min(one.cost() * one.samples for one in pair) for pair in pairs]


def _at_budgets(pairs: Sequence[Pair], budgets: Sequence[float]) -> list[Values]:
    """Each side has as many samples as the budget buys."""

    def at(one: Graded, budget: float) -> Floats:
        return metrics.at_budget(one.passes, one.cost(), [budget])[:, 0]

    return [(at(a, budget), at(b, budget)) for (a, b), budget in zip(pairs, budgets)]
