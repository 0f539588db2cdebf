"""State the findings of an analysis in plain sentences."""

from __future__ import annotations

import math

from twotemp.analysis import Finding
from twotemp.analysis.compare import ComparisonBudget
from twotemp.report.names import family_label, model_name, signed, task_name


def sentence(finding: Finding) -> str:
    """Return one sentence: which policy is better, by how much, how certain that is, and on which tasks."""
    first, second = (family_label(side, plain=True) for side in (finding.first, finding.second))
    suffix = f" ({model_name(finding.model)})" if finding.model else ""
    if finding.metric == "entropy":
        return _entropy_sentence(finding, first, second, suffix)
    where = _budget(finding.budget, second) + suffix
    if finding.selector:
        where = f"choosing by {finding.selector} {where}"
    if finding.task:
        where = f"on {task_name(finding.task)}, {where}"
    mean, low, high = (100 * value for value in (finding.mean, finding.low, finding.high))
    detail = "".join(f", {task_name(task)} {signed(100 * gap)}" for task, gap in finding.tasks)
    interval = f"95 % interval {signed(low)} to {signed(high)}" + detail * (len(finding.tasks) > 1)
    if math.isnan(low):
        verdict = f"{first} and {second} differ by {signed(mean)} points"
        interval = _too_few(finding)
    elif low <= 0 <= high:
        verdict = f"{first} and {second} cannot be told apart: {signed(mean)} points"
    else:
        verdict = f"{first} solves {abs(mean):.1f} points {'more' if mean > 0 else 'fewer'} than {second}"
    return f"{where[0].upper()}{where[1:]}, {verdict} ({interval})."


def _entropy_sentence(finding: Finding, first: str, second: str, suffix: str) -> str:
    mean, low, high = finding.mean, finding.low, finding.high
    verdict = "is higher than" if low > 0 else "is lower than" if high < 0 else "cannot be told from"
    interval = f"95 % interval {signed(low, 2)} to {signed(high, 2)}"
    if math.isnan(low):
        verdict, interval = "compared with", _too_few(finding)
    detail = ", ".join(f"{task_name(task)} {signed(gap, 2)}" for task, gap in finding.tasks)
    return (
        f"The entropy of {first}'s answers to a question ({finding.budget.amount:.0f} samples){suffix} {verdict} "
        f"that of {second}: {signed(mean, 2)} nats ({interval}; {detail})."
    )


def _budget(budget: ComparisonBudget, second: str) -> str:
    if budget.kind == "samples":
        return (
            f"with {budget.amount:.0f} samples per question"
            if budget.amount > 1
            else "with one sample per question"
        )
    if budget.kind == "nfe":
        return f"for equal NFE ({budget.amount:.0f} per question)"
    return f"for the NFE of one {second} sample ({budget.amount:.0f})"


def _too_few(finding: Finding) -> str:
    return f"{finding.questions} questions: too few for an interval"
