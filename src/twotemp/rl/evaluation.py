"""The paper's yardstick: greedy confidence thresholding on held-out problems, at three thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from twotemp import metrics
from twotemp.backends import Backend
from twotemp.errors import UserError
from twotemp.folders import read_json, write_text
from twotemp.graders.base import Grader
from twotemp.plain import from_json, json_text
from twotemp.policies import policy
from twotemp.records import Problem
from twotemp.sampling.prompts import ProblemRequest, answer, problem_requests

if TYPE_CHECKING:
    from accelerate import Accelerator

FILE = "evaluation.json"
THRESHOLDS = (0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Point:
    """One threshold: accuracy with its 95 % interval over questions (NaN: too few), and the mean NFE."""

    threshold: float
    accuracy: float
    low: float
    high: float
    nfe: float
    passed: tuple[float, ...]  # by question: 1, 0, or NaN for ungraded
    nfes: tuple[int, ...]


@dataclass(frozen=True)
class Checkup:
    """The model after a step, at every threshold."""

    step: int
    seconds: float  # of training before it
    questions: tuple[str, ...]
    points: tuple[Point, ...]


def evaluate(
    backend: Backend,
    grader: Grader,
    problems: Sequence[Problem],
    accelerator: Accelerator,
    *,
    length: int,
    block: int | None,
) -> tuple[Point, ...]:
    """Greedy CT at each of `THRESHOLDS`; every worker judges its share of the problems."""
    mine = range(accelerator.process_index, len(problems), accelerator.num_processes)
    asks = (
        ProblemRequest(
            problems[number], policy("ct", threshold=threshold, t_token=0.0), place, id=str(number)
        )
        for number in mine
        for place, threshold in enumerate(THRESHOLDS)
    )
    found = list(backend.sample(problem_requests(backend.text, asks, length=length, block=block)))
    asked = [problems[int(sample.request)] for sample in found]
    grades = grader.grade((problem, answer(problem, s.text)) for problem, s in zip(asked, found))
    table = torch.zeros(len(THRESHOLDS), len(problems), 3, dtype=torch.float64)  # passed, graded, NFE
    for sample, grade in zip(found, grades):
        graded = grade.outcome != "ungraded"
        table[sample.index, int(sample.request)] = torch.tensor([grade.passed, graded, sample.nfe])
    table = accelerator.reduce(table.to(accelerator.device), "sum").cpu()
    passed = torch.where(table[..., 1] > 0, table[..., 0], torch.nan).numpy()
    estimate = metrics.bootstrap(passed.T)
    return tuple(
        Point(
            threshold=threshold,
            accuracy=float(estimate.mean[i]),
            low=float(estimate.low[i]),
            high=float(estimate.high[i]),
            nfe=float(table[i, :, 2].mean()),
            passed=tuple(passed[i].tolist()),
            nfes=tuple(table[i, :, 2].int().tolist()),
        )
        for i, threshold in enumerate(THRESHOLDS)
    )


def gains(before: Checkup, after: Checkup) -> metrics.Estimate:
    """Accuracy after minus before at each threshold, with the interval of the paired difference."""
    if before.questions != after.questions:
        raise UserError("the two evaluations are of different questions and cannot be compared")
    first, second = (np.array([p.passed for p in e.points]).T for e in (after, before))
    return metrics.paired_bootstrap(first, second)


COMPARED = ("lambda", "accuracy before", "after", "gain [95 %]", "NFE before → after")


def compare(before: Checkup, after: Checkup) -> list[list[str]]:
    """`COMPARED` for each threshold, as text for a table."""
    gain = gains(before, after)
    return [
        [
            f"{old.threshold:g}",
            _spelled(old.accuracy, old.low, old.high, ""),
            _spelled(new.accuracy, new.low, new.high, ""),
            _spelled(gain.mean[i], gain.low[i], gain.high[i], "+"),
            f"{old.nfe:.2f} → {new.nfe:.2f}",
        ]
        for i, (old, new) in enumerate(zip(before.points, after.points))
    ]


def _spelled(mean: float, low: float, high: float, sign: str) -> str:
    """In percent; without an interval where there are too few questions for one."""
    span = "" if np.isnan(low) else f" [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
    return f"{100 * mean:{sign}.1f}{span}"


def read(folder: Path) -> list[Checkup]:
    """The evaluations of a run, in the order of their steps."""
    path = folder / FILE
    stored = read_json(path) if path.exists() else []
    return [
        Checkup(one["step"], one["seconds"], tuple(one["questions"]), tuple(map(_point, one["points"])))
        for one in stored
    ]


def _point(data: dict[str, Any]) -> Point:
    ends = {name: from_json(data[name]) for name in ("accuracy", "low", "high")}
    passed, nfes = tuple(map(from_json, data["passed"])), tuple(data["nfes"])
    return Point(**{**data, **ends, "passed": passed, "nfes": nfes})


def add(folder: Path, checkup: Checkup) -> None:
    """Store a check-up, in place of an older one of the same step."""
    kept = [one for one in read(folder) if one.step < checkup.step]
    write_text(folder / FILE, json_text([asdict(one) for one in (*kept, checkup)]) + "\n")
