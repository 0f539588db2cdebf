"""Two policies on the same questions: what a run shows, in plain sentences, each of them computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from twotemp import metrics
from twotemp.analysis.cells import Graded, shared, unique
from twotemp.analysis.names import family_label, model_name, signed, task_name
from twotemp.metrics import Estimate
from twotemp.metrics.passk import Floats
from twotemp.policies import PRESETS
from twotemp.records import Policy

# The paper's questions, as pairs of policies: what is confidence good for, and does tempering the position bring back
# what it takes away? With so many samples per question; None: all that both have.
AT_EQUAL_SAMPLES = (("lc", "tlc", 1), ("tlc", "lc", None), ("tlc", "ar", None), ("tct", "ct", None))
AT_EQUAL_COST = (("tct", "ar"),)

Pair = tuple[Graded, Graded]
Values = tuple[Floats, Floats]  # of both sides, on the same questions
Compared = list[tuple[Pair, Values]]  # one entry for each task
Spent = list[tuple[Pair, float]]  # the NFE per question of each task


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
        for first, second, k in AT_EQUAL_SAMPLES:
            found += _finding(here, first, second, suffix, partial(_equal_samples, k))
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
    """Cells of one policy for each name and model: in a sweep the one nearest the preset, the same on all tasks.

    Where no task has two of a name there is no sweep: each task may have its own, chosen for it.
    """
    count = Counter((one.model, one.policy.name, one.task) for one in cells)
    swept = {(model, name) for (model, name, _), times in count.items() if times > 1}
    chosen: dict[tuple[str, str], Policy] = {}
    for one in cells:
        best = chosen.setdefault((one.model, one.policy.name), one.policy)
        if _changes(one.policy) < _changes(best):
            chosen[one.model, one.policy.name] = one.policy
    return [
        one
        for one in cells
        if (key := (one.model, one.policy.name)) not in swept or one.policy == chosen[key]
    ]


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


def conclude(compared: Compared, where: str, cells: Sequence[Graded]) -> list[Finding]:
    """cells: all that were to be compared; where one task among several is left, the sentence names it."""
    kept = measured(compared)
    if not kept:
        return []
    estimate = pooled([values for _, values in kept])
    (one, _), _ = kept[0]
    if len(kept) == 1 and len({cell.task for cell in cells}) > 1:
        where = f"on {task_name(one.task)}, {where}"
    names = sides([pair for pair, _ in kept])
    mean, low, high = (100 * float(x[0]) for x in (estimate.mean, estimate.low, estimate.high))
    apart = tuple((a.task, float(100 * np.nanmean(x - y))) for (a, _), (x, y) in kept)
    return [Finding(names[0], names[1], where, mean, low, high, int(estimate.questions[0]), apart)]


def sides(pairs: Sequence[Pair]) -> tuple[str, str]:
    """What a sentence about all these tasks calls the two policies."""
    first, second = (family_label([one.policy for one in side], plain=True) for side in zip(*pairs))
    return first, second


def measured(compared: Compared) -> Compared:
    """Without tasks on which no question has a value on both sides: they say nothing."""
    return [(pair, (a, b)) for pair, (a, b) in compared if not np.isnan(a - b).all()]


def _finding(
    cells: Sequence[Graded],
    first: str,
    second: str,
    suffix: str,
    compared: Callable[[Sequence[Pair]], tuple[str, Compared]],
) -> list[Finding]:
    pairs = pairs_of(cells, first, second)
    if not pairs:
        return []
    where, values = compared(pairs)
    return conclude(values, where + suffix, cells)


def _equal_samples(asked: int | None, pairs: Sequence[Pair]) -> tuple[str, Compared]:
    most = min(one.samples for pair in pairs for one in pair)
    k = asked or most
    # A number asked for is said where there are more: with all of them another sentence compares the two.
    compared = pairs if asked is None or asked < most else ()
    values = [((a, b), (a.passes[:, k - 1], b.passes[:, k - 1])) for a, b in compared]
    return f"with {k} samples per question" if k > 1 else "with one sample per question", values


def _one_sample(pairs: Sequence[Pair]) -> tuple[str, Compared]:
    """For the price of a single sample of the second: what do several of the first get?"""
    spent = _affordable((pair, pair[1].cost()) for pair in pairs)
    _, name = sides(pairs)
    return f"for the NFE of one {name} sample ({mean_nfe(spent)})", _bought(spent)


def _equal_cost(pairs: Sequence[Pair]) -> tuple[str, Compared]:
    spent = largest_budgets(pairs)
    return f"for equal NFE ({mean_nfe(spent)} per question)", _bought(spent)


def largest_budgets(pairs: Sequence[Pair]) -> Spent:
    """The most NFE that both sides can spend, on each task where there is such a budget."""
    return _affordable((pair, min(one.cost() * one.samples for one in pair)) for pair in pairs)


def _affordable(asked: Iterable[tuple[Pair, float]]) -> Spent:
    """Tasks on which both sides can spend just that. Empty answers of AR cost nothing: no budget is ever spent."""
    return [
        (pair, nfe)
        for pair, nfe in asked
        if all(0 < one.cost() <= nfe <= one.cost() * one.samples for one in pair)
    ]


def mean_nfe(spent: Spent) -> str:
    return f"{np.mean([nfe for _, nfe in spent]):.0f}" if spent else "none"


def _bought(spent: Spent) -> Compared:
    """Each side has as many samples as the budget buys."""

    def at(one: Graded, nfe: float) -> Floats:
        return metrics.at_budget(one.passes, one.cost(), [nfe])[:, 0]

    return [((a, b), (at(a, nfe), at(b, nfe))) for (a, b), nfe in spent]
