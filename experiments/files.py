"""Run an experiment that is described by a YAML file, and render its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.blocks import table
from experiments.command import current_graders, select, twotemp
from experiments.embedded import SHOWN, cell_summary
from twotemp.analysis import read, unique
from twotemp.evaluation.plan import read_experiment
from twotemp.report.style import model_name

HERE = Path(__file__).parent


def run(name: str, out: Path, questions: int, samples: int) -> dict[str, Any]:
    """Run `twotemp run experiments/NAME.yaml` with these numbers of questions and samples; return its cells."""
    path = HERE / f"{name}.yaml"
    size = ["-n", str(samples), "--questions", str(questions)]
    twotemp("run", str(path), *size, "--out", str(out))
    experiment = read_experiment(path)
    folders = [out / model_name(model) for model in experiment.models]
    cells = read(folders, current_graders(experiment.tasks))
    return {"cells": [cell_summary(cell) for cell in select(cells, experiment.policies, questions)]}


def render(result: dict[str, Any]) -> str:
    """Return a table of pass@k with intervals; the best policy of a model and task is bold in each column."""
    cells = result["cells"]
    ks = [str(k) for k in SHOWN if all(str(k) in cell["pass"] for cell in cells)]
    several_models = len({cell["model"] for cell in cells}) > 1
    rows = []
    for group in unique((cell["model"], cell["task"]) for cell in cells):
        members = [cell for cell in cells if (cell["model"], cell["task"]) == group]
        best = {k: max(cell["pass"][k]["mean"] for cell in members) for k in ks}
        for cell in members:
            head = ", ".join(group if several_models else group[1:]) if cell is members[0] else ""
            rates = (cell["pass"][k] for k in ks)
            numbers = [
                (f"**{rate['mean']:.1f}**" if rate["mean"] == best[k] else f"{rate['mean']:.1f}")
                + f" ({rate['low']:.0f}–{rate['high']:.0f})"
                for k, rate in zip(ks, rates)
            ]
            rows.append([head, f"`{cell['policy']}`", f"{cell['nfe']:.1f}", *numbers])
    questions, samples = min(cell["questions"] for cell in cells), max(cell["n"] for cell in cells)
    heads = ["", "policy", "NFE", *(f"pass@{k}" for k in ks)]
    size = (
        f"{questions} test questions per task, {samples} samples per question; 95 % intervals in parentheses."
    )
    return f"{size}\n\n{table(heads, rows, len(ks) + 1)}"
