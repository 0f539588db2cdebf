"""Does the paper's effect hold on the embedded model, and again on other problems?

    python -m experiments.embedded                    # the first 500 test problems of each task
    python -m experiments.embedded --subset test:7    # 500 others, drawn with seed 7

64 samples per question at T_token = 0.8, paired bootstrap over questions. Every line is one claim: the difference in
points, its 95 % interval, and whether the interval is above 0. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from experiments.blocks import listed, table, where, with_interval
from experiments.command import evaluated
from twotemp import metrics
from twotemp.analysis import GradedCell, shared, unique
from twotemp.analysis.compare import AT_EQUAL_SAMPLES
from twotemp.evaluation.comparison import BLOCKS_PER_ANSWER, T_POS, block, policies
from twotemp.metrics import Estimate
from twotemp.models.load import locate
from twotemp.policies import parse

MODEL = "tiny"
TASKS = tuple(T_POS)
# 64 samples solve nearly all of these: they measure the quality of one answer, not diversity.
EASIER, EASIER_SAMPLES = ("countdown-3", "words-2", "programs-1"), 8
LABELS = {"ar": "AR", "lc": "LC", "tlc": "**TLC**", "ct": "CT", "tct": "**TCT**"}
SHOWN = (1, 4, 16, 64)


def draw(
    out: Path,
    *,
    questions: int,
    samples: int,
    subset: str = "test",
    tasks: Sequence[str] = TASKS,
    model: str = MODEL,
) -> list[GradedCell]:
    """Draw the samples of all policies and return their graded cells.

    TCT's samples are cheap, so TCT gets as many as half of AR's function evaluations pay for.

    Args:
        out: the run directory.
        questions: questions per task.
        samples: samples per question.
        subset: the subset of the problems.
        tasks: the tasks to compare policies on; LC also runs on the easier ones.
        model: the name of the model.
    """

    def evaluate(task: str, n: int, specs: Sequence[str]) -> list[GradedCell]:
        size = {"questions": questions, "subset": subset, "model": model}
        return evaluated(out, task, specs, "--block", str(block(task)), n=n, **size)

    drawn = [cell for task in EASIER for cell in evaluate(task, min(samples, EASIER_SAMPLES), ["lc"])]
    for task in tasks:
        cells = {cell.policy.name: cell for cell in evaluate(task, samples, list(policies(task).values()))}
        count = samples
        # A loop, because the mean cost of a sample changes as more of them are drawn.
        while (enough := math.ceil(samples / 2 * cells["ar"].cost() / cells["tct"].cost())) > count:
            count = enough
            (cells["tct"],) = evaluate(task, count, [policies(task)["tct"]])
        drawn += cells.values()
    return drawn


def summary(drawn: Sequence[GradedCell], samples: int) -> dict[str, Any]:
    """Return pass@k of every cell, and the paper's claims as paired differences in points, as JSON."""
    cells = {(graded.task, graded.policy.name): graded for graded in drawn}
    tasks = [task for task in unique(task for task, _ in cells) if task not in EASIER]
    differences = []
    for task in tasks:
        for first, second, k in AT_EQUAL_SAMPLES:
            at = (k or samples) - 1
            a, b = pair(cells[task, first], cells[task, second])
            gap = metrics.paired_bootstrap(a.passes[:, at], b.passes[:, at])
            differences.append({"task": task, "first": first, "second": second, "k": at + 1, **points(gap)})
        tct, ar = pair(cells[task, "tct"], cells[task, "ar"])
        for bought in (2**power for power in range(samples.bit_length()) if 2 ** (power + 1) <= samples):
            nfe = bought * ar.cost()
            values = metrics.at_budget(tct.passes, tct.cost(), [nfe])[:, 0]
            gap = metrics.paired_bootstrap(values, ar.passes[:, bought - 1])
            pairing = {
                "task": task,
                "first": "tct",
                "second": "ar",
                "ar_samples": bought,
                "nfe": round(nfe, 1),
            }
            differences.append({**pairing, **points(gap)})
    model = next(iter(cells.values())).model
    rows = [cell_summary(graded) for graded in cells.values() if graded.task in tasks]
    easier = {task: points(cells[task, "lc"].curve) for task in EASIER}
    return {
        "parameters": parameters(model),
        "blocks": BLOCKS_PER_ANSWER,
        "cells": rows,
        "easier": easier,
        "differences": differences,
    }


def parameters(model: str) -> int:
    """Return the number of weights in a model's checkpoint."""
    with safe_open(locate(model) / "model.safetensors", framework="np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def pair(first: GradedCell, second: GradedCell) -> tuple[GradedCell, GradedCell]:
    """Return the two cells reduced to the questions that both have."""
    cells = shared(first, second)
    assert cells is not None, "the two policies have no question in common"
    return cells


def cell_summary(cell: GradedCell) -> dict[str, Any]:
    """Return a cell as JSON: its settings, the NFE of a sample, and pass@k for the k in SHOWN."""
    rates = {str(k): points(cell.curve, k - 1) for k in SHOWN if k <= cell.samples}
    return {**cell.summary(), "name": cell.policy.name, "nfe": round(cell.cost(), 3), "pass": rates}


def points(estimate: Estimate, at: int = 0) -> dict[str, float]:
    """Return one entry of an estimate and its interval in percentage points."""
    return {end: round(100 * float(getattr(estimate, end)[at]), 2) for end in ("mean", "low", "high")}


# --- blocks ---------------------------------------------------------------------------------------------------


def rates(result: dict[str, Any], ks: Sequence[int]) -> tuple[dict[tuple[str, str], dict[str, Any]], Any]:
    """Return the cells by (task, policy), and a function that spells a cell's pass@k, the task's best in bold."""
    cells = {(cell["task"], cell["name"]): cell for cell in result["cells"]}
    best = {(task, k): 0.0 for task, _ in cells for k in ks}
    for (task, _), cell in cells.items():
        for k in ks:
            best[task, k] = max(best[task, k], cell["pass"][str(k)]["mean"])

    def spell(cell: dict[str, Any], k: int) -> str:
        mean = cell["pass"][str(k)]["mean"]
        return f"**{mean:.1f}**" if mean == best[cell["task"], k] else f"{mean:.1f}"

    return cells, spell


def most_samples(result: dict[str, Any]) -> int:
    """Return the largest k that every policy has."""
    return max(int(k) for k in set.intersection(*({*cell["pass"]} for cell in result["cells"])))


def passes(result: dict[str, Any], ks: Sequence[int] = ()) -> str:
    """Return the full table: a row per task and policy; ± is half the width of the interval."""
    ks = ks or (1, most_samples(result))
    cells, spell = rates(result, ks)

    def rate(cell: dict[str, Any], k: int) -> str:
        interval = cell["pass"][str(k)]
        return f"{spell(cell, k)} ± {(interval['high'] - interval['low']) / 2:.1f}"

    rows = [
        [task, LABELS[name], f"{cells[task, name]['nfe']:.1f}", *(rate(cells[task, name], k) for k in ks)]
        for task in unique(task for task, _ in cells)
        for name in LABELS
        if (task, name) in cells
    ]
    return table(["task", "policy", "NFE", *(f"pass@{k}" for k in ks)], rows, numbers=1 + len(ks))


def short_table(result: dict[str, Any]) -> str:
    """Return the README's table: policies down, tasks across, pass@1 → pass@n in each cell."""
    ks = (1, most_samples(result))
    cells, spell = rates(result, ks)
    tasks = unique(task for task, _ in cells)
    rows = [
        [LABELS[name], *(" → ".join(spell(cells[task, name], k) for k in ks) for task in tasks)]
        for name in LABELS
        if (tasks[0], name) in cells
    ]
    return table([f"pass@1 → pass@{ks[1]}, %", *tasks], rows)


def differences(result: dict[str, Any]) -> str:
    """Return the table of all claims: a row per pair of policies and size, a column per task."""
    tasks = unique(pair["task"] for pair in result["differences"])
    rows: dict[str, dict[str, str]] = {}
    for pair in result["differences"]:
        count = pair.get("ar_samples")
        at = f"k = {pair['k']}" if count is None else f"the NFE of {count} AR sample{'s' * (count > 1)}"
        title = f"{pair['first'].upper()} − {pair['second'].upper()}, {at}"
        mark = "" if pair["low"] > 0 else " ·"
        rows.setdefault(title, {})[pair["task"]] = with_interval(pair) + mark
    return table(["", *tasks], [[title, *(row[task] for task in tasks)] for title, row in rows.items()])


def crossing(result: dict[str, Any]) -> list[str]:
    """Return the paper's crossing as sentences, worded according to the numbers."""

    def pairs(first: str, second: str, k: int | None) -> list[dict[str, Any]]:
        return [
            pair
            for pair in result["differences"]
            if (pair["first"], pair["second"]) == (first, second) and ("k" not in pair or k == pair["k"])
        ]

    most = max(pair["k"] for pair in result["differences"] if "k" in pair)
    budgets = pairs("tct", "ar", None)
    won = sum(pair["low"] > 0 for pair in budgets)
    return [
        f"With one sample, LC is ahead of TLC {where(pairs('lc', 'tlc', 1))}.",
        f"With {most} samples, TLC is ahead of LC {where(pairs('tlc', 'lc', most))}, and TCT is ahead of CT "
        f"{where(pairs('tct', 'ct', most))}.",
        f"At equal NFE, TCT is ahead of AR at {won} of the {len(budgets)} budgets compared (from 1 AR sample to "
        f"{most // 2}).",
    ]


MEANING = "A policy is ahead where the 95 % interval of the paired difference is above zero."


def readme(result: dict[str, Any]) -> str:
    """Return the README's results: the short table and the crossing."""
    questions = min(cell["questions"] for cell in result["cells"])
    head = (
        f"`tiny` ({result['parameters'] / 1e6:.1f} M parameters), {questions} test questions per task, "
        f"{most_samples(result)} samples per question; [all settings](docs/results.md)."
    )
    return "\n\n".join(
        [head, short_table(result), "\n".join(f"- {line}" for line in crossing(result)), MEANING]
    )


def sizes(result: dict[str, Any]) -> str:
    """Return a paragraph with the settings of the comparison."""
    questions = min(cell["questions"] for cell in result["cells"])
    samples = max(int(k) for cell in result["cells"] for k in cell["pass"])
    graders = ", ".join(unique(cell["grader"] for cell in result["cells"]))
    specs = {(cell["task"], cell["name"]): parse(cell["policy"]) for cell in result["cells"]}
    temperatures = [
        f"{specs[task, 'tlc'].t_pos:g} and {specs[task, 'tct'].t_pos:g} on {task}"
        for task in unique(task for task, _ in specs)
    ]
    thresholds = unique(f"{policy.threshold:g}" for (_, name), policy in specs.items() if name == "ct")
    tokens = unique(f"{policy.t_token:g}" for policy in specs.values())
    budgets = unique(f"{policy.k}" for (_, name), policy in specs.items() if name in ("ar", "lc", "tlc"))
    return (
        f"The embedded model ({result['parameters'] / 1e6:.1f} M parameters, LLaDA's layout) on its own tasks: "
        f"{questions} test questions per task, {samples} samples per question, {result['blocks']} blocks per answer, "
        f"T_token = {', '.join(tokens)}, K = {', '.join(budgets)}, λ = {', '.join(thresholds)}. T_pos of TLC and "
        f"TCT: {listed(temperatures)}. All pass rates are in %, with 95 % intervals from a Bayesian bootstrap over "
        f"questions. Graders: {graders}."
    )


def easier(result: dict[str, Any]) -> str:
    """Return a sentence with LC's pass@1 on the levels that 64 samples solve nearly completely."""
    levels = listed([f"{rate['mean']:.1f} % of {task}" for task, rate in result["easier"].items()])
    return f"On the easier levels, a single LC sample solves {levels}."


def measured(result: dict[str, Any]) -> str:
    """Return the block with the settings, the table of pass rates and the findings."""
    lines = "\n".join(f"- {line}" for line in [*crossing(result), easier(result)])
    return "\n\n".join([sizes(result), passes(result), lines, MEANING])


def claims(result: dict[str, Any]) -> str:
    """Return the block with the settings and the table of all claims."""
    note = (
        "Each entry is a difference in percentage points with the 95 % interval of the paired difference; "
        "· marks an interval that is not entirely above 0."
    )
    return f"{sizes(result)} {note}\n\n{differences(result)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--subset", default="test")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("-n", type=int, default=64, help="samples per question")
    parser.add_argument("--out", type=Path, default=Path("runs/embedded"))
    arguments = parser.parse_args()
    folder = arguments.out / arguments.subset.replace(":", "-")
    drawn = draw(
        folder,
        questions=arguments.questions,
        samples=arguments.n,
        subset=arguments.subset,
        tasks=arguments.tasks.split(","),
        model=arguments.model,
    )
    result = summary(drawn, arguments.n)
    print(f"\n{passes(result, SHOWN)}\n\n{claims(result)}")
