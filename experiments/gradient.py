"""Compare `twotemp tune --gradient` with the race of `twotemp tune` at equal NFE.

    python -m experiments.gradient --tasks countdown-3,countdown-4,words-3 --seeds 3

Both look for the best parameters of one policy for pass@16 on the same validation problems. Their choices, and the
policy that the gradient starts from, are then drawn on test problems with another seed. A run that was stopped
continues with the same command.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.blocks import listed, signed, table, with_interval
from experiments.command import MANY_ROWS, evaluated, twotemp
from experiments.embedded import pair, points
from experiments.tuning import TEST_SEED, K
from twotemp import metrics
from twotemp.analysis import unique
from twotemp.policies import parse, spell
from twotemp.tuning import expand

KINDS = ("race", "gradient")
TASKS = ("countdown-3", "countdown-4", "words-3")
START = "tct"  # of the gradient
GRID = (
    "tct:t_token=0.8|1|1.2,t_pos=0.1|0.3,threshold=0.5|0.7|0.9"  # of the race: as many as the budget allows
)
BUDGET = 40_000  # NFE of each search
QUESTIONS = 100  # validation problems
TESTED = 16  # samples per test question


def search(out: Path, task: str, kind: str, seed: int, budget: int) -> dict[str, Any]:
    """Search by race or by gradient, and return tuned.yaml."""
    folder = out / f"{task}-{kind}-{seed}"
    ways = {"race": ["--policies", GRID, *MANY_ROWS], "gradient": ["--policies", START, "--gradient"]}
    where = ["--task", task, "--at", f"pass@{K}", "--seed", str(seed), "--out", str(folder)]
    limits = ["--budget", str(budget), "--questions", str(QUESTIONS)]
    if not (folder / "tuned.yaml").exists():
        twotemp("tune", *where, *limits, *ways[kind])
    tuned: dict[str, Any] = yaml.safe_load((folder / "tuned.yaml").read_text("utf-8"))
    return tuned


def study(out: Path, task: str, seed: int, test: int, budget: int) -> dict[str, Any]:
    """Search both ways with a seed, and compare the choices on test problems."""
    chosen = {kind: search(out, task, kind, seed, budget) for kind in KINDS}
    start = spell(parse(START))
    specs = sorted({start, *(tuned["policies"][0] for tuned in chosen.values())})
    cells = evaluated(out / f"{task}-test", task, specs, n=TESTED, questions=test, seed=TEST_SEED)
    by_policy = {spell(cell.policy): cell for cell in cells}
    row: dict[str, Any] = {"task": task, "seed": seed, "start": points(by_policy[start].curve, K - 1)}
    for kind, tuned in chosen.items():
        spec = tuned["policies"][0]
        row[kind] = {
            "policy": spec,
            "spent": tuned["spent"],
            "nfe": round(by_policy[spec].cost(), 2),
            "pass": points(by_policy[spec].curve, K - 1),
        }
    ours, theirs = pair(*(by_policy[row[kind]["policy"]] for kind in reversed(KINDS)))
    row["ahead"] = points(metrics.paired_bootstrap(ours.passes[:, K - 1], theirs.passes[:, K - 1]))
    return row


def run(
    out: Path,
    tasks: Sequence[str],
    seeds: int,
    test: int,
    budget: int = BUDGET,
    *,
    finished: bool = False,
    earlier: Sequence[dict[str, Any]] = (),
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Run the study of every seed and task, and return its rows by task.

    Args:
        out: the folder of the run directories.
        tasks: their names.
        seeds: searches of each kind and task.
        test: test problems.
        budget: NFE of a search.
        finished: take only searches that are complete, and draw no more than their test samples.
        earlier: results for the same weights; a search that one of them has is not made again.
        keep: called with the result so far after each study.
    """
    settings = {"start": START, "grid": GRID, "budget": budget, "validation": QUESTIONS, "test": test}
    known = {
        (row["task"], row["seed"]): row
        for result in earlier
        if all(result[name] == value for name, value in settings.items())
        for row in result["searches"]
    }
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for task in tasks:
            complete = all((out / f"{task}-{kind}-{seed}" / "tuned.yaml").exists() for kind in KINDS)
            if (task, seed) in known:
                rows.append(known[task, seed])
            elif complete or not finished:
                rows.append(study(out, task, seed, test, budget))
                keep({"complete": False, **settings, "searches": rows})
    rows.sort(key=lambda row: (tasks.index(row["task"]), row["seed"]))
    return {"complete": len(rows) == seeds * len(tasks), **settings, "searches": rows}


def render(result: dict[str, Any]) -> str:
    """Return the table of all searches and a paragraph that sums it up."""
    rows = [
        [
            row["task"],
            str(row["seed"]),
            *(
                text
                for kind in KINDS
                for text in (
                    f"`{row[kind]['policy']}`",
                    f"{row[kind]['nfe']:.1f}",
                    f"{row[kind]['pass']['mean']:.1f}",
                )
            ),
            with_interval(row["ahead"]),
        ]
        for row in result["searches"]
    ]
    heads = [
        "task",
        "seed",
        "the race's choice",
        "NFE",
        f"pass@{K}",
        "the gradient's choice",
        "NFE",
        f"pass@{K}",
    ]
    means = []
    for task in unique(row["task"] for row in result["searches"]):
        mine = [row for row in result["searches"] if row["task"] == task]
        gap = signed(sum(row["ahead"]["mean"] for row in mine) / len(mine))
        gain = sum(row["gradient"]["pass"]["mean"] - row["start"]["mean"] for row in mine) / len(mine)
        means.append(f"{gap} on {task} (its start has {mine[0]['start']['mean']:.1f}, it {signed(gain)})")
    spent = [
        sum(row[kind]["spent"] for row in result["searches"]) / len(result["searches"]) for kind in KINDS
    ]
    return (
        f"The race has {len(expand([GRID]))} candidates (`{GRID}`), the gradient starts from `{START}`. "
        f"Each search has {result['budget']:,} NFE and {result['validation']} validation problems (spent on average: "
        f"{spent[0]:,.0f} by the race, {spent[1]:,.0f} by the gradient, with its scoring); the choices are compared "
        f"on {result['test']} test problems with {TESTED} samples each. The gradient's choice minus the race's, in "
        f"percentage points of pass@{K} averaged over seeds: {listed(means)}. The last column has the paired 95 % "
        f"interval over questions.\n\n{table([*heads, 'difference'], rows, 6)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--out", type=Path, default=Path("runs/gradient"))
    parser.add_argument("--finished", action="store_true", help="compare the searches that are complete")
    arguments = parser.parse_args()
    size = (arguments.tasks.split(","), arguments.seeds, arguments.test, arguments.budget)
    print(render(run(arguments.out, *size, finished=arguments.finished)))
