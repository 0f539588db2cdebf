"""What does training the order change? Likelihoods and objectives with the same rollouts, on two tasks.

    python -m experiments.order --out runs/order --seconds 180 --nfe 250000 --seeds 3

TCT rollouts: token terms alone, tokens and order, and the estimators and objectives that others use. Fork rollouts
with `d1`, of which one training collapsed in the comparison of rollouts (`experiments.grpo`): does StableDRL's
objective prevent it? As there, use an idle machine; a comparison that was stopped continues with the same command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments import grpo
from experiments.blocks import table, with_interval
from experiments.command import side_by_side
from experiments.grpo import ComparisonSize

TASKS = ("countdown-3", "words-3")
PLAIN = "tokens"  # what the others are compared with
# Name -> rollouts and the options of `twotemp grpo`. Ratios differ from 1 only after an update on the same rollouts.
TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    PLAIN: ("tct", ("--likelihood", "trajectory")),
    "order": ("tct", ("--likelihood", "order")),
    "deferral": ("tct", ("--likelihood", "deferral")),
    "d1": ("tct", ("--likelihood", "d1")),
    "coupled": ("tct", ("--likelihood", "coupled")),
    "sequence": (
        "tct",
        ("--likelihood", "stratified", "--draws", "2", "--objective", "sequence", "--iterations", "2"),
    ),
    "stable": (
        "tct",
        ("--likelihood", "d1", "--objective", "stable", "--epsilon-high", "4", "--iterations", "2"),
    ),
    "fork-d1": ("fork", ("--likelihood", "d1")),
    "fork-stable": (
        "fork",
        ("--likelihood", "d1", "--objective", "stable", "--epsilon-high", "4", "--iterations", "2"),
    ),
}
RESAMPLES = 4000


def run(out: Path, size: ComparisonSize) -> dict[str, Any]:
    """Run all trainings and return the state of each at both limits."""

    def folder(task: str, name: str, seed: int) -> Path:
        return out / f"{task}-{name}-{seed}"

    def command(task: str, name: str, seed: int, budget: str) -> list[str]:
        rollouts, options = TRAININGS[name]
        training = ["--task", task, "--policy", grpo.ROLLOUTS[rollouts], *options, "--seed", str(seed)]
        limits = ["--budget", budget, "--held-out", str(size.held_out)]
        return ["grpo", *training, *limits, "--out", str(folder(task, name, seed))]

    def keys() -> Iterator[tuple[str, str, int]]:
        for seed, task, name in product(range(size.seeds), TASKS, TRAININGS):
            yield task, name, seed

    for budget in (f"{size.seconds}s,{size.nfe}nfe", f"{size.seconds}s", f"{size.nfe}nfe"):
        side_by_side(command(*key, budget) for key in keys())
    results = [
        {"equal": equal, "task": task, "name": name, "seed": seed}
        | grpo.reached(folder(task, name, seed), equal, limit)
        for equal, limit in size.limits.items()
        for task, name, seed in keys()
    ]
    return {"seconds": size.seconds, "nfe": size.nfe, "runs": results}


def nested_interval(values: np.ndarray) -> dict[str, float]:
    """Return the mean of values [seeds, questions] and its 95 % interval over seeds *and* questions, in points.

    Both are drawn with replacement, so trainings that differ widen the interval as questions do. With three seeds it
    is rough, and too narrow rather than too wide.
    """
    generator = np.random.default_rng(0)
    seeds, questions = values.shape
    rows, columns = (generator.multinomial(n, [1 / n] * n, RESAMPLES) / n for n in (seeds, questions))
    means = 100 * ((rows @ values) * columns).sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"mean": 100 * float(values.mean()), "low": float(low), "high": float(high)}


def render(result: dict[str, Any]) -> str:
    """Return a table for each task and limit: accuracies, and their gain over the token terms alone."""
    runs = {(r["equal"], r["task"], r["name"], r["seed"]): r for r in result["runs"]}
    seeds = sorted({seed for *_, seed in runs})
    thresholds = list(result["runs"][0]["passed"])

    def passed(equal: str, task: str, name: str, threshold: str) -> np.ndarray:
        digits = [runs[equal, task, name, seed]["passed"][threshold] for seed in seeds]
        return np.array([[int(digit) for digit in row] for row in digits], dtype=float)

    parts = []
    limits = {"seconds": f"{result['seconds']} s", "nfe": f"{result['nfe']:,} NFE"}
    for task, equal in product(dict.fromkeys(r["task"] for r in result["runs"]), limits):
        rows = []
        for name in dict.fromkeys(r["name"] for r in result["runs"]):
            mine = [runs[equal, task, name, seed] for seed in seeds]
            row = [f"`{name}`"] + [
                f"{np.mean([run[key] for run in mine]):,.{digits}f}"
                for key, digits in (("steps", 0), ("nfe", 1), ("reward_std", 3))
            ]
            for threshold in thresholds:
                values = passed(equal, task, name, threshold)
                gain = nested_interval(values - passed(equal, task, PLAIN, threshold))
                shown = "" if name == PLAIN else f"; {with_interval(gain)}"
                row.append(f"{100 * values.mean():.1f}{shown}")
            rows.append(row)
        heads = ["training", "steps", "NFE per rollout", "reward std in a group"]
        heads += [f"λ = {threshold}" for threshold in thresholds]
        parts.append(f"{task}, {limits[equal]}:\n\n{table(heads, rows, len(heads) - 1)}")
    return (
        f"Accuracy of greedy CT in %, the mean of {len(seeds)} seeds, and its gain over `{PLAIN}` in percentage "
        "points with the 95 % interval over questions and seeds.\n\n" + "\n\n".join(parts)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/order"))
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--nfe", type=int, default=250_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held-out", type=int, default=500)
    arguments = parser.parse_args()
    size = ComparisonSize(arguments.seconds, arguments.nfe, arguments.seeds, arguments.held_out)
    print(render(run(arguments.out, size)))
