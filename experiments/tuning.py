"""Is a race as good as a full grid? `twotemp tune` beside every candidate measured on every validation problem.

    python -m experiments.tuning --tasks countdown-3,countdown-4,programs-1 --seeds 3

For each task and seed all candidates are drawn on all validation problems; the race then runs on the same samples,
with a share of the grid's NFE as its budget. Its winner and the grid's first three meet on test problems, where the
best of those three is the measure. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.blocks import signed, spelled, table
from experiments.command import twotemp
from experiments.embedded import pair, points
from twotemp import metrics
from twotemp.analysis import Graded, read
from twotemp.policies import spell
from twotemp.tuning import expand

TASKS = ("countdown-3", "countdown-4", "programs-1")
POLICIES = ("ar:k=1", "tlc:k=1", "tct", "tpp:k=1", "fork")
K = 16
SHARE = 0.15  # of the grid's NFE
RIVALS = 3  # of the grid's candidates are tried on test problems


def study(out: Path, task: str, seed: int, validation: int, test: int) -> dict[str, Any]:
    """One race against one grid, and what became of both on test problems."""
    grid, tested = out / f"{task}-{seed}", out / f"{task}-{seed}-test"

    def evaluate(folder: Path, specs: Sequence[str], questions: int, subset: str) -> list[Graded]:
        asked = ["--task", task, "--subset", subset, "--questions", str(questions), "--seed", str(seed)]
        policies = ["--policies", ";".join(specs), "-n", str(K), "--out", str(folder)]
        twotemp("eval", *asked, *policies)
        return read([folder])

    cells = evaluate(grid, [spell(one) for one in expand(POLICIES)], validation, "validation")
    everything = sum(one.cost() * K * len(one.questions) for one in cells)
    asked = ["--task", task, "--policies", ",".join(POLICIES), "--at", f"pass@{K}", "--seed", str(seed)]
    limits = ["--budget", str(SHARE * everything), "--questions", str(validation)]
    twotemp("tune", *asked, *limits, "--out", str(grid))
    tuned = yaml.safe_load((grid / "tuned.yaml").read_text("utf-8"))
    winner = tuned["policies"][0]
    ranked = sorted(cells, key=lambda one: -one.passes[:, K - 1].mean())
    rivals = [spell(one.policy) for one in ranked[:RIVALS]]
    met = {spell(one.policy): one for one in evaluate(tested, sorted({winner, *rivals}), test, "test")}
    best = max(rivals, key=lambda spec: met[spec].passes[:, K - 1].mean())
    race, measure = pair(met[winner], met[best])
    behind = metrics.paired_bootstrap(race.passes[:, K - 1], measure.passes[:, K - 1])
    return {
        "task": task,
        "seed": seed,
        "candidates": len(cells),
        "share": round(tuned["spent"] / everything, 4),
        "winner": winner,
        "best": best,
        "winner_pass": points(met[winner].curve, K - 1),
        "best_pass": points(met[best].curve, K - 1),
        "behind": points(behind),
    }


def run(out: Path, tasks: Sequence[str], seeds: int, validation: int, test: int) -> dict[str, Any]:
    races = [study(out, task, seed, validation, test) for task in tasks for seed in range(seeds)]
    return {"validation": validation, "test": test, "races": races}


def shown(found: dict[str, Any]) -> str:
    rows = [
        [
            one["task"],
            str(one["seed"]),
            f"{100 * one['share']:.1f} %",
            f"`{one['winner']}`",
            f"{one['winner_pass']['mean']:.1f}",
            f"`{one['best']}`",
            f"{one['best_pass']['mean']:.1f}",
            spelled(one["behind"]),
        ]
        for one in found["races"]
    ]
    heads = ["task", "seed", "of the grid's NFE", "the race's choice", f"pass@{K}", "the grid's best"]
    heads += [f"pass@{K}", "difference"]
    behind = [one["behind"]["mean"] for one in found["races"]]
    return (
        f"{found['races'][0]['candidates']} candidates, {found['validation']} validation problems for the grid, "
        f"{found['test']} test problems for both, {K} samples per question. The grid's best is the best on test "
        f"problems of its first {RIVALS} on validation problems. The race's choice against it: {signed(min(behind))} "
        f"points at worst, {signed(sum(behind) / len(behind))} on average; a point is a percentage of questions, "
        f"the interval is the paired one over questions.\n\n{table(heads, rows, 1)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--validation", type=int, default=100)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"))
    given = parser.parse_args()
    print(shown(run(given.out, given.tasks.split(","), given.seeds, given.validation, given.test)))
