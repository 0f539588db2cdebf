"""What made the shipped weights, from the logs beside the recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.blocks import table
from recipes.recipe import Recipe

MODELS = ("tiny-first", "tiny", "tiny-ar")
OBJECTIVES = {"diffusion": "masked diffusion", "next token": "next token"}
LAST = 25  # lines of the log that a final loss is the mean of


def summary(recipes: Path) -> dict[str, Any]:
    found = {}
    for name in MODELS:
        rows = [json.loads(line) for line in (recipes / f"{name}.log.jsonl").read_text("utf-8").splitlines()]
        phases: dict[str, int] = {}
        for row in rows:
            phases[row["objective"]] = row["step"]
        done = 0
        for objective, step in phases.items():
            phases[objective], done = step - done, step
        losses: dict[str, list[float]] = {}
        for row in rows[-LAST:]:
            for task, loss in row["loss"].items():
                losses.setdefault(task, []).append(loss)
        before = Recipe.read(recipes / f"{name}.yaml").after
        found[name] = {
            "after": before and before.name,
            "phases": phases,
            "tokens": rows[-1]["tokens"],
            "seconds": rows[-1]["seconds"],
            "loss": {task: round(sum(some) / len(some), 3) for task, some in sorted(losses.items())},
        }
    return found


def shown(found: dict[str, Any]) -> str:
    tasks = list(next(iter(found.values()))["loss"])
    rows = [
        [
            f"`{name}`" + (f", after `{one['after']}`" if one["after"] else ""),
            ", then ".join(OBJECTIVES[objective] for objective in one["phases"]),
            " + ".join(f"{steps:,}" for steps in one["phases"].values()),
            f"{one['tokens'] / 1e6:.0f} M",
            f"{one['seconds'] / 60:.0f} min",
            *(f"{one['loss'][task]:.2f}" for task in tasks),
        ]
        for name, one in found.items()
    ]
    heads = ["", "objective", "steps", "tokens", "time", *(f"loss, {task}" for task in tasks)]
    return table(heads, rows, len(tasks) + 3)
