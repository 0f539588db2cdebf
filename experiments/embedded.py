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


def passes(found: dict[str, Any], ks: Sequence[int] = ()) -> str:
    """The README's table: policies down, tasks across; ± is half the width of the interval. ks: one, and all that
    every policy has."""
    cells = {(one["task"], one["name"]): one for one in found["cells"]}
    tasks = unique(task for task, _ in cells)
    common = sorted(int(k) for k in set.intersection(*({*one["pass"]} for one in cells.values())))
    ks = [k for k in ks or (1, common[-1]) if k in common]
    best = {
        (task, k): max(one["pass"][str(k)]["mean"] for (t, _), one in cells.items() if t == task)
        for task in tasks
        for k in ks
    }

    def rate(one: dict[str, Any], k: int) -> str:
        p = one["pass"][str(k)]
        mean = f"{p['mean']:.1f}"
        bold = f"**{mean}**" if p["mean"] == best[one["task"], k] else mean
        return f"{bold} ± {(p['high'] - p['low']) / 2:.1f}"

    heading = [""] + [text for task in tasks for text in (task, *[""] * len(ks))]
    rows = [
        [label]
        + [
            text
            for task in tasks
            for text in (f"{cells[task, name]['nfe']:.1f}", *(rate(cells[task, name], k) for k in ks))
        ]
        for name, label in LABELS.items()
        if (tasks[0], name) in cells
    ]
    names = [""] + [text for _ in tasks for text in ("NFE", *(f"pass@{k}" for k in ks))]
    return table(names, [heading, *rows])


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
    """The paper's crossing, in words that follow the numbers."""

    def these(first: str, second: str, k: int | None) -> list[dict[str, Any]]:
        return [
            one
            for one in found["differences"]
            if (one["first"], one["second"]) == (first, second) and ("k" not in one or k == one["k"])
        ]

    most = max(one["k"] for one in found["differences"] if "k" in one)
    budgets = these("tct", "ar", None)
    won = sum(one["low"] > 0 for one in budgets)
    return [
        f"LC − TLC at k = 1 {where(these('lc', 'tlc', 1))}",
        f"TLC − LC at k = {most} {where(these('tlc', 'lc', most))}; TCT − CT {where(these('tct', 'ct', most))}",
        f"TCT − AR at equal NFE, from one sample of AR to half of them, is above 0 beyond its interval at {won} "
        f"of {len(budgets)} budgets",
    ]


def again(found: dict[str, Any]) -> str:
    """The README's sentence about other problems."""
    few = min(one["questions"] for one in found["cells"])
    return f"Again on {few} other problems per task: {'. '.join(crossing(found))}."


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
    """One answer on levels of which many samples solve nearly everything."""
    said = listed([f"{rate['mean']:.1f} % of {task}" for task, rate in found["easier"].items()])
    return f"- One answer of LC is right on {said}, the easier levels."


def measured(found: dict[str, Any]) -> str:
    one, many, cost = crossing(found)
    said = [
        f"- {one}: confidence is good for one answer.",
        f"- {many}: tempering gives the diversity back.",
        f"- {cost}.",
        easier(found),
    ]
    return "\n\n".join([sizes(found), passes(found), "\n".join(said)])


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
