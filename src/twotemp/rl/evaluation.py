"""The paper's evaluation of a training run: greedy CT on held-out problems, at three thresholds."""

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
from twotemp.policies import policy
from twotemp.records import Problem
from twotemp.sampling.prompts import ProblemRequest, answer, problem_requests
from twotemp.serialization import from_json, json_text

if TYPE_CHECKING:
    from accelerate import Accelerator

FILE = "evaluation.json"
THRESHOLDS = (0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Point:
    """Results at one threshold: accuracy with its 95 % interval over questions (NaN: too few), and the mean NFE."""

    threshold: float
    accuracy: float
    low: float
    high: float
    nfe: float
    passed: tuple[float, ...]  # by question: 1, 0, or NaN for ungraded
    nfes: tuple[int, ...]


@dataclass(frozen=True)
class Checkup:
    """Results of the model after a step, at every threshold."""

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
    """Evaluate greedy CT at each of `THRESHOLDS`; every worker grades its share of the problems. Collective.

    Args:
        backend: draws the samples.
        grader: of the task.
        problems: held out.
        accelerator: the other workers.
        length: tokens of an answer.
        block: width of a decoding block; None: the default.

    Returns:
        A point for each threshold.
    """
    mine = range(accelerator.process_index, len(problems), accelerator.num_processes)
    asks = (
        ProblemRequest(
            problems[number], policy("ct", threshold=threshold, t_token=0.0), index, id=str(number)
        )
        for number in mine
        for index, threshold in enumerate(THRESHOLDS)
    )
    samples = list(backend.sample(problem_requests(backend.text, asks, length=length, block=block)))
    asked = [problems[int(sample.request)] for sample in samples]
    grades = grader.grade((problem, answer(problem, s.text)) for problem, s in zip(asked, samples))
    table = torch.zeros(len(THRESHOLDS), len(problems), 3, dtype=torch.float64)  # passed, graded, NFE
    for sample, grade in zip(samples, grades):
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
    """Return accuracy after minus before at each threshold, with the interval of the paired difference."""
    if before.questions != after.questions:
        raise UserError("the two evaluations are of different questions and cannot be compared")
    first, second = (np.array([p.passed for p in e.points]).T for e in (after, before))
    return metrics.paired_bootstrap(first, second)


def read(folder: Path) -> list[Checkup]:
    """Return the evaluations of a run, in the order of their steps."""
    path = folder / FILE
    stored = read_json(path) if path.exists() else []
    return [
        Checkup(row["step"], row["seconds"], tuple(row["questions"]), tuple(map(_point, row["points"])))
        for row in stored
    ]


def _point(data: dict[str, Any]) -> Point:
    ends = {name: from_json(data[name]) for name in ("accuracy", "low", "high")}
    passed, nfes = tuple(map(from_json, data["passed"])), tuple(data["nfes"])
    return Point(**{**data, **ends, "passed": passed, "nfes": nfes})


def add(folder: Path, checkup: Checkup) -> None:
    """Store a check-up, in place of an older one of the same step."""
    earlier = [known for known in read(folder) if known.step < checkup.step]
    write_text(folder / FILE, json_text([asdict(known) for known in (*earlier, checkup)]) + "\n")
