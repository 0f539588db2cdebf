"""Compare `twotemp tune` with a full grid, in which every candidate is measured on every validation problem.

    python -m experiments.tuning --tasks countdown-3,countdown-4,programs-1 --seeds 3

The grid draws all candidates on all validation problems once. A race gets a share of the grid's NFE, and is run with
several seeds. The winners of the races and the best three candidates of the grid are then drawn on test problems with
another seed; the best of these three is the reference. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.blocks import listed, signed, table, with_interval
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
RIVALS = 3  # candidates of the grid that are drawn on test problems
TESTED = 32  # samples per test question: they estimate pass@16 with less noise than 16 samples
TEST_SEED = 100  # different from the seeds of the races and of the grid


def study(out: Path, task: str, seeds: int, validation: int, test: int) -> list[dict[str, Any]]:
    """Run races against one grid and compare their choices on test problems.

    Args:
        out: the folder of the run directories.
        task: the name of the task.
        seeds: the number of races, each with its own seed.
        validation: validation problems.
        test: test problems.

    Returns:
        One row per race.
    """

    def race(folder: Path, seed: int) -> dict[str, Any]:
        search = ["--task", task, "--policies", ",".join(POLICIES), "--at", f"pass@{K}", "--seed", str(seed)]
        limits = ["--budget", str(SHARE * grid_nfe), "--questions", str(validation)]
        twotemp("tune", *search, *limits, *MANY_ROWS, "--out", str(folder))
        tuned: dict[str, Any] = yaml.safe_load((folder / "tuned.yaml").read_text("utf-8"))
        return tuned

    grid = out / f"{task}-grid"
    candidates = [spell(policy) for policy in expand(POLICIES)]
    cells = evaluated(grid, task, candidates, n=K, questions=validation, subset="validation")
    grid_nfe = sum(cell.cost() * K * len(cell.questions) for cell in cells)
    # The grid was drawn with seed 0, so the race with seed 0 finds its samples there.
    races = [race(grid if seed == 0 else out / f"{task}-{seed}", seed) for seed in range(seeds)]
    winners = [tuned["policies"][0] for tuned in races]
    ranked = sorted(cells, key=lambda cell: -cell.passes[:, K - 1].mean())
    rivals = [spell(cell.policy) for cell in ranked[:RIVALS]]
    finalists = sorted({*winners, *rivals})
    tested = evaluated(out / f"{task}-test", task, finalists, n=TESTED, questions=test, seed=TEST_SEED)
    by_policy = {spell(cell.policy): cell for cell in tested}
    best = max(rivals, key=lambda spec: by_policy[spec].passes[:, K - 1].mean())
    rows = []
    for seed, (winner, tuned) in enumerate(zip(winners, races)):
        choice, reference = pair(by_policy[winner], by_policy[best])
        behind = metrics.paired_bootstrap(choice.passes[:, K - 1], reference.passes[:, K - 1])
        rows.append(
            {
                "task": task,
                "seed": seed,
                "candidates": len(cells),
                "share": round(tuned["spent"] / grid_nfe, 4),
                "winner": winner,
                "best": best,
                "winner_pass": points(by_policy[winner].curve, K - 1),
                "best_pass": points(by_policy[best].curve, K - 1),
                "behind": points(behind),
            }
        )
    return rows


def run(out: Path, tasks: Sequence[str], seeds: int, validation: int, test: int) -> dict[str, Any]:
    """Run the study of every task; see `study` for the arguments."""
    races = [row for task in tasks for row in study(out, task, seeds, validation, test)]
    return {"validation": validation, "test": test, "races": races}


def render(result: dict[str, Any]) -> str:
    """Return the table of all races and a paragraph that sums it up."""
    rows = [
        [
            race["task"],
            str(race["seed"]),
            f"{100 * race['share']:.1f} %",
            f"`{race['winner']}`",
            f"{race['winner_pass']['mean']:.1f}",
            f"`{race['best']}`",
            f"{race['best_pass']['mean']:.1f}",
            with_interval(race["behind"]),
        ]
        for race in result["races"]
    ]
    heads = ["task", "seed", "share of the grid's NFE", "the race's choice", f"pass@{K}", "the grid's best"]
    heads += [f"pass@{K}", "difference"]
    means = {
        task: sum(gaps) / len(gaps)
        for task in unique(race["task"] for race in result["races"])
        if (gaps := [race["behind"]["mean"] for race in result["races"] if race["task"] == task])
    }
    worst = min(race["behind"]["mean"] for race in result["races"])
    averages = listed([f"{signed(mean)} on {task}" for task, mean in means.items()])
    return (
        f"There are {result['races'][0]['candidates']} candidates. The grid draws all of them on "
        f"{result['validation']} validation problems; the choices are compared on {result['test']} test problems "
        f"with {TESTED} samples each. The grid's best is the one of its {RIVALS} best candidates that does best on "
        "the test problems, which favors the grid a little. The difference between the race's choice and the grid's "
        f"best, averaged over seeds, is {averages} (percentage points); the worst single race is at "
        f"{signed(worst)}. The last column has the paired 95 % interval over questions.\n\n{table(heads, rows, 1)}"
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
    arguments = parser.parse_args()
    tasks = arguments.tasks.split(",")
    result = run(arguments.out, tasks, arguments.seeds, arguments.validation, arguments.test)
    print(render(result))
