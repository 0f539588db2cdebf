"""Is a race as good as a full grid? `twotemp tune` beside every candidate measured on every validation problem.

    python -m experiments.tuning --tasks countdown-3,countdown-4,programs-1 --seeds 3

The grid draws all candidates on all validation problems once. A race gets a share of the grid's NFE, and is run with
several seeds. Its winners and the grid's first three then meet on test problems, on other noise, where the best of
those three is the measure. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.blocks import listed, signed, spelled, table
from experiments.command import MANY_ROWS, evaluated, twotemp
from experiments.embedded import pair, points
from twotemp import metrics
from twotemp.analysis import unique
from twotemp.policies import spell
from twotemp.tuning import expand

TASKS = ("countdown-3", "countdown-4", "programs-1")
POLICIES = ("ar:k=1", "tlc:k=1", "tct", "tpp:k=1", "fork")
K = 16
SHARE = 0.15  # of the grid's NFE
RIVALS = 3  # of the grid's candidates are tried on test problems
TESTED = 32  # samples per test question: pass@16 of them has less noise than that of 16
TEST_SEED = 100  # none that a race or the grid was run with


def study(out: Path, task: str, seeds: int, validation: int, test: int) -> list[dict[str, Any]]:
    """Races against one grid, and what became of all of them on test problems."""

    def race(folder: Path, seed: int) -> dict[str, Any]:
        asked = ["--task", task, "--policies", ",".join(POLICIES), "--at", f"pass@{K}", "--seed", str(seed)]
        limits = ["--budget", str(SHARE * everything), "--questions", str(validation)]
        twotemp("tune", *asked, *limits, *MANY_ROWS, "--out", str(folder))
        found: dict[str, Any] = yaml.safe_load((folder / "tuned.yaml").read_text("utf-8"))
        return found

    grid = out / f"{task}-grid"
    candidates = [spell(one) for one in expand(POLICIES)]
    cells = evaluated(grid, task, candidates, n=K, questions=validation, subset="validation")
    everything = sum(one.cost() * K * len(one.questions) for one in cells)
    # With seed 0 the grid has drawn what the race asks for.
    races = [race(grid if seed == 0 else out / f"{task}-{seed}", seed) for seed in range(seeds)]
    winners = [one["policies"][0] for one in races]
    ranked = sorted(cells, key=lambda one: -one.passes[:, K - 1].mean())
    rivals = [spell(one.policy) for one in ranked[:RIVALS]]
    met_on_test = out / f"{task}-test"
    tested = evaluated(
        met_on_test, task, sorted({*winners, *rivals}), n=TESTED, questions=test, seed=TEST_SEED
    )
    met = {spell(one.policy): one for one in tested}
    best = max(rivals, key=lambda spec: met[spec].passes[:, K - 1].mean())
    found = []
    for seed, (winner, raced) in enumerate(zip(winners, races)):
        chosen, measure = pair(met[winner], met[best])
        behind = metrics.paired_bootstrap(chosen.passes[:, K - 1], measure.passes[:, K - 1])
        found.append(
            {
                "task": task,
                "seed": seed,
                "candidates": len(cells),
                "share": round(raced["spent"] / everything, 4),
                "winner": winner,
                "best": best,
                "winner_pass": points(met[winner].curve, K - 1),
                "best_pass": points(met[best].curve, K - 1),
                "behind": points(behind),
            }
        )
    return found


def run(out: Path, tasks: Sequence[str], seeds: int, validation: int, test: int) -> dict[str, Any]:
    races = [one for task in tasks for one in study(out, task, seeds, validation, test)]
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
    means = {
        task: sum(some) / len(some)
        for task in unique(one["task"] for one in found["races"])
        if (some := [one["behind"]["mean"] for one in found["races"] if one["task"] == task])
    }
    worst = min(one["behind"]["mean"] for one in found["races"])
    told = listed([f"{signed(mean)} points on {task}" for task, mean in means.items()])
    return (
        f"{found['races'][0]['candidates']} candidates, {found['validation']} validation problems for the grid, "
        f"{found['test']} test problems with {TESTED} samples each for both. The grid's best is the best on test "
        f"problems of its first {RIVALS} on validation problems, which flatters it a little. The race's choice "
        f"against it, mean of the seeds: {told}; the worst single one {signed(worst)}. A point is a percentage of "
        f"questions, the interval is the paired one over questions.\n\n{table(heads, rows, 1)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--validation", type=int, default=100)
    parser.add_argument("--test", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"))
    given = parser.parse_args()
    print(shown(run(given.out, given.tasks.split(","), given.seeds, given.validation, given.test)))
