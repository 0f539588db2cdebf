"""Does T_pos help more where it matters: falling with the masks left in a block, or only for its first commits?

    python -m experiments.paper --parts schedules

TLC and TCT with a constant T_pos against T_pos times a schedule. For each, T_pos is the one of four with the best
pass@16 on validation problems; then all are compared on other problems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import twotemp
from experiments.blocks import table, with_interval
from experiments.embedded import points
from experiments.search import BATCH, ROWS, decode, requests_by_length
from twotemp import graders, metrics, tasks
from twotemp.models.base import LanguageModel
from twotemp.records import Problem

TASKS = ("countdown-4", "programs-2")
SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": torch.ones_like,
    "falling": lambda masked: masked,  # T_pos x the share of the block that is masked
    "first third": lambda masked: (masked > 2 / 3).float(),
}
SPECS = {
    "TLC": ["tlc:t_pos=0.25", "tlc:t_pos=0.5", "tlc:t_pos=1", "tlc:t_pos=2"],
    "TCT": [f"tct:threshold=0.9,t_pos={t_pos}" for t_pos in (0.05, 0.1, 0.2, 0.4)],
}
KS = (1, 4, 16)
VALIDATION = 40  # problems


def run(questions: int, names: Sequence[str] = TASKS) -> dict[str, Any]:
    """Return pass@k and NFE by task, policy and schedule, and differences from a constant T_pos, as JSON."""
    model = twotemp.load("tiny")
    rows = []
    for task in names:
        held = list(tasks.get(task).problems(subset="validation").problems)[:VALIDATION]
        problems = list(tasks.get(task).problems(subset="test:34").problems)[:questions]
        for policy, specs in SPECS.items():
            constant = None
            for name, schedule in SCHEDULES.items():
                reached = {
                    spec: _curves(model, task, held, spec, schedule)[0][:, -1].mean() for spec in specs
                }
                best = max(reached, key=lambda spec: reached[spec])
                curves, nfe = _curves(model, task, problems, best, schedule)
                constant = curves if constant is None else constant
                gaps = metrics.paired_bootstrap(curves, constant)
                rows.append(
                    {"task": task, "policy": policy, "schedule": name, "spec": best, "nfe": round(nfe, 2)}
                    | {"rates": [round(100 * float(rate), 1) for rate in curves.mean(0)]}
                    | {"gaps": [points(gaps, at) for at in range(len(KS))]}
                )
    return {"rows": rows, "questions": questions}


def _curves(
    model: LanguageModel,
    task: str,
    problems: Sequence[Problem],
    spec: str,
    schedule: Callable[[Tensor], Tensor],
) -> tuple[np.ndarray, float]:
    """Return pass@k of every problem, [problems, KS], and the mean NFE of a sample."""
    grader = graders.get(tasks.get(task).grader)
    right, nfe = np.zeros(len(problems)), []
    for group in requests_by_length(model, task, problems, spec):
        for first in range(0, len(group), BATCH):
            part = group[first : first + BATCH]
            rows = decode(model, [request for each in part for request in each], t_pos=schedule)
            nfe += rows.nfe.tolist()
            texts = [model.decode(ids) for ids in rows.ids[:, len(part[0][0].prompt) :].tolist()]
            numbers = [int(request.tag) for each in part for request in each]
            for number, grade in zip(
                numbers, grader.grade([(problems[n], t) for n, t in zip(numbers, texts)])
            ):
                right[number] += grade.passed
    return metrics.pass_at_k(np.full(len(problems), ROWS), right.astype(int), KS), float(np.mean(nfe))


def render(found: dict[str, Any]) -> str:
    """Return the comparison as Markdown."""
    head = ["task", "T_pos", "chosen", "NFE", *(f"pass@{k}, %" for k in KS), "pass@16 minus constant"]
    lines = [
        [
            row["task"],
            f"{row['policy']}, {row['schedule']}",
            f"`{row['spec']}`",
            f"{row['nfe']:.1f}",
            *(f"{rate:.1f}" for rate in row["rates"]),
            "" if row["schedule"] == "constant" else with_interval(row["gaps"][-1]),
        ]
        for row in found["rows"]
    ]
    return table(head, lines, numbers=5)
