"""One answer from many: is a right sample told from a wrong one of the same question, and what does that buy?

    python -m experiments.verifier RUN      # a run of `twotemp eval --trace`

The mean over questions of the AUC (0.5 is chance), and Best@k: of the embedded verifier, of the denoiser's own
pseudo-log-likelihood, of the mean confidence of the tokens as they were written, and of how many samples agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import listed, spelled, table
from experiments.embedded import LABELS, TASKS, points
from twotemp import metrics, rewards
from twotemp.analysis import Ballot, Choice, GradedCell, add_ballots, read, selection_findings, unique
from twotemp.report import write_selection
from twotemp.report.sentences import sentence

CHOOSERS = ("ar", "ct", "tct")
TRAINED = ("majority", "orm", "weighted", "oracle")  # what needs the verifier alone
ALL = ("majority", "orm", "weighted", "confidence", "pll", "oracle")
JUDGES: dict[str, Callable[[Ballot], np.ndarray]] = {
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
    """The same with rewards; where they were traced, with confidences and likelihoods."""
    return add_ballots(
        cells,
        reward_model=rewards.load("verifier", batch_size=256),
        confidence=traced,
        itself=rewards.itself(batch_size=256) if traced else None,
    )


def aucs(cells: Sequence[GradedCell]) -> list[dict[str, Any]]:
    """Within a question, mean over the questions that have right and wrong samples."""
    found = []
    for one in cells:
        mixed = [ballot for ballot in one.ballots if 0 < ballot.passed.sum() < len(ballot.passed)]
        judged = {
            name: points(metrics.bootstrap([metrics.auc(b.passed, score(b)) for b in mixed]))
            for name, score in JUDGES.items()
            if mixed and len(score(mixed[0]))
        }
        found.append({"task": one.task, "name": one.policy.name, "mixed": len(mixed), "auc": judged})
    return found


def best(cells: Sequence[GradedCell], selectors: Sequence[str], k: int) -> list[dict[str, Any]]:
    """Best@k of every selector, and what it is above the majority."""
    found = []
    for one in cells:
        values = {name: Choice(one, name, (k,)).values[:, 0] for name in selectors}
        for name, here in values.items():
            gain = metrics.paired_bootstrap(here, values["majority"])
            what = {"task": one.task, "name": one.policy.name, "selector": name, "k": k}
            found.append({**what, **points(metrics.bootstrap(here)), "gain": points(gain)})
    return found


def summary(
    drawn: Sequence[GradedCell], selectors: Sequence[str], samples: int, report: Path
) -> dict[str, Any]:
    """Of the policies that are compared here; the pages go to `report`."""
    cells = [one for one in drawn if one.policy.name in CHOOSERS and one.task in TASKS]
    cells = scored(cells, traced="pll" in selectors)
    grid = tuple(1 << power for power in range(samples.bit_length()))
    choices = [Choice(one, name, grid) for one in cells for name in selectors]
    write_selection(choices, report)
    return {
        "questions": min(len(one.questions) for one in cells),
        "samples": samples,
        "unread": sum(one.unread for one in cells),
        "drawn": sum(one.drawn for one in cells),
        "auc": aucs(cells),
        "best": best(cells, selectors, samples),
        "sentences": [sentence(finding) for finding in selection_findings(choices)],
    }


# --- blocks ---------------------------------------------------------------------------------------------------


def told_apart(found: dict[str, Any]) -> str:
    """Of every judge, the probability that a right sample is above a wrong one of the same question."""
    judged = [one for one in found["auc"] if one["auc"]]  # with questions that have right and wrong samples
    names = list(judged[0]["auc"])
    rows = [
        [
            one["task"],
            LABELS[one["name"]],
            str(one["mixed"]),
            *(f"{one['auc'][name]['mean'] / 100:.2f}" for name in names),
        ]
        for one in judged
    ]
    least = {
        task: min(one["auc"]["verifier"]["mean"] for one in judged if one["task"] == task) / 100
        for task in unique(one["task"] for one in judged)
    }
    heads = ["task", "policy", "questions", *(NAMES.get(name, name) for name in names)]
    told = listed([f"{value:.2f} on {task}" for task, value in least.items()])
    return (
        f"Test problems, {found['questions']} per task, {found['samples']} samples each; "
        f"questions with right and wrong samples.\n\n{table(heads, rows, len(names) + 1)}\n\n"
        f"The verifier's lowest: {told}."
    )


def chosen(found: dict[str, Any]) -> str:
    """Best@k by selector, and the gain over the majority."""
    rows = found["best"]
    k = rows[0]["k"]
    names = unique(one["name"] for one in rows)
    lines = []
    for task in unique(one["task"] for one in rows):
        for selector in unique(one["selector"] for one in rows):
            here = {one["name"]: one for one in rows if (one["task"], one["selector"]) == (task, selector)}
            cells = [
                f"{one['mean']:.1f}" + (f" [{spelled(one['gain'])}]" if selector != "majority" else "")
                for one in (here[name] for name in names)
            ]
            lines.append([task if selector == rows[0]["selector"] else "", selector, *cells])
    heads = ["task", "chosen by", *(LABELS[name] for name in names)]
    size = f"{found['questions']} test questions per task: Best@{k} in %, in brackets the difference to the majority."
    return f"{size}\n\n{table(heads, lines, len(names))}"


def findings(found: dict[str, Any]) -> str:
    share = 100 * found["unread"] / found["drawn"]
    lines = [f"- {sentence.replace(' -', ' −')}" for sentence in found["sentences"]]
    unread = f"- {share:.0f} % of the samples have no answer that the grader can read."
    return "\n\n".join(["\n".join([*lines, unread]), *FIGURES])


if __name__ == "__main__":
    run = Path(sys.argv[1])
    result = summary(read([run]), ALL, 64, run / "selection")
    print(f"{told_apart(result)}\n\n{chosen(result)}\n\n{findings(result)}")
