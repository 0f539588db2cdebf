"""Choose one answer from many: how well do scores separate right from wrong samples, and what does that gain?

    python -m experiments.verifier RUN      # a run of `twotemp eval --trace`

The AUC within a question (0.5 is chance), averaged over questions, and Best@k of four scores: the embedded
verifier, the denoiser's own pseudo-log-likelihood, the mean confidence of the tokens when they were committed, and
the number of samples with the same answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import listed, table, with_interval
from experiments.embedded import LABELS, TASKS, points
from twotemp import metrics, rewards
from twotemp.analysis import Ballot, Choice, GradedCell, add_ballots, read, selection_findings, unique
from twotemp.report import sentence, write_selection

CHOOSERS = ("ar", "ct", "tct")
TRAINED = ("majority", "orm", "weighted", "oracle")  # selectors that need nothing but the verifier
ALL = ("majority", "orm", "weighted", "confidence", "pll", "oracle")
SCORES: dict[str, Callable[[Ballot], np.ndarray]] = {
    "verifier": lambda ballot: ballot.reward,
    "pll": lambda ballot: ballot.likelihood,
    "confidence": lambda ballot: ballot.confidence,
    "majority": lambda ballot: (ballot.answers[:, None] == ballot.answers).sum(1) * (ballot.answers >= 0),
}
FIGURES = (
    "![Best@k and Best@NFE](figures/selection-best.png)",
    "![Entropy of the answers](figures/selection-entropy.png)",
)
NAMES = {"pll": "pseudo-log-likelihood", "majority": "agreement"}


def scored(cells: Sequence[GradedCell], *, traced: bool) -> list[GradedCell]:
    """Return the cells with the verifier's rewards; if they are traced, also with confidences and likelihoods."""
    return add_ballots(
        cells,
        reward_model=rewards.load("verifier", batch_size=256),
        confidence=traced,
        sampling_model=rewards.itself(batch_size=256) if traced else None,
    )


def aucs(cells: Sequence[GradedCell]) -> list[dict[str, Any]]:
    """Return the AUC of every score, averaged over the questions that have right and wrong samples."""
    rows = []
    for cell in cells:
        mixed = [ballot for ballot in cell.ballots if 0 < ballot.passed.sum() < len(ballot.passed)]
        auc = {
            name: points(metrics.bootstrap([metrics.auc(b.passed, score(b)) for b in mixed]))
            for name, score in SCORES.items()
            if mixed and len(score(mixed[0]))
        }
        rows.append({"task": cell.task, "name": cell.policy.name, "mixed": len(mixed), "auc": auc})
    return rows


def best(cells: Sequence[GradedCell], selectors: Sequence[str], k: int) -> list[dict[str, Any]]:
    """Return Best@k of every selector, and its gain over the majority."""
    rows = []
    for cell in cells:
        by_selector = {name: Choice(cell, name, (k,)).values[:, 0] for name in selectors}
        for name, values in by_selector.items():
            gain = metrics.paired_bootstrap(values, by_selector["majority"])
            key = {"task": cell.task, "name": cell.policy.name, "selector": name, "k": k}
            rows.append({**key, **points(metrics.bootstrap(values)), "gain": points(gain)})
    return rows


def summary(
    drawn: Sequence[GradedCell], selectors: Sequence[str], samples: int, report: Path
) -> dict[str, Any]:
    """Score the cells, write their selection report, and return the result as JSON.

    Args:
        drawn: graded cells; only those of the policies in CHOOSERS and of TASKS are used.
        selectors: the ways of choosing an answer; "pll" needs traced samples.
        samples: the largest k.
        report: the folder that the report is written to.
    """
    cells = [cell for cell in drawn if cell.policy.name in CHOOSERS and cell.task in TASKS]
    cells = scored(cells, traced="pll" in selectors)
    grid = tuple(1 << power for power in range(samples.bit_length()))
    choices = [Choice(cell, name, grid) for cell in cells for name in selectors]
    write_selection(choices, report)
    return {
        "questions": min(len(cell.questions) for cell in cells),
        "samples": samples,
        "unread": sum(cell.without_answer for cell in cells),
        "drawn": sum(cell.drawn for cell in cells),
        "auc": aucs(cells),
        "best": best(cells, selectors, samples),
        "sentences": [sentence(finding) for finding in selection_findings(choices)],
    }


# --- blocks ---------------------------------------------------------------------------------------------------


def render_auc(result: dict[str, Any]) -> str:
    """Return the table of AUCs: how often a right sample scores higher than a wrong one of the same question."""
    mixed = [
        row for row in result["auc"] if row["auc"]
    ]  # cells that have questions with right and wrong samples
    names = list(mixed[0]["auc"])
    rows = [
        [
            row["task"],
            LABELS[row["name"]],
            str(row["mixed"]),
            *(f"{row['auc'][name]['mean'] / 100:.2f}" for name in names),
        ]
        for row in mixed
    ]
    lowest = {
        task: min(row["auc"]["verifier"]["mean"] for row in mixed if row["task"] == task) / 100
        for task in unique(row["task"] for row in mixed)
    }
    heads = ["task", "policy", "questions", *(NAMES.get(name, name) for name in names)]
    minima = listed([f"{value:.2f} on {task}" for task, value in lowest.items()])
    return (
        f"AUC on {result['questions']} test problems per task with {result['samples']} samples each, averaged "
        "over the questions that have both right and wrong samples (their number is in the third column).\n\n"
        f"{table(heads, rows, len(names) + 1)}\n\n"
        f"The verifier's lowest AUC is {minima}."
    )


def render_best(result: dict[str, Any]) -> str:
    """Return the table of Best@k by selector, with the gain over the majority."""
    rows = result["best"]
    k = rows[0]["k"]
    names = unique(row["name"] for row in rows)
    lines = []
    for task in unique(row["task"] for row in rows):
        for selector in unique(row["selector"] for row in rows):
            by_policy = {
                row["name"]: row for row in rows if (row["task"], row["selector"]) == (task, selector)
            }
            cells = [
                f"{row['mean']:.1f}" + (f" [{with_interval(row['gain'])}]" if selector != "majority" else "")
                for row in (by_policy[name] for name in names)
            ]
            lines.append([task if selector == rows[0]["selector"] else "", selector, *cells])
    heads = ["task", "chosen by", *(LABELS[name] for name in names)]
    note = (
        f"Best@{k} in % on {result['questions']} test questions per task; in brackets, the difference to the "
        "majority in percentage points with its 95 % interval."
    )
    return f"{note}\n\n{table(heads, lines, len(names))}"


def findings(result: dict[str, Any]) -> str:
    """Return the findings about equal NFE as a list, and the figures."""
    share = 100 * result["unread"] / result["drawn"]
    lines = [f"- {sentence.replace(' -', ' −')}" for sentence in result["sentences"]]
    unread = f"- In {share:.0f} % of the samples the grader cannot find an answer."
    return "\n\n".join(["\n".join([*lines, unread]), *FIGURES])


if __name__ == "__main__":
    run = Path(sys.argv[1])
    result = summary(read([run]), ALL, 64, run / "selection")
    print(f"{render_auc(result)}\n\n{render_best(result)}\n\n{findings(result)}")
