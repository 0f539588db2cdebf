"""Summarize how the shipped weights were trained, from the logs of the recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.blocks import table
from recipes.recipe import Recipe

MODELS = ("tiny-first", "tiny", "tiny-ar", "tiny-uniform")
OBJECTIVES = {
    "mask": "masked diffusion",
    "uniform": "diffusion with random tokens",
    "next token": "next token",
}
LAST = 25  # a final loss is the mean over this many lines of the log


def summary(recipes: Path) -> dict[str, Any]:
    """Return the phases, tokens, seconds and final losses of each training."""
    trainings = {}
    for name in MODELS:
        rows = [json.loads(line) for line in (recipes / f"{name}.log.jsonl").read_text("utf-8").splitlines()]
        recipe = Recipe.read(recipes / f"{name}.yaml")
        phases: dict[str, int] = {}
        for row in rows:
            phases[recipe.noise if row["objective"] == "diffusion" else row["objective"]] = row["step"]
        done = 0
        for objective, step in phases.items():
            phases[objective], done = step - done, step
        losses: dict[str, list[float]] = {}
        for row in rows[-LAST:]:
            for task, loss in row["loss"].items():
                losses.setdefault(task, []).append(loss)
        trainings[name] = {
            "after": recipe.after.name if recipe.after else recipe.model,
            "phases": phases,
            "tokens": rows[-1]["tokens"],
            "seconds": rows[-1]["seconds"],
            "loss": {task: round(sum(values) / len(values), 3) for task, values in sorted(losses.items())},
        }
    return trainings


def render(result: dict[str, Any]) -> str:
    """Return a table with one row per training."""
    tasks = list(next(iter(result.values()))["loss"])
    rows = [
        [
            f"`{name}`" + (f", after `{training['after']}`" if training["after"] else ""),
            ", then ".join(OBJECTIVES[objective] for objective in training["phases"]),
            " + ".join(f"{steps:,}" for steps in training["phases"].values()),
            f"{training['tokens'] / 1e6:.0f} M",
            f"{training['seconds'] / 60:.0f} min",
            *(f"{training['loss'][task]:.2f}" for task in tasks),
        ]
        for name, training in result.items()
    ]
    heads = ["", "objective", "steps", "tokens", "time", *(f"loss, {task}" for task in tasks)]
    return table(heads, rows, len(tasks) + 3)
