"""The experiments that are files: run one, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.blocks import table
from experiments.command import current_graders, only, twotemp
from experiments.embedded import SHOWN, cell
from twotemp.analysis import read, unique
from twotemp.evaluation import experiments
from twotemp.report.names import model_name

HERE = Path(__file__).parent


def run(name: str, out: Path, questions: int, samples: int) -> dict[str, Any]:
    """`twotemp run experiments/NAME.yaml`, in this size."""
    path = HERE / f"{name}.yaml"
    size = ["-n", str(samples), "--questions", str(questions)]
    twotemp("run", str(path), *size, "--out", str(out))
    asked = experiments.read(path)
    cells = read([out / model_name(model) for model in asked.models], current_graders(asked.tasks))
    return {"cells": [cell(one) for one in only(cells, asked.policies, questions)]}


def shown(found: dict[str, Any]) -> str:
    """pass@k of every cell, with its interval; the highest of a column of a task and model in bold."""
    cells = found["cells"]
    ks = [str(k) for k in SHOWN if all(str(k) in one["pass"] for one in cells)]
    several = len({one["model"] for one in cells}) > 1
    rows = []
    for group in unique((one["model"], one["task"]) for one in cells):
        here = [one for one in cells if (one["model"], one["task"]) == group]
        best = {k: max(one["pass"][k]["mean"] for one in here) for k in ks}
        for one in here:
            head = ", ".join(group if several else group[1:]) if one is here[0] else ""
            rates = (one["pass"][k] for k in ks)
            numbers = [
                (f"**{p['mean']:.1f}**" if p["mean"] == best[k] else f"{p['mean']:.1f}")
                + f" ({p['low']:.0f}–{p['high']:.0f})"
                for k, p in zip(ks, rates)
            ]
            rows.append([head, f"`{one['policy']}`", f"{one['nfe']:.1f}", *numbers])
    few, most = min(one["questions"] for one in cells), max(one["n"] for one in cells)
    heads = ["", "policy", "NFE", *(f"pass@{k}" for k in ks)]
    return f"{few} test questions per task, {most} samples per question.\n\n{table(heads, rows, len(ks) + 1)}"
