"""Every method, tuned jointly on validation problems, then measured on test problems: pass@k, and pass at equal NFE.

    python -m experiments.frontier --tasks countdown-3,programs-1 --questions 200 --seeds 3

Each method's candidates (T_token, T_pos, lambda) are drawn on the same validation problems, and the one that promises
most for pass@16 is drawn on test problems with several seeds. A question's rate is its mean over seeds; intervals are
paired, over questions. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import signed, spelled, table
from experiments.command import evaluated
from experiments.embedded import SHOWN, points
from twotemp import metrics
from twotemp.analysis import GradedCell, unique
from twotemp.policies import spell
from twotemp.tuning import Measurement, expand, expected_scores, policy_distances

# The share of the test questions asked of each task, and its validation questions: a sample of words-3 costs thirty
# times one of countdown-3.
TASKS = {
    "countdown-3": (1.0, 40),
    "countdown-4": (1.0, 40),
    "programs-1": (0.6, 24),
    "programs-2": (0.6, 16),
    "words-2": (0.4, 8),
    "words-3": (0.4, 6),
}
# What is tried of each method; those in UNPUBLISHED are points of the frame that no paper has.
METHODS = {
    "AR": "ar:k=1",
    "LC": "tlc:k=1,t_pos=0",
    "TLC": "tlc:k=1,t_pos=0.5|1",
    "margin": "margin:k=1,t_pos=0",
    "entropy": "entropy:k=1,t_pos=0",
    "TPP": "tpp:k=1,t_pos=0",
    "EGI": "egi:k=1,t_pos=0",
    "CT": "tct:t_pos=0",
    "TCT": "tct:t_pos=0.1|0.3",
    "EB": "eb:k=1,t_pos=0,entropy_bound=0.1|0.3",
    "KLASS": "klass:k=1,t_pos=0",
    "Fork": "fork:t_pos=0",
    "tempered TPP": "tpp:k=1,t_pos=0.5|1",
    "tempered EGI": "egi:k=1,t_pos=0.5|1",
    "tempered Fork": "fork:t_pos=0.1|0.3",
    "soft AR": "soft-ar:k=1,t_pos=0.5|2",
}
UNPUBLISHED = ("tempered TPP", "tempered EGI", "tempered Fork", "soft AR")
# (who, against whom, at which k, whose statement it is); k = 0: at the NFE of EQUAL samples of AR
EQUAL = 4
STATEMENTS = (
    ("LC", "TLC", 1, "the paper: LC is ahead for one sample"),
    ("TLC", "LC", 64, "the paper: TLC is ahead for many"),
    ("TCT", "CT", 64, "the paper: TCT is ahead of CT for many"),
    ("Fork", "CT", 64, "Fork-dLLM: Fork is ahead of CT tuned as well"),
    ("Fork", "TCT", 64, "Fork-dLLM: Fork is ahead of TCT"),
    ("TPP", "LC", 64, "TPP: choosing before drawing is ahead of LC for many"),
    ("EGI", "AR", 64, "EGI: ahead of AR for many"),
    ("TCT", "AR", 0, "the paper: TCT is ahead of AR at equal NFE"),
    ("TCT", "CT", 0, "the paper: TCT is ahead of CT at equal NFE"),
    ("EB", "TCT", 0, "seen here: EB is ahead of TCT at equal NFE"),
    ("EB", "TCT", 64, "seen here: EB is ahead of TCT for many"),
    ("tempered TPP", "TPP", 64, "nobody's: tempering helps TPP"),
    ("tempered EGI", "EGI", 64, "nobody's: tempering helps EGI"),
    ("tempered Fork", "Fork", 64, "nobody's: tempering helps Fork"),
    ("tempered Fork", "TCT", 64, "nobody's: TCT with the leftmost fallback is ahead of TCT"),
)
GOAL = 16
QUESTIONS = 24  # of a task with share 1
BOUGHT = (1, 4, 16)  # samples of AR whose NFE the others may spend


def tuned(out: Path, task: str) -> dict[str, str]:
    """Return the candidate of each method with the highest expected score: all on the same validation problems, each
    smoothed with its neighbours. They are kept with the grid of `experiments.tuning`, which has many of them."""
    grid, questions = out.parent / "tuning" / f"{task}-grid", TASKS[task][1]
    candidates = {name: expand([spec]) for name, spec in METHODS.items()}
    specs = unique(spell(one) for some in candidates.values() for one in some)
    found_on_grid = evaluated(grid, task, specs, n=GOAL, questions=questions, subset="validation")
    cells = {spell(one.policy): one for one in found_on_grid}
    found = {}
    for name, some in candidates.items():
        outcomes = {}
        for one in some:
            cell = cells[spell(one)]
            passes = cell.passes
            outcomes[one] = Measurement(
                passes[:, GOAL - 1], GOAL * cell.cost(), 0.0, passes[:, GOAL // 2 - 1]
            )
        scores = expected_scores(outcomes, policy_distances)
        found[name] = spell(max(some, key=lambda one: scores[one]))
    return found


class Measured:
    """One method on the test problems of a task: pass@k per question, the mean of several seeds."""

    def __init__(self, cells: Sequence[GradedCell]) -> None:
        self.questions = list(cells[0].questions)
        rows = [[list(one.questions).index(question) for question in self.questions] for one in cells]
        self.passes = np.mean([one.passes[row] for one, row in zip(cells, rows)], axis=0)
        self.cost = float(np.mean([one.cost() for one in cells]))

    def at(self, k: int) -> Any:
        return self.passes[:, k - 1]

    def at_nfe(self, nfe: float) -> Any:
        """For so many NFE per question; NaN: less than one sample, or more than were drawn."""
        return metrics.at_budget(self.passes, self.cost, [nfe])[:, 0]

    def bought(self, nfe: float) -> float | None:
        value = float(np.mean(self.at_nfe(nfe)))
        return None if math.isnan(value) else round(100 * value, 2)


def draw(
    out: Path, task: str, specs: Mapping[str, str], questions: int, samples: int, seeds: int, subset: str
) -> dict[str, Measured]:
    cells: list[GradedCell] = []
    for seed in range(seeds):
        folder = out / subset.replace(":", "-") / f"{task}-{seed}"
        size = {"n": samples, "questions": questions, "subset": subset, "seed": seed}
        cells += evaluated(folder, task, unique(specs.values()), **size)
    return {
        name: Measured([one for one in cells if spell(one.policy) == spec]) for name, spec in specs.items()
    }


def study(
    out: Path, task: str, questions: int, samples: int, seeds: int, subset: str
) -> tuple[dict[str, Any], dict[str, Measured]]:
    """What is said of a task, and the methods behind it."""
    specs = tuned(out, task)
    found = draw(out, task, specs, questions, samples, seeds, subset)
    ar = found["AR"].cost
    methods = [
        {
            "name": name,
            "policy": specs[name],
            "nfe": round(one.cost, 2),
            "pass": {
                str(k): known(metrics.bootstrap(one.passes[:, k - 1 : k])) for k in SHOWN if k <= samples
            },
            "bought": {str(n): one.bought(n * ar) for n in BOUGHT},
        }
        for name, one in found.items()
    ]
    size = {"questions": questions, "ar": round(ar, 2)}
    said = {
        "task": task,
        "subset": subset,
        **size,
        "methods": methods,
        "statements": compared([found], samples),
    }
    return said, found


def known(estimate: metrics.Estimate) -> dict[str, float | None]:
    """In points; without an interval (None) where questions are too few for one."""
    return {end: None if math.isnan(value) else value for end, value in points(estimate).items()}


def compared(tasks: Sequence[Mapping[str, Measured]], samples: int) -> list[dict[str, Any]]:
    """Every statement, over all questions of these tasks."""
    found = []
    for first, second, k, whose in STATEMENTS:
        at = min(k, samples)
        a, b = (
            np.concatenate(
                [
                    methods[name].at(at) if at else methods[name].at_nfe(EQUAL * methods["AR"].cost)
                    for methods in tasks
                ]
            )
            for name in (first, second)
        )
        pair = {"first": first, "second": second, "k": at, "whose": whose}
        found.append({**pair, **known(metrics.paired_bootstrap(a, b))})
    return found


def run(
    out: Path,
    questions: int,
    samples: int,
    seeds: int,
    names: Sequence[str] = tuple(TASKS),
    subset: str = "test",
) -> dict[str, Any]:
    asked = {task: math.ceil(questions * TASKS[task][0]) for task in names}
    studies = [study(out, task, count, samples, seeds, subset) for task, count in asked.items()]
    together = compared([methods for _, methods in studies], samples)
    said = [one for one, _ in studies]
    return {"samples": samples, "seeds": seeds, "studies": said, "statements": together}


# --- blocks ---------------------------------------------------------------------------------------------------


def shown(found: dict[str, Any]) -> str:
    """A table for each task: every method at its tuned numbers."""
    said = [
        f"Test questions, {found['samples']} samples per question, the mean of "
        f"{found['seeds']} seeds; every method tuned on validation problems for pass@{GOAL}. Bold: the highest of a "
        "column. The last columns are what the NFE of 1, 4 and 16 samples of AR buy (–: not even one sample, or more "
        "than were drawn). *Italic*: points of the frame that nobody has published."
    ]
    said += [
        f"### {study['task']} ({study['questions']} questions)\n\n{_table(study)}"
        for study in found["studies"]
    ]
    return "\n\n".join(said)


def _table(study: dict[str, Any]) -> str:
    ks = list(study["methods"][0]["pass"])
    columns = [
        *([one["pass"][k]["mean"] for one in study["methods"]] for k in ks),
        *([one["bought"][str(n)] for one in study["methods"]] for n in BOUGHT),
    ]
    best = [max((value for value in column if value is not None), default=None) for column in columns]
    rows = []
    for row, one in enumerate(study["methods"]):
        name = f"*{one['name']}*" if one["name"] in UNPUBLISHED else one["name"]
        values = [column[row] for column in columns]
        cells = [
            "–" if value is None else f"**{value:.1f}**" if value == most else f"{value:.1f}"
            for value, most in zip(values, best)
        ]
        rows.append([name, f"`{one['policy']}`", f"{one['nfe']:.1f}", *cells])
    heads = ["", "policy", "NFE", *(f"pass@{k}" for k in ks)]
    heads += [f"{n * study['ar']:.0f} NFE" for n in BOUGHT]
    return table(heads, rows, len(heads) - 2)


def statements(found: dict[str, Any]) -> str:
    """Who is ahead of whom, task by task: what holds beyond its interval, and where the opposite does."""
    names = [study["task"] for study in found["studies"]]
    rows = []
    for number, one in enumerate(found["statements"]):
        here = [study["statements"][number] for study in found["studies"]]
        told = [d for d in here if d["low"] is not None]
        marks = [difference(d) for d in (*here, one)]
        held = sum(d["low"] > 0 for d in told)
        against = sum(d["high"] < 0 for d in told)
        rows.append(
            [
                one["whose"],
                f"{one['first']} − {one['second']}, "
                + (f"k = {one['k']}" if one["k"] else f"NFE of {EQUAL} AR samples"),
                *marks,
                f"{held} / {against} of {len(told)}",
            ]
        )
    heads = ["statement", "points", *names, "all questions", "tasks: holds / the opposite holds"]
    note = "Bold: the paired 95 % interval does not include 0. Tasks with fewer than ten questions have none."
    return f"{note}\n\n{table(heads, rows, len(names) + 2)}"


def difference(one: dict[str, Any]) -> str:
    if one["mean"] is None:  # a budget that buys more samples than were drawn
        return "–"
    if one["low"] is None:
        return signed(one["mean"])
    return f"**{spelled(one)}**" if one["low"] > 0 or one["high"] < 0 else spelled(one)


def ahead(found: dict[str, Any]) -> str:
    """The best method of every task at each k, by its mean."""
    lines = []
    for study in found["studies"]:
        first = {
            k: max(study["methods"], key=lambda one, k=k: one["pass"][k]["mean"])
            for k in study["methods"][0]["pass"]
        }
        said = ", ".join(
            f"{one['name']} at k = {k} ({one['pass'][k]['mean']:.1f} %)" for k, one in first.items()
        )
        lines.append(f"- {study['task']}: {said}.")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--subset", default="test")
    parser.add_argument("--questions", type=int, default=QUESTIONS, help="of a task with share 1")
    parser.add_argument("-n", type=int, default=64, help="samples per question")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"))
    given = parser.parse_args()
    result = run(given.out, given.questions, given.n, given.seeds, given.tasks.split(","), given.subset)
    print(f"{shown(result)}\n\n{statements(result)}\n\n{ahead(result)}")
