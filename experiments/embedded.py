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

from experiments.blocks import listed, spelled, table, where
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
# Of these, 64 samples solve nearly all: they say how good one answer is, not who is more diverse.
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
    """Samples of all policies; of TCT, whose samples are cheap, as many as half of AR's function evaluations buy."""

    def evaluate(task: str, n: int, specs: Sequence[str]) -> list[GradedCell]:
        asked = {"questions": questions, "subset": subset, "model": model}
        return evaluated(out, task, specs, "--block", str(block(task)), n=n, **asked)

    found = [one for task in EASIER for one in evaluate(task, min(samples, EASIER_SAMPLES), ["lc"])]
    for task in tasks:
        cells = {one.policy.name: one for one in evaluate(task, samples, list(policies(task).values()))}
        many = samples
        # Again, because what a sample costs on average is another number with more of them.
        while (enough := math.ceil(samples / 2 * cells["ar"].cost() / cells["tct"].cost())) > many:
            many = enough
            (cells["tct"],) = evaluate(task, many, [policies(task)["tct"]])
        found += cells.values()
    return found


def summary(drawn: Sequence[GradedCell], samples: int) -> dict[str, Any]:
    """pass@k of every cell, and the paper's statements as paired differences, in points."""
    cells = {(one.task, one.policy.name): one for one in drawn}
    tasks = [task for task in unique(task for task, _ in cells) if task not in EASIER]
    differences = []
    for task in tasks:
        for first, second, k in AT_EQUAL_SAMPLES:
            at = (k or samples) - 1
            a, b = pair(cells[task, first], cells[task, second])
            found = metrics.paired_bootstrap(a.passes[:, at], b.passes[:, at])
            differences.append({"task": task, "first": first, "second": second, "k": at + 1, **points(found)})
        tct, ar = pair(cells[task, "tct"], cells[task, "ar"])
        for bought in (2**power for power in range(samples.bit_length()) if 2 ** (power + 1) <= samples):
            nfe = bought * ar.cost()
            values = metrics.at_budget(tct.passes, tct.cost(), [nfe])[:, 0]
            found = metrics.paired_bootstrap(values, ar.passes[:, bought - 1])
            what = {"task": task, "first": "tct", "second": "ar", "ar_samples": bought, "nfe": round(nfe, 1)}
            differences.append({**what, **points(found)})
    model = next(iter(cells.values())).model
    rows = [cell(one) for one in cells.values() if one.task in tasks]
    easier = {task: points(cells[task, "lc"].curve) for task in EASIER}
    return {
        "parameters": parameters(model),
        "blocks": BLOCKS_PER_ANSWER,
        "cells": rows,
        "easier": easier,
        "differences": differences,
    }


def parameters(model: str) -> int:
    with safe_open(locate(model) / "model.safetensors", framework="np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def pair(first: GradedCell, second: GradedCell) -> tuple[GradedCell, GradedCell]:
    found = shared(first, second)
    assert found is not None, "the two policies have no question in common"
    return found


def cell(one: GradedCell) -> dict[str, Any]:
    rates = {str(k): points(one.curve, k - 1) for k in SHOWN if k <= one.samples}
    return {**one.summary(), "name": one.policy.name, "nfe": round(one.cost(), 3), "pass": rates}


def points(estimate: Estimate, at: int = 0) -> dict[str, float]:
    return {end: round(100 * float(getattr(estimate, end)[at]), 2) for end in ("mean", "low", "high")}


# --- blocks ---------------------------------------------------------------------------------------------------


def rates(found: dict[str, Any], ks: Sequence[int]) -> tuple[dict[tuple[str, str], dict[str, Any]], Any]:
    """Return the cells by (task, policy), and a function that spells a cell's pass@k, the task's best in bold."""
    cells = {(cell["task"], cell["name"]): cell for cell in found["cells"]}
    best = {(task, k): 0.0 for task, _ in cells for k in ks}
    for (task, _), cell in cells.items():
        for k in ks:
            best[task, k] = max(best[task, k], cell["pass"][str(k)]["mean"])

    def spell(cell: dict[str, Any], k: int) -> str:
        mean = cell["pass"][str(k)]["mean"]
        return f"**{mean:.1f}**" if mean == best[cell["task"], k] else f"{mean:.1f}"

    return cells, spell


def most_samples(found: dict[str, Any]) -> int:
    """Return the largest k that every policy has."""
    return max(int(k) for k in set.intersection(*({*cell["pass"]} for cell in found["cells"])))


def passes(found: dict[str, Any], ks: Sequence[int] = ()) -> str:
    """Return the full table: a row per task and policy; ± is half the width of the interval."""
    ks = ks or (1, most_samples(found))
    cells, spell = rates(found, ks)

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


def short_table(found: dict[str, Any]) -> str:
    """Return the README's table: policies down, tasks across, pass@1 → pass@n in each cell."""
    ks = (1, most_samples(found))
    cells, spell = rates(found, ks)
    tasks = unique(task for task, _ in cells)
    rows = [
        [LABELS[name], *(" → ".join(spell(cells[task, name], k) for k in ks) for task in tasks)]
        for name in LABELS
        if (tasks[0], name) in cells
    ]
    return table([f"pass@1 → pass@{ks[1]}, %", *tasks], rows)


def differences(found: dict[str, Any]) -> str:
    """Every statement with its interval."""
    tasks = unique(one["task"] for one in found["differences"])
    rows: dict[str, dict[str, str]] = {}
    for one in found["differences"]:
        count = one.get("ar_samples")
        at = f"k = {one['k']}" if count is None else f"the NFE of {count} AR sample{'s' * (count > 1)}"
        title = f"{one['first'].upper()} − {one['second'].upper()}, {at}"
        mark = "" if one["low"] > 0 else " ·"
        rows.setdefault(title, {})[one["task"]] = spelled(one) + mark
    return table(["", *tasks], [[title, *(row[task] for task in tasks)] for title, row in rows.items()])


def crossing(found: dict[str, Any]) -> list[str]:
    """Return the paper's crossing as sentences that follow the numbers."""

    def pairs(first: str, second: str, k: int | None) -> list[dict[str, Any]]:
        return [
            pair
            for pair in found["differences"]
            if (pair["first"], pair["second"]) == (first, second) and ("k" not in pair or k == pair["k"])
        ]

    most = max(pair["k"] for pair in found["differences"] if "k" in pair)
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


def readme(found: dict[str, Any]) -> str:
    """Return the README's results: the table in small, and the crossing."""
    few = min(cell["questions"] for cell in found["cells"])
    head = (
        f"`tiny` ({found['parameters'] / 1e6:.1f} M parameters), {few} test questions per task, "
        f"{most_samples(found)} samples per question; [all settings](docs/results.md)."
    )
    return "\n\n".join(
        [head, short_table(found), "\n".join(f"- {line}" for line in crossing(found)), MEANING]
    )


def sizes(found: dict[str, Any]) -> str:
    few = min(one["questions"] for one in found["cells"])
    most = max(int(k) for one in found["cells"] for k in one["pass"])
    graders = ", ".join(unique(one["grader"] for one in found["cells"]))
    chosen = {(one["task"], one["name"]): parse(one["policy"]) for one in found["cells"]}
    temperatures = [
        f"{chosen[task, 'tlc'].t_pos:g} and {chosen[task, 'tct'].t_pos:g} ({task})"
        for task in unique(task for task, _ in chosen)
    ]
    thresholds = unique(f"{one.threshold:g}" for (_, name), one in chosen.items() if name == "ct")
    tokens = unique(f"{one.t_token:g}" for one in chosen.values())
    counts = unique(f"{one.k}" for (_, name), one in chosen.items() if name in ("ar", "lc", "tlc"))
    return (
        f"The embedded model ({found['parameters'] / 1e6:.1f} M parameters, LLaDA's layout) on its own tasks: "
        f"{few} test questions per task, {most} samples per question, {found['blocks']} blocks per answer, "
        f"T_token = {', '.join(tokens)}, K = {', '.join(counts)}, λ = {', '.join(thresholds)}; T_pos of TLC and TCT "
        f"{listed(temperatures)}; pass@k in %, 95 % intervals (Bayesian bootstrap over questions). "
        f"Graders: {graders}."
    )


def easier(found: dict[str, Any]) -> str:
    """Return LC's pass@1 on levels that many samples solve nearly completely."""
    levels = listed([f"{rate['mean']:.1f} % of {task}" for task, rate in found["easier"].items()])
    return f"A single LC sample solves {levels}, the easier levels."


def measured(found: dict[str, Any]) -> str:
    lines = "\n".join(f"- {line}" for line in [*crossing(found), easier(found)])
    return "\n\n".join([sizes(found), passes(found), lines, MEANING])


def claims(found: dict[str, Any]) -> str:
    note = "Points of pass rate, 95 % interval of the paired difference; · marks an interval that is not above 0."
    return f"{sizes(found)} {note}\n\n{differences(found)}"


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
    given = parser.parse_args()
    folder = given.out / given.subset.replace(":", "-")
    drawn = draw(
        folder,
        questions=given.questions,
        samples=given.n,
        subset=given.subset,
        tasks=given.tasks.split(","),
        model=given.model,
    )
    result = summary(drawn, given.n)
    print(f"\n{passes(result, SHOWN)}\n\n{claims(result)}")
