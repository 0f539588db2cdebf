"""Self-consistency over a mixture of policies: does it help to weight votes by each policy's validated accuracy?

    python -m experiments.paper --parts votes

A sample's vote counts 1, its policy's accuracy p on validation problems, or the log-odds of p against a wrong answer
(what a naive Bayes vote would use, at least 0). Every mixture takes the same number of samples of each policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import table, with_interval
from experiments.command import evaluated
from experiments.embedded import points
from experiments.portfolios import CT, EB, LC, TCT, TLC
from twotemp import metrics
from twotemp.analysis import GradedCell, add_ballots
from twotemp.analysis.selectors import elect
from twotemp.policies import parse, spell

TASKS = ("countdown-4", "programs-2")
MIXTURES = {"LC and TLC": (LC, TLC), "five policies": (LC, TLC, CT, TCT, EB), "LC and random": (LC, "random")}
SAMPLES = 16  # per question and policy
VALIDATION = 60  # problems
WEIGHTS: dict[str, Callable[[float], float]] = {
    "equal": lambda p: 1.0,
    "accuracy": lambda p: p,
    "log-odds": lambda p: max(0.0, float(np.log(p / (1 - p)) + np.log(10))),  # ten wrong answers
}


def run(out: Path, questions: int, names: Sequence[str] = TASKS) -> dict[str, Any]:
    """Return the share of right votes by task, mixture and weight, and differences from equal votes, as JSON."""
    specs = sorted({spec for mixture in MIXTURES.values() for spec in mixture})
    rows = []
    for task in names:
        sizes = {"validation": VALIDATION, "test:33": questions}
        accuracy, voting = (
            _drawn(out / subset.replace(":", "-"), task, specs, subset, size)
            for subset, size in sizes.items()
        )
        rate = {spec: float(np.mean([b.passed.mean() for b in c.ballots])) for spec, c in accuracy.items()}
        for mixture, members in MIXTURES.items():
            right = {
                name: np.array(_votes([voting[m] for m in members], [weight(rate[m]) for m in members]))
                for name, weight in WEIGHTS.items()
            }
            for name in WEIGHTS:
                gap = metrics.paired_bootstrap(right[name], right["equal"])
                best = 100 * float(right[name].mean())
                rows.append(
                    {"task": task, "mixture": mixture, "weight": name, "best": round(best, 1), **points(gap)}
                )
    return {"rows": rows, "questions": questions}


def _drawn(out: Path, task: str, specs: Sequence[str], subset: str, questions: int) -> dict[str, GradedCell]:
    cells = add_ballots(evaluated(out, task, specs, n=SAMPLES, questions=questions, subset=subset))
    by_policy = {spell(cell.policy): cell for cell in cells}
    return {spec: by_policy[spell(parse(spec))] for spec in specs}


def _votes(members: Sequence[GradedCell], weights: Sequence[float]) -> list[float]:
    """Return for each question whether the answer with the most votes is right; the first of a tie wins."""
    right = []
    for ballots in zip(*(member.ballots for member in members), strict=True):
        # Sample by sample in turn, so that ties do not favour a policy.
        answers = np.stack([ballot.answers for ballot in ballots], 1).flatten()
        passed = np.stack([ballot.passed for ballot in ballots], 1).flatten()
        position = elect(answers, np.tile(weights, len(ballots[0].answers)))
        right.append(0.0 if position is None else float(passed[position]))
    return right


def render(found: dict[str, Any]) -> str:
    """Return the comparison as Markdown."""
    head = ["task", "mixture", "weight of a vote", "right, %", "minus equal votes"]
    lines = [
        [
            row["task"],
            row["mixture"],
            row["weight"],
            f"{row['best']:.1f}",
            "" if row["weight"] == "equal" else with_interval(row),
        ]
        for row in found["rows"]
    ]
    return table(head, lines, numbers=2)
