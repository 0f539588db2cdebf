"""GRPO on equal terms: four kinds of rollouts, each at equal wall clock and at equal NFE, with several seeds.

    python -m experiments.grpo --out runs/grpo --seconds 180 --nfe 250000 --seeds 3

Run it on an idle machine: wall clock is what is compared. One run on each core; stopped, the same command
continues. A run is a folder of `twotemp grpo`, LIKELIHOOD-POLICY-SEED, evaluated where it reaches the first of the
two limits and again at the other: both comparisons read the same trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import listed, spelled, table
from experiments.command import side_by_side
from experiments.embedded import points
from twotemp import metrics
from twotemp.analysis import unique
from twotemp.report import grpo as report
from twotemp.rl.evaluation import Checkup

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
    "![training reward, its standard deviation within a group, accuracy against NFE](figures/grpo.png)\n\n"
    "The figure shows the first seed, each training up to the later of the two limits."
)


@dataclass(frozen=True)
class Size:
    seconds: int  # of training, for the comparison at equal wall clock
    nfe: int  # of all rollouts, for the comparison at equal NFE
    seeds: int
    held_out: int
    likelihoods: Sequence[str] = LIKELIHOODS

    @property
    def limits(self) -> dict[str, int]:
        """What is equal -> how much of it. Keys are those of a StepRecord without `total_`."""
        return {"seconds": self.seconds, "nfe": self.nfe}

    def runs(self) -> Iterator[tuple[str, str, int]]:
        """(likelihood, rollouts, seed)"""
        for seed, likelihood, name in product(range(self.seeds), self.likelihoods, ROLLOUTS):
            yield likelihood, name, seed


def run(out: Path, size: Size) -> dict[str, Any]:
    """All trainings, and what had become of each at both limits."""

    def folder(likelihood: str, name: str, seed: int) -> Path:
        return out / f"{likelihood}-{name}-{seed}"

    def command(likelihood: str, name: str, seed: int, budget: str) -> list[str]:
        asked = ["--task", TASK, "--policy", ROLLOUTS[name], "--likelihood", likelihood, "--seed", str(seed)]
        limits = ["--budget", budget, "--held-out", str(size.held_out)]
        return ["grpo", *asked, *limits, "--out", str(folder(likelihood, name, seed))]

    # To the limit that comes first, whichever it is; then to each of them: one has been passed, the other has not.
    for budget in (f"{size.seconds}s,{size.nfe}nfe", f"{size.seconds}s", f"{size.nfe}nfe"):
        side_by_side(command(*one, budget) for one in size.runs())
    found = [
        {"equal": equal, "likelihood": likelihood, "name": name, "seed": seed}
        | reached(folder(likelihood, name, seed), equal, limit)
        for equal, limit in size.limits.items()
        for likelihood, name, seed in size.runs()
    ]
    shown = [folder(size.likelihoods[0], name, 0) for name in ROLLOUTS]
    report.write(shown, out / "report")
    return {"task": TASK, "seconds": size.seconds, "nfe": size.nfe, "runs": found}


def reached(folder: Path, equal: str, limit: int) -> dict[str, Any]:
    """A training up to the first step at which so many seconds or NFE were used up."""
    one = report.read(folder)
    used = one.column(f"total_{equal}")
    steps = int(np.argmax(used >= limit)) + 1
    first, last = one.evaluations[0], next(e for e in one.evaluations if e.step == steps)
    return {
        "steps": steps,
        "seconds": round(one.records[steps - 1].total_seconds, 1),
        "rollouts_nfe": one.records[steps - 1].total_nfe,
        **{
            name: round(float(one.column(name)[:steps].mean()), digits)
            for name, digits in (("nfe", 2), ("reward_std", 3), ("zero_std", 3))
        },
        "questions": len(last.questions),
        "before": accuracies(first),
        "after": accuracies(last),
        # By λ, question by question: what `against` compares.
        "passed": {f"{p.threshold:g}": "".join(f"{x:.0f}" for x in p.passed) for p in last.points},
    }


def accuracies(one: Checkup) -> dict[str, float]:
    return {f"{p.threshold:g}": round(100 * p.accuracy, 1) for p in one.points}


# --- blocks ---------------------------------------------------------------------------------------------------


def groups(found: dict[str, Any]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """(what is equal, likelihood, rollouts) -> its runs, one for each seed."""
    keys = unique((one["equal"], one["likelihood"], one["name"]) for one in found["runs"])
    return {
        key: [one for one in found["runs"] if (one["equal"], one["likelihood"], one["name"]) == key]
        for key in keys
    }


def shown(found: dict[str, Any]) -> str:
    """Means over seeds; of the accuracies also the lowest and the highest seed."""
    thresholds = list(found["runs"][0]["after"])

    def mean(some: Sequence[dict[str, Any]], name: str, digits: int) -> str:
        return f"{np.mean([one[name] for one in some]):,.{digits}f}"

    def spread(some: Sequence[dict[str, Any]], threshold: str) -> str:
        values = [one["after"][threshold] for one in some]
        return f"{np.mean(values):.1f} ({min(values):.1f}–{max(values):.1f})"

    rows = [
        [
            {"seconds": f"{found['seconds']} s", "nfe": f"{found['nfe']:,} NFE"}[equal],
            f"`{likelihood}`",
            LABELS[name],
            mean(some, "steps", 0),
            mean(some, "nfe", 1),
            mean(some, "reward_std", 3),
            f"{100 * np.mean([one['zero_std'] for one in some]):.0f} %",
            *(spread(some, threshold) for threshold in thresholds),
        ]
        for (equal, likelihood, name), some in groups(found).items()
    ]
    one = found["runs"][0]
    before = listed([f"{value:.1f} (λ = {threshold})" for threshold, value in one["before"].items()])
    heads = ["equal", "likelihood", "rollouts", "steps", "NFE a rollout", "std in a group", "no signal"]
    heads += [f"λ = {threshold}" for threshold in thresholds]
    seeds = len({one["seed"] for one in found["runs"]})
    return (
        f"{found['task']}, greedy CT on {one['questions']} test problems in %: {before} before training; after it "
        f"the mean of {seeds} seeds (lowest–highest).\n\n{table(heads, rows, len(heads) - 3)}\n\n"
        f"{against(found)}\n\n{FIGURE}"
    )


def difference(
    found: dict[str, Any], equal: str, likelihood: str, name: str, threshold: str = "0.6"
) -> dict[str, float]:
    """TCT minus another kind of rollouts: the same questions, each with the mean over seeds."""
    ours, theirs = (
        np.mean(
            [
                [int(digit) for digit in one["passed"][threshold]]
                for one in groups(found)[equal, likelihood, kind]
            ],
            axis=0,
        )
        for kind in ("tct", name)
    )
    return points(metrics.paired_bootstrap(ours, theirs))


def against(found: dict[str, Any]) -> str:
    """TCT against the others, at every λ of which answers were kept."""
    some = groups(found)
    said = []
    for threshold in found["runs"][0]["passed"]:
        lines = []
        for equal, likelihood in unique((equal, likelihood) for equal, likelihood, _ in some):
            rivals = [name for name in ("ct", "fork", "ar") if (equal, likelihood, name) in some]
            differences = [
                f"{name.upper()} {spelled(difference(found, equal, likelihood, name, threshold))}"
                for name in rivals
            ]
            what = "time" if equal == "seconds" else "NFE"
            lines.append(f"- Equal {what}, `{likelihood}`, TCT minus {'; '.join(differences)}.")
        head = f"At λ = {threshold}, points, 95 % interval over questions (not over trainings):"
        said.append(f"{head}\n\n" + "\n".join(lines))
    return "\n\n".join(said)


def short(found: dict[str, Any]) -> str:
    """Return one paragraph: equal wall clock, the first likelihood, λ = 0.6."""
    likelihood = found["runs"][0]["likelihood"]
    means = {
        LABELS[name].strip("*"): np.mean([one["after"]["0.6"] for one in some])
        for (equal, l, name), some in groups(found).items()
        if (equal, l) == ("seconds", likelihood)
    }
    before = found["runs"][0]["before"]["0.6"]
    after = listed([f"{value:.0f} % with {name} rollouts" for name, value in means.items()])
    seeds = len({one["seed"] for one in found["runs"]})
    ahead = difference(found, "seconds", likelihood, "ct")
    verdict = "" if ahead["low"] > 0 else ", which cannot be told from zero"
    return (
        f"{found['seconds']} seconds of GRPO on one core for each kind of rollout, then greedy CT (λ = 0.6) on "
        f"{found['runs'][0]['questions']} test problems of {found['task']}, mean of {seeds} seeds: {before:.0f} % "
        f"before training, {after}. TCT rollouts minus CT rollouts: {spelled(ahead)} points{verdict}."
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
    given = parser.parse_args()
    asked = Size(given.seconds, given.nfe, given.seeds, given.held_out, given.likelihoods.split(","))
    print(shown(run(given.out, asked)))
