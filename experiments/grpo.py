"""Compare four kinds of rollouts for GRPO, at equal training time and at equal NFE, with several seeds.

    python -m experiments.grpo --out runs/grpo --seconds 180 --nfe 250000 --seeds 3

Use an idle machine, because times are compared; there is one run per core. A comparison that was stopped continues
with the same command. A run is a folder of `twotemp grpo`, LIKELIHOOD-POLICY-SEED, that is evaluated where it
reaches the first of the two limits and again at the other, so both comparisons use the same trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import listed, table, with_interval
from experiments.command import side_by_side
from experiments.embedded import points
from twotemp import metrics
from twotemp.analysis import unique
from twotemp.report import grpo as report
from twotemp.rl.results import GreedyEvaluation

ROLLOUTS = {
    "ar": "ar",
    "ct": "ct:threshold=0.6",
    "tct": "tct:threshold=0.6,t_pos=0.1",
    "fork": "fork",
}
LIKELIHOODS = ("trajectory", "d1")
LABELS = {"ar": "AR", "ct": "CT", "tct": "**TCT**", "fork": "Fork"}
TASK = "countdown-3"
FIGURE = (
    "![Training reward, its standard deviation within a group, and accuracy against NFE](figures/grpo.png)\n\n"
    "The figure shows the trainings with the first seed, up to the later of the two limits."
)


@dataclass(frozen=True)
class ComparisonSize:
    """How long to train, with how many seeds, and on how many held-out problems to evaluate."""

    seconds: int  # of training, for the comparison at equal wall clock
    nfe: int  # of all rollouts, for the comparison at equal NFE
    seeds: int
    held_out: int
    likelihoods: Sequence[str] = LIKELIHOODS

    @property
    def limits(self) -> dict[str, int]:
        """Return the two limits; the keys are the fields of a StepRecord without `total_`."""
        return {"seconds": self.seconds, "nfe": self.nfe}

    def runs(self) -> Iterator[tuple[str, str, int]]:
        """Yield (likelihood, rollouts, seed) of every training."""
        for seed, likelihood, name in product(range(self.seeds), self.likelihoods, ROLLOUTS):
            yield likelihood, name, seed


def run(out: Path, size: ComparisonSize) -> dict[str, Any]:
    """Run all trainings and return the state of each at both limits."""

    def folder(likelihood: str, name: str, seed: int) -> Path:
        return out / f"{likelihood}-{name}-{seed}"

    def command(likelihood: str, name: str, seed: int, budget: str) -> list[str]:
        training = [
            "--task",
            TASK,
            "--policy",
            ROLLOUTS[name],
            "--likelihood",
            likelihood,
            "--seed",
            str(seed),
        ]
        limits = ["--budget", budget, "--held-out", str(size.held_out)]
        return ["grpo", *training, *limits, "--out", str(folder(likelihood, name, seed))]

    # First to whichever limit comes first, then to each of them, so that every run is evaluated at both.
    for budget in (f"{size.seconds}s,{size.nfe}nfe", f"{size.seconds}s", f"{size.nfe}nfe"):
        side_by_side(command(*key, budget) for key in size.runs())
    results = [
        {"equal": equal, "likelihood": likelihood, "name": name, "seed": seed}
        | reached(folder(likelihood, name, seed), equal, limit)
        for equal, limit in size.limits.items()
        for likelihood, name, seed in size.runs()
    ]
    first_seed = [folder(size.likelihoods[0], name, 0) for name in ROLLOUTS]
    report.write(first_seed, out / "report")
    return {"task": TASK, "seconds": size.seconds, "nfe": size.nfe, "runs": results}


def reached(folder: Path, equal: str, limit: int) -> dict[str, Any]:
    """Return the summary of a training up to the first step at which `limit` seconds or NFE were used."""
    run = report.read(folder)
    used = run.column(f"total_{equal}")
    steps = int(np.argmax(used >= limit)) + 1
    first, last = run.evaluations[0], next(e for e in run.evaluations if e.step == steps)
    return {
        "steps": steps,
        "seconds": round(run.records[steps - 1].total_seconds, 1),
        "rollouts_nfe": run.records[steps - 1].total_nfe,
        **{
            name: round(float(run.column(name)[:steps].mean()), digits)
            for name, digits in (("nfe", 2), ("reward_std", 3), ("zero_std", 3))
        },
        "questions": len(last.questions),
        "before": accuracies(first),
        "after": accuracies(last),
        # Threshold -> one digit per question; `against` compares these.
        "passed": {f"{p.threshold:g}": "".join(f"{x:.0f}" for x in p.passed) for p in last.points},
    }


def accuracies(evaluation: GreedyEvaluation) -> dict[str, float]:
    """Return threshold -> accuracy in %."""
    return {f"{point.threshold:g}": round(100 * point.accuracy, 1) for point in evaluation.points}


# --- blocks ---------------------------------------------------------------------------------------------------


def groups(result: dict[str, Any]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Return the runs grouped by (kind of limit, likelihood, rollouts): one run per seed."""
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in result["runs"]:
        grouped.setdefault((run["equal"], run["likelihood"], run["name"]), []).append(run)
    return grouped


def render(result: dict[str, Any]) -> str:
    """Return the table of means over seeds (for accuracies also the range), the differences and the figure."""
    thresholds = list(result["runs"][0]["after"])

    def mean(runs: Sequence[dict[str, Any]], name: str, digits: int) -> str:
        return f"{np.mean([run[name] for run in runs]):,.{digits}f}"

    def spread(runs: Sequence[dict[str, Any]], threshold: str) -> str:
        values = [run["after"][threshold] for run in runs]
        return f"{np.mean(values):.1f} ({min(values):.1f}–{max(values):.1f})"

    rows = [
        [
            {"seconds": f"{result['seconds']} s", "nfe": f"{result['nfe']:,} NFE"}[equal],
            f"`{likelihood}`",
            LABELS[name],
            mean(runs, "steps", 0),
            mean(runs, "nfe", 1),
            mean(runs, "reward_std", 3),
            f"{100 * np.mean([run['zero_std'] for run in runs]):.0f} %",
            *(spread(runs, threshold) for threshold in thresholds),
        ]
        for (equal, likelihood, name), runs in groups(result).items()
    ]
    first = result["runs"][0]
    before = listed([f"{value:.1f} % at λ = {threshold}" for threshold, value in first["before"].items()])
    heads = ["limit", "likelihood", "rollouts", "steps", "NFE per rollout", "reward std in a group"]
    heads += ["groups without signal"]
    heads += [f"λ = {threshold}" for threshold in thresholds]
    seeds = len({run["seed"] for run in result["runs"]})
    return (
        f"The last columns are the accuracy of greedy CT with threshold λ on {first['questions']} test problems of "
        f"{result['task']}, in %: the mean of {seeds} seeds (lowest–highest). Before training it is "
        f"{before}.\n\n{table(heads, rows, len(heads) - 3)}\n\n{against(result)}\n\n{FIGURE}"
    )


def difference(
    result: dict[str, Any], equal: str, likelihood: str, name: str, threshold: str = "0.6"
) -> dict[str, float]:
    """Return the accuracy after TCT rollouts minus that after another kind, paired by question.

    Args:
        result: the result of `run`.
        equal: the kind of limit, "seconds" or "nfe".
        likelihood: the likelihood that was trained with.
        name: the other kind of rollouts.
        threshold: the threshold of the evaluation.

    Returns:
        The difference in percentage points with its interval; a question counts with its mean over seeds.
    """
    ours, theirs = (
        np.mean(
            [
                [int(digit) for digit in run["passed"][threshold]]
                for run in groups(result)[equal, likelihood, kind]
            ],
            axis=0,
        )
        for kind in ("tct", name)
    )
    return points(metrics.paired_bootstrap(ours, theirs))


def against(result: dict[str, Any]) -> str:
    """Return lists of the differences between TCT and the other rollouts, at every stored threshold."""
    grouped = groups(result)
    parts = []
    for threshold in result["runs"][0]["passed"]:
        lines = []
        for equal, likelihood in unique((equal, likelihood) for equal, likelihood, _ in grouped):
            rivals = [name for name in ("ct", "fork", "ar") if (equal, likelihood, name) in grouped]
            differences = [
                f"{with_interval(difference(result, equal, likelihood, name, threshold))} over {LABELS[name]}"
                for name in rivals
            ]
            limit = "time" if equal == "seconds" else "NFE"
            lines.append(f"- Equal {limit}, `{likelihood}` likelihood: {listed(differences)}.")
        head = (
            f"Gain in accuracy of TCT rollouts over other rollouts at λ = {threshold}, in percentage points (95 % "
            "intervals over questions, not over trainings):"
        )
        parts.append(f"{head}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def short(result: dict[str, Any]) -> str:
    """Return one paragraph about the first likelihood at equal training time and λ = 0.6."""
    likelihood = result["runs"][0]["likelihood"]
    means = {
        LABELS[name].strip("*"): np.mean([run["after"]["0.6"] for run in runs])
        for (equal, l, name), runs in groups(result).items()
        if (equal, l) == ("seconds", likelihood)
    }
    before = result["runs"][0]["before"]["0.6"]
    after = listed([f"{value:.0f} % with {name} rollouts" for name, value in means.items()])
    seeds = len({run["seed"] for run in result["runs"]})
    gap = difference(result, "seconds", likelihood, "ct")
    verdict = "" if gap["low"] > 0 else ", which is not significantly different from zero"
    return (
        f"We train with GRPO for {result['seconds']} seconds on one core with each kind of rollout, then evaluate "
        f"greedy CT (λ = 0.6) on {result['runs'][0]['questions']} test problems of {result['task']}. The accuracy is "
        f"{before:.0f} % before training and, as the mean of {seeds} seeds, {after}. The difference between TCT "
        f"and CT rollouts is {with_interval(gap)} percentage points{verdict}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/grpo"))
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--nfe", type=int, default=250_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--likelihoods", default=",".join(LIKELIHOODS))
    arguments = parser.parse_args()
    likelihoods = arguments.likelihoods.split(",")
    size = ComparisonSize(arguments.seconds, arguments.nfe, arguments.seeds, arguments.held_out, likelihoods)
    print(render(run(arguments.out, size)))
