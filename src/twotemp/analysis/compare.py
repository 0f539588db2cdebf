"""Compare policies on the same questions, and choose one answer from many: numbers with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import log
from typing import Any, Literal

import numpy as np

from twotemp import metrics
from twotemp.analysis.cells import GradedCell, k_grid, shared, unique
from twotemp.analysis.selectors import SELECTORS, best_at, best_for, choices
from twotemp.metrics import NO_ANSWER, Estimate
from twotemp.metrics.estimates import Floats
from twotemp.policies import PRESETS, spell
from twotemp.records import Policy

# The paper's comparisons: pairs of policies and a number of samples per question (None: all that both have). When
# does confidence help, and does tempering the position bring back the diversity that confidence takes away?
AT_EQUAL_SAMPLES = (("lc", "tlc", 1), ("tlc", "lc", None), ("tlc", "ar", None), ("tct", "ct", None))
AT_EQUAL_COST = (("tct", "ar"),)

Pair = tuple[GradedCell, GradedCell]
Values = tuple[Floats, Floats]  # one value per question for each side, on the same questions
PairValues = list[tuple[Pair, Values]]  # one entry per task
PairBudgets = list[tuple[Pair, float]]  # NFE per question, one entry per task


@dataclass(frozen=True)
class ComparisonBudget:
    """What both sides of a comparison may spend on a question."""

    kind: Literal["samples", "nfe", "nfe of one sample"]  # the last: of one sample of the second policy
    amount: float  # NFE is the mean over tasks; NaN if no task has a common budget


@dataclass(frozen=True)
class Finding:
    """The difference first - second, over all tasks that the two policies share, with its 95 % interval."""

    metric: Literal["pass", "entropy"]  # the pass rate, or the entropy of the answers in nats
    first: tuple[Policy, ...]  # one per task: each task may have its own parameters
    second: tuple[Policy, ...]
    budget: ComparisonBudget
    mean: float
    low: float  # NaN: too few questions for an interval
    high: float
    questions: int
    tasks: tuple[tuple[str, float], ...]  # the mean difference on each task
    model: str | None = None  # set if the run has several models
    task: str | None = None  # set if only one of several tasks could be compared
    selector: str | None = None  # set if one answer was chosen from the samples


def findings(cells: Sequence[GradedCell]) -> list[Finding]:
    """Return the paper's comparisons that the cells have data for, model by model."""
    result: list[Finding] = []
    for model, chosen in by_model(cells):
        for first, second, k in AT_EQUAL_SAMPLES:
            result += conclude(*_equal_samples(pairs_of(chosen, first, second), k), chosen, model)
        for first, second in AT_EQUAL_COST:
            pairs = pairs_of(chosen, first, second)
            one_sample = _affordable((pair, pair[1].cost()) for pair in pairs)
            result += conclude(
                _bought(one_sample), mean_budget(one_sample, "nfe of one sample"), chosen, model
            )
            most = largest_budgets(pairs)
            result += conclude(_bought(most), mean_budget(most), chosen, model)
    return result


def by_model(cells: Sequence[GradedCell]) -> Iterator[tuple[str | None, list[GradedCell]]]:
    """Yield (model, its representatives); the model is None if there is only one."""
    models = unique(cell.model for cell in cells)
    for model in models:
        chosen = representatives([cell for cell in cells if cell.model == model])
        yield model if len(models) > 1 else None, chosen


def representatives(cells: Sequence[GradedCell]) -> list[GradedCell]:
    """Return the cells of one policy per policy name and model. In a sweep, that is the policy nearest the preset.

    If no task has two policies of a name, there is no sweep, and each task may have its own parameters.
    """
    count = Counter((cell.model, cell.policy.name, cell.task) for cell in cells)
    swept = {(model, name) for (model, name, _), times in count.items() if times > 1}
    nearest: dict[tuple[str, str], Policy] = {}
    for cell in cells:
        best = nearest.setdefault((cell.model, cell.policy.name), cell.policy)
        if _changes(cell.policy) < _changes(best):
            nearest[cell.model, cell.policy.name] = cell.policy
    return [
        cell
        for cell in cells
        if (key := (cell.model, cell.policy.name)) not in swept or cell.policy == nearest[key]
    ]


def _changes(policy: Policy) -> int:
    """Return the number of parameters in which a policy differs from the preset of its name."""
    preset = PRESETS[policy.name].policy if policy.name in PRESETS else policy
    return sum(getattr(policy, f.name) != getattr(preset, f.name) for f in fields(policy))


def pairs_of(cells: Sequence[GradedCell], first: str, second: str) -> list[Pair]:
    """Return the two policies on every task that has both, restricted to their common questions."""
    named = {(cell.policy.name, cell.task): cell for cell in cells}
    candidates = [
        (named.get((first, task)), named.get((second, task))) for task in unique(cell.task for cell in cells)
    ]
    pairs = [shared(a, b) for a, b in candidates if a is not None and b is not None]
    return [pair for pair in pairs if pair is not None]


def conclude(
    compared: PairValues,
    budget: ComparisonBudget,
    cells: Sequence[GradedCell],
    model: str | None,
    *,
    selector: str | None = None,
    metric: Literal["pass", "entropy"] = "pass",
    largest: float = 1.0,
) -> list[Finding]:
    """Pool the questions of all tasks, each counting the same, into one finding.

    Args:
        compared: The values of both sides, task by task.
        budget: What both sides spend on a question.
        cells: All cells that were to be compared; if only one of several tasks is left, the finding names it.
        model: The model, if the run has several.
        selector: How one answer was chosen, if one was.
        metric: What the values are.
        largest: The largest possible difference.

    Returns:
        One finding; none if no question has a value on both sides.
    """
    kept = [(pair, (a, b)) for pair, (a, b) in compared if not np.isnan(a - b).all()]
    if not kept:
        return []
    first, second = (np.concatenate(side) for side in zip(*(values for _, values in kept)))
    estimate = metrics.paired_bootstrap(first, second, largest=largest)
    mean, low, high = (float(column[0]) for column in (estimate.mean, estimate.low, estimate.high))
    alone = len(kept) == 1 and len({cell.task for cell in cells}) > 1
    return [
        Finding(
            metric,
            tuple(a.policy for (a, _), _ in kept),
            tuple(b.policy for (_, b), _ in kept),
            budget,
            mean,
            low,
            high,
            int(estimate.questions[0]),
            tuple((a.task, float(np.nanmean(x - y))) for (a, _), (x, y) in kept),
            model,
            kept[0][0][0].task if alone else None,
            selector,
        )
    ]


def _equal_samples(pairs: Sequence[Pair], samples: int | None) -> tuple[PairValues, ComparisonBudget]:
    most = min((cell.samples for pair in pairs for cell in pair), default=1)
    k = samples or most
    # If there are only k samples, leave this out: the comparison at the largest k is the same.
    compared = pairs if samples is None or samples < most else ()
    values = [((a, b), (a.passes[:, k - 1], b.passes[:, k - 1])) for a, b in compared]
    return values, ComparisonBudget("samples", k)


def largest_budgets(pairs: Sequence[Pair]) -> PairBudgets:
    """Return the largest NFE that both sides can spend, for each task that has such a budget."""
    return _affordable((pair, min(cell.cost() * cell.samples for cell in pair)) for pair in pairs)


def _affordable(budgets: Iterable[tuple[Pair, float]]) -> PairBudgets:
    """Keep the tasks on which both sides can spend exactly the budget.

    An empty AR answer has cost 0, so no number of them spends a budget.
    """
    return [
        (pair, nfe)
        for pair, nfe in budgets
        if all(0 < cell.cost() <= nfe <= cell.cost() * cell.samples for cell in pair)
    ]


def mean_budget(spent: PairBudgets, kind: Literal["nfe", "nfe of one sample"] = "nfe") -> ComparisonBudget:
    """Return the mean over tasks."""
    return ComparisonBudget(kind, float(np.mean([nfe for _, nfe in spent])) if spent else float("nan"))


def _bought(spent: PairBudgets) -> PairValues:
    """Return the pass rates of both sides with as many samples as the budget buys."""

    def pass_rates(cell: GradedCell, nfe: float) -> Floats:
        return metrics.at_budget(cell.passes, cell.cost(), [nfe])[:, 0]

    return [((a, b), (pass_rates(a, nfe), pass_rates(b, nfe))) for (a, b), nfe in spent]


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
            "without_answer": self.cell.without_answer,
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
