"""Tune every method on validation problems, then measure pass@k and the pass rate at equal NFE on test problems.

    python -m experiments.frontier --tasks countdown-3,programs-1 --questions 200 --seeds 3

All candidates of a method (T_token, T_pos, lambda) are drawn on the same validation problems, and the most
promising one for pass@16 is drawn on test problems with several seeds. A question's rate is its mean over seeds;
intervals are paired over questions. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import signed, table, with_interval
from experiments.command import evaluated
from experiments.embedded import MODEL, SHOWN, points
from twotemp import metrics
from twotemp.analysis import GradedCell, unique
from twotemp.policies import spell
from twotemp.tuning import Measurement, expand, expected_scores, policy_distances

# Task -> share of the test questions that are used, and the number of validation questions. The shares differ because
# a sample of words-3 costs thirty times as much as one of countdown-3.
TASKS = {
    "countdown-3": (1.0, 40),
    "countdown-4": (1.0, 40),
    "programs-1": (0.6, 24),
    "programs-2": (0.6, 16),
    "words-2": (0.4, 8),
    "words-3": (0.4, 6),
}
# Method -> its candidates, expanded by `twotemp.tuning`. No paper describes the methods in UNPUBLISHED.
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
# (method, rival, k, source and claim); k = 0 means at the NFE of EQUAL samples of AR.
EQUAL = 4
STATEMENTS = (
    ("LC", "TLC", 1, "the paper: LC is ahead with one sample"),
    ("TLC", "LC", 64, "the paper: TLC is ahead with many samples"),
    ("TCT", "CT", 64, "the paper: TCT is ahead of CT with many samples"),
    ("Fork", "CT", 64, "Fork-dLLM: Fork is ahead of an equally tuned CT"),
    ("Fork", "TCT", 64, "Fork-dLLM: Fork is ahead of TCT"),
    ("TPP", "LC", 64, "TPP: choosing positions before drawing tokens is ahead of LC with many samples"),
    ("EGI", "AR", 64, "EGI: EGI is ahead of AR with many samples"),
    ("TCT", "AR", 0, "the paper: TCT is ahead of AR at equal NFE"),
    ("TCT", "CT", 0, "the paper: TCT is ahead of CT at equal NFE"),
    ("EB", "TCT", 0, "observed here: EB is ahead of TCT at equal NFE"),
    ("EB", "TCT", 64, "observed here: EB is ahead of TCT with many samples"),
    ("tempered TPP", "TPP", 64, "not published: tempering helps TPP"),
    ("tempered EGI", "EGI", 64, "not published: tempering helps EGI"),
    ("tempered Fork", "Fork", 64, "not published: tempering helps Fork"),
    ("tempered Fork", "TCT", 64, "not published: TCT with the leftmost fallback is ahead of TCT"),
)
GOAL = 16
QUESTIONS = 24  # for a task with share 1
BOUGHT = (1, 4, 16)  # samples of AR whose NFE every method may spend


def tuned(grid: Path, task: str, methods: Mapping[str, str], questions: int, model: str) -> dict[str, str]:
    """Return the most promising candidate of each method for pass@GOAL on validation problems.

    A candidate's estimate is smoothed with its neighbors' results.

    Args:
        grid: the run directory of the samples.
        task: the name of the task.
        methods: method -> its candidates, expanded by `twotemp.tuning`.
        questions: validation questions.
        model: the name of the model.
    """
    candidates = {name: expand([spec]) for name, spec in methods.items()}
    specs = unique(spell(policy) for policies in candidates.values() for policy in policies)
    drawn = evaluated(grid, task, specs, n=GOAL, questions=questions, subset="validation", model=model)
    cells = {spell(cell.policy): cell for cell in drawn}
    winners = {}
    for name, policies in candidates.items():
        outcomes = {}
        for policy in policies:
            cell = cells[spell(policy)]
            passes = cell.passes
            outcomes[policy] = Measurement(
                passes[:, GOAL - 1], GOAL * cell.cost(), 0.0, passes[:, GOAL // 2 - 1]
            )
        estimates = expected_scores(outcomes, policy_distances)
        winners[name] = spell(max(policies, key=lambda policy: estimates[policy]))
    return winners


class MethodResult:
    """The pass rates of one method on the test problems of a task, averaged over seeds."""

    def __init__(self, cells: Sequence[GradedCell]) -> None:
        self.questions = list(cells[0].questions)
        rows = [[list(cell.questions).index(question) for question in self.questions] for cell in cells]
        self.passes = np.mean([cell.passes[row] for cell, row in zip(cells, rows)], axis=0)
        self.cost = float(np.mean([cell.cost() for cell in cells]))

    def at(self, k: int) -> Any:
        """Return pass@k of every question."""
        return self.passes[:, k - 1]

    def at_nfe(self, nfe: float) -> Any:
        """Return every question's pass rate at `nfe` per question; NaN where no number of samples costs that."""
        return metrics.at_budget(self.passes, self.cost, [nfe])[:, 0]

    def bought(self, nfe: float) -> float | None:
        """Return the mean pass rate in % at `nfe` per question, or None where it is NaN."""
        value = float(np.mean(self.at_nfe(nfe)))
        return None if math.isnan(value) else round(100 * value, 2)


def draw(
    out: Path, task: str, specs: Mapping[str, str], questions: int, samples: int, seeds: int, subset: str
) -> dict[str, MethodResult]:
    """Draw the tuned methods on test problems.

    Args:
        out: the folder of the run directories.
        task: the name of the task.
        specs: method -> its tuned policy.
        questions: test questions.
        samples: samples per question.
        seeds: the number of seeds, starting at 0.
        subset: the subset of the problems.

    Returns:
        Method -> its pass rates.
    """
    cells: list[GradedCell] = []
    for seed in range(seeds):
        folder = out / subset.replace(":", "-") / f"{task}-{seed}"
        size = {"n": samples, "questions": questions, "subset": subset, "seed": seed}
        cells += evaluated(folder, task, unique(specs.values()), **size)
    return {
        name: MethodResult([cell for cell in cells if spell(cell.policy) == spec])
        for name, spec in specs.items()
    }


def study(
    out: Path, task: str, questions: int, samples: int, seeds: int, subset: str
) -> tuple[dict[str, Any], dict[str, MethodResult]]:
    """Return the summary of a task as JSON, and its methods; see `draw` for the arguments."""
    # The run directory of the grid of `experiments.tuning`, which contains many of the same candidates.
    grid = out.parent / "tuning" / f"{task}-grid"
    specs = tuned(grid, task, METHODS, TASKS[task][1], MODEL)
    results = draw(out, task, specs, questions, samples, seeds, subset)
    ar_cost = results["AR"].cost
    methods = [
        {
            "name": name,
            "policy": specs[name],
            "nfe": round(method.cost, 2),
            "pass": {
                str(k): in_points(metrics.bootstrap(method.passes[:, k - 1 : k]))
                for k in SHOWN
                if k <= samples
            },
            "bought": {str(n): method.bought(n * ar_cost) for n in BOUGHT},
        }
        for name, method in results.items()
    ]
    size = {"questions": questions, "ar": round(ar_cost, 2)}
    summary = {
        "task": task,
        "subset": subset,
        **size,
        "methods": methods,
        "statements": compared([results], samples),
    }
    return summary, results


def in_points(estimate: metrics.Estimate) -> dict[str, float | None]:
    """Return an estimate in percentage points; too few questions have no interval, so its ends are None."""
    return {end: None if math.isnan(value) else value for end, value in points(estimate).items()}


def compared(tasks: Sequence[Mapping[str, MethodResult]], samples: int) -> list[dict[str, Any]]:
    """Return every claim as a paired difference over all questions of these tasks."""
    rows = []
    for first, second, k, claim in STATEMENTS:
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
        pair = {"first": first, "second": second, "k": at, "whose": claim}
        rows.append({**pair, **in_points(metrics.paired_bootstrap(a, b))})
    return rows


def run(
    out: Path,
    questions: int,
    samples: int,
    seeds: int,
    names: Sequence[str] = tuple(TASKS),
    subset: str = "test",
) -> dict[str, Any]:
    """Run the study of every task, and compare the methods over all questions together.

    Args:
        out: the folder of the run directories.
        questions: test questions of a task with share 1.
        samples: samples per question.
        seeds: the number of seeds.
        names: the tasks.
        subset: the subset of the problems.

    Returns:
        The studies and the claims over all questions, as JSON.
    """
    counts = {task: math.ceil(questions * TASKS[task][0]) for task in names}
    studies = [study(out, task, count, samples, seeds, subset) for task, count in counts.items()]
    together = compared([methods for _, methods in studies], samples)
    summaries = [summary for summary, _ in studies]
    return {"samples": samples, "seeds": seeds, "studies": summaries, "statements": together}


# --- blocks ---------------------------------------------------------------------------------------------------


def render(result: dict[str, Any]) -> str:
    """Return a table for each task: every method with its tuned parameters."""
    parts = [
        f"Every method is tuned for pass@{GOAL} on validation problems and measured on test problems with "
        f"{result['samples']} samples per question; rates are in %, averaged over {result['seeds']} seeds. The last "
        "three columns give the pass rate at the NFE of 1, 4 and 16 AR samples; a dash means that this pays for less "
        "than one sample, or for more samples than were drawn. Bold marks the best of a column, *italics* a method "
        "that has not been published."
    ]
    parts += [
        f"### {study['task']} ({study['questions']} questions)\n\n{_table(study)}"
        for study in result["studies"]
    ]
    return "\n\n".join(parts)


def _table(study: dict[str, Any]) -> str:
    """Return the table of one task."""
    ks = list(study["methods"][0]["pass"])
    columns = [
        *([method["pass"][k]["mean"] for method in study["methods"]] for k in ks),
        *([method["bought"][str(n)] for method in study["methods"]] for n in BOUGHT),
    ]
    best = [max((value for value in column if value is not None), default=None) for column in columns]
    rows = []
    for row, method in enumerate(study["methods"]):
        name = f"*{method['name']}*" if method["name"] in UNPUBLISHED else method["name"]
        values = [column[row] for column in columns]
        cells = [
            "–" if value is None else f"**{value:.1f}**" if value == highest else f"{value:.1f}"
            for value, highest in zip(values, best)
        ]
        rows.append([name, f"`{method['policy']}`", f"{method['nfe']:.1f}", *cells])
    heads = ["", "policy", "NFE", *(f"pass@{k}" for k in ks)]
    heads += [f"{n * study['ar']:.0f} NFE" for n in BOUGHT]
    return table(heads, rows, len(heads) - 2)


def statements(result: dict[str, Any]) -> str:
    """Return the table of claims: a difference per task and over all questions, and on how many tasks it holds."""
    names = [study["task"] for study in result["studies"]]
    rows = []
    for number, overall in enumerate(result["statements"]):
        per_task = [study["statements"][number] for study in result["studies"]]
        with_intervals = [gap for gap in per_task if gap["low"] is not None]
        cells = [difference(gap) for gap in (*per_task, overall)]
        held = sum(gap["low"] > 0 for gap in with_intervals)
        opposite = sum(gap["high"] < 0 for gap in with_intervals)
        rows.append(
            [
                overall["whose"],
                f"{overall['first']} − {overall['second']}, "
                + (f"k = {overall['k']}" if overall["k"] else f"NFE of {EQUAL} AR samples"),
                *cells,
                f"{held} / {opposite} of {len(with_intervals)}",
            ]
        )
    heads = ["claim", "difference", *names, "all questions", "tasks where it holds / the opposite holds"]
    note = (
        "Differences in percentage points with paired 95 % intervals; bold where the interval excludes 0, which is "
        "when a claim (or its opposite) counts as holding. Tasks with fewer than ten questions have no interval."
    )
    return f"{note}\n\n{table(heads, rows, len(names) + 2)}"


def difference(gap: dict[str, Any]) -> str:
    """Format a difference, in bold if its interval excludes 0."""
    if gap["mean"] is None:  # a budget that pays for more samples than were drawn
        return "–"
    if gap["low"] is None:
        return signed(gap["mean"])
    return f"**{with_interval(gap)}**" if gap["low"] > 0 or gap["high"] < 0 else with_interval(gap)


def ahead(result: dict[str, Any]) -> str:
    """Return a list with the best method of every task at each k, by its mean."""
    lines = []
    for study in result["studies"]:
        best = {
            k: max(study["methods"], key=lambda method, k=k: method["pass"][k]["mean"])
            for k in study["methods"][0]["pass"]
        }
        methods = ", ".join(
            f"{method['name']} at k = {k} ({method['pass'][k]['mean']:.1f} %)" for k, method in best.items()
        )
        lines.append(f"- {study['task']}: {methods}.")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--subset", default="test")
    parser.add_argument(
        "--questions", type=int, default=QUESTIONS, help="test questions of a task with share 1"
    )
    parser.add_argument("-n", type=int, default=64, help="samples per question")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"))
    arguments = parser.parse_args()
    tasks = arguments.tasks.split(",")
    result = run(arguments.out, arguments.questions, arguments.n, arguments.seeds, tasks, arguments.subset)
    print(f"{render(result)}\n\n{statements(result)}\n\n{ahead(result)}")
