"""What tempered acceptance does to a model without a mask: `tiny-uniform`, whose canvases start as random tokens.

    python -m experiments.canvases --questions 100 -n 32

Every method is tuned for pass@16 on validation problems and measured on test problems. The claims are those that hold
for masks. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import table, where
from experiments.command import evaluated
from experiments.frontier import MethodResult, difference, in_points, tuned
from twotemp import metrics
from twotemp.policies import spell

MODEL, MASKED = "tiny-uniform", "tiny"
TASKS = ("countdown-3", "countdown-4")
# Method -> its candidates. EB is `diffusion-gemma`, T_token falling by half over at most 48 steps.
METHODS = {
    "EB": "diffusion-gemma:t_pos=0,entropy_bound=0.1|0.3,t_token=0.8|1",
    "EB, T_pos = 0.1": "diffusion-gemma:t_pos=0.1,entropy_bound=0.1|0.3,t_token=0.8|1",
    "EB, T_pos = 0.3": "diffusion-gemma:t_pos=0.3,entropy_bound=0.1|0.3,t_token=0.8|1",
    "EB, T_pos = 1": "diffusion-gemma:t_pos=1,entropy_bound=0.1|0.3,t_token=0.8|1",
    "EB, T_token fixed": "diffusion-gemma:t_pos=0,cooling=0,entropy_bound=0.1,t_token=0.5|0.8",
    "EB, T_token fixed, T_pos = 0.3": "diffusion-gemma:t_pos=0.3,cooling=0,entropy_bound=0.1,t_token=0.5|0.8",
    "LC": "lc:k=1,steps=24,cooling=0.5,t_token=0.8|1",
    "TLC": "tlc:k=1,steps=24,cooling=0.5,t_pos=0.3|1,t_token=0.8|1",
    "CT": "ct:steps=24,cooling=0.5,threshold=0.5|0.7,t_token=0.8",
    "TCT": "tct:steps=24,cooling=0.5,threshold=0.5|0.7,t_pos=0.05|0.15,t_token=0.8",
}
REFERENCE = f"LC of `{MASKED}`"  # the same network with masks
VALIDATION = 12  # questions
EQUAL = 8  # samples of EB whose NFE both methods of a claim may spend
# (method, rival, k); k = 0: at the NFE of EQUAL samples of EB, k = -1: with all samples.
STATEMENTS = (
    ("LC", "TLC", 1),
    ("TLC", "LC", -1),
    ("TCT", "CT", -1),
    ("EB", "EB, T_pos = 0.3", 1),
    ("EB, T_pos = 0.1", "EB", -1),
    ("EB, T_pos = 0.3", "EB", -1),
    ("EB, T_pos = 1", "EB", -1),
    ("EB, T_pos = 0.3", "EB", 0),
    ("EB", "EB, T_token fixed", 1),
    ("EB, T_token fixed", "EB", -1),
    ("EB, T_token fixed, T_pos = 0.3", "EB, T_token fixed", -1),
    (REFERENCE, "LC", 1),
    (REFERENCE, "EB", 1),
)


def run(out: Path, questions: int, samples: int, tasks: Sequence[str] = TASKS) -> dict[str, Any]:
    """Tune and measure every method.

    Args:
        out: the folder of the run directories.
        questions: test questions per task.
        samples: samples per question.
        tasks: the tasks.

    Returns:
        Pass rates and claims of every task, as JSON.
    """
    return {"samples": samples, "studies": [_study(out, task, questions, samples) for task in tasks]}


def _study(out: Path, task: str, questions: int, samples: int) -> dict[str, Any]:
    """Return the summary of one task; see `run`."""
    specs = tuned(out / f"{task}-validation", task, METHODS, VALIDATION, MODEL)
    size = {"n": samples, "questions": questions}
    drawn = evaluated(out / f"{task}-test", task, list(specs.values()), model=MODEL, **size)
    (masked,) = evaluated(out / f"{task}-masks", task, ["lc"], model=MASKED, **size)
    cells = {spell(cell.policy): cell for cell in drawn}
    methods = {name: MethodResult([cells[spec]]) for name, spec in specs.items()}
    methods[REFERENCE] = MethodResult([masked])
    ks = [k for k in (1, 4, 16, 64) if k < samples] + [samples]
    rows = [
        {
            "name": name,
            "policy": specs.get(name, "lc"),
            "nfe": round(method.cost, 2),
            "pass": {str(k): in_points(metrics.bootstrap(method.passes[:, k - 1 : k])) for k in ks},
        }
        for name, method in methods.items()
    ]
    statements = [_compared(methods, *statement, samples) for statement in STATEMENTS]
    return {"task": task, "questions": questions, "methods": rows, "statements": statements}


def _compared(
    methods: Mapping[str, MethodResult], first: str, second: str, k: int, samples: int
) -> dict[str, Any]:
    """Return the paired difference of two methods; see STATEMENTS."""
    a, b = methods[first], methods[second]
    at = samples if k < 0 else k
    nfe = EQUAL * methods["EB"].cost
    gap = metrics.paired_bootstrap(a.at(at), b.at(at)) if at else _at_nfe(a, b, nfe)
    return {"first": first, "second": second, "k": at, **in_points(gap)}


def _at_nfe(first: MethodResult, second: MethodResult, nfe: float) -> metrics.Estimate:
    return metrics.paired_bootstrap(np.asarray(first.at_nfe(nfe)), np.asarray(second.at_nfe(nfe)))


# --- blocks ---------------------------------------------------------------------------------------------------


def render(result: dict[str, Any]) -> str:
    """Return a table of pass@k for each task."""
    parts = [
        f"Tuned for pass@16 on {VALIDATION} validation problems; {result['samples']} samples for each of the test "
        "problems; rates in %, ± half the width of the 95 % interval."
    ]
    for study in result["studies"]:
        ks = list(study["methods"][0]["pass"])
        rows = [
            [
                method["name"],
                f"`{method['policy']}`",
                f"{method['nfe']:.1f}",
                *(
                    f"{rate['mean']:.1f} ± {(rate['high'] - rate['low']) / 2:.1f}"
                    for rate in method["pass"].values()
                ),
            ]
            for method in study["methods"]
        ]
        heads = ["", "policy", "NFE", *(f"pass@{k}" for k in ks)]
        parts.append(
            f"### {study['task']} ({study['questions']} questions)\n\n{table(heads, rows, 1 + len(ks))}"
        )
    return "\n\n".join(parts)


def sentences(result: dict[str, Any]) -> str:
    """Return the paper's claims as sentences, worded according to the numbers."""

    def ahead(first: str, second: str, k: int) -> str:
        pairs = (
            (study["task"], pair)
            for study in result["studies"]
            for pair in study["statements"]
            if (pair["first"], pair["second"], pair["k"]) == (first, second, k)
        )
        return where([{"task": task, **pair} for task, pair in pairs])

    most, warm = result["samples"], "EB, T_pos = 0.3"
    lines = [
        f"With one sample, LC is ahead of TLC {ahead('LC', 'TLC', 1)}, and EB is ahead of EB at T_pos = 0.3 "
        f"{ahead('EB', warm, 1)}.",
        f"With {most} samples, TLC is ahead of LC {ahead('TLC', 'LC', most)}, TCT is ahead of CT "
        f"{ahead('TCT', 'CT', most)}, and EB at T_pos = 0.3 is ahead of EB {ahead(warm, 'EB', most)}.",
        f"At the NFE of {EQUAL} EB samples, EB at T_pos = 0.3 is ahead of EB {ahead(warm, 'EB', 0)}.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def statements(result: dict[str, Any]) -> str:
    """Return the claims as sentences and as a table, a column per task."""
    studies = result["studies"]
    rows = []
    for number, claim in enumerate(studies[0]["statements"]):
        at = f"k = {claim['k']}" if claim["k"] else f"the NFE of {EQUAL} EB samples"
        cells = [difference(study["statements"][number]) for study in studies]
        rows.append([f"{claim['first']} − {claim['second']}, {at}", *cells])
    note = "Differences in percentage points with paired 95 % intervals; bold where the interval excludes 0."
    return f"{sentences(result)}\n\n{note}\n\n{table(['difference', *(study['task'] for study in studies)], rows)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("-n", type=int, default=32, help="samples per question")
    parser.add_argument("--out", type=Path, default=Path("runs/canvases"))
    arguments = parser.parse_args()
    result = run(arguments.out, arguments.questions, arguments.n, arguments.tasks.split(","))
    print(f"{render(result)}\n\n{statements(result)}")
