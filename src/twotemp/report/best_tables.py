"""Best@k as Markdown and CSV, with the notes that a reader needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from twotemp import metrics
from twotemp.analysis import SELECTORS, Choice, GradedCell, k_grid, unique
from twotemp.analysis.choice import entropy
from twotemp.report.names import dataset, label, task_name
from twotemp.report.tables import INTERVALS, TableBlock, as_markdown, block, rows_as_csv


def blocks(curves: Sequence[Choice], ks: Sequence[int]) -> Iterator[TableBlock]:
    """Yield a block per model, dataset and selector."""
    models = [curve.cell.model for curve in curves]
    for key in unique((c.cell.model, c.cell.task, c.selector) for c in curves):
        group = [c for c in curves if (c.cell.model, c.cell.task, c.selector) == key]
        names = [dataset(*key[:2], models), SELECTORS[group[0].selector].title]
        yield block(names, [(c.cell, c.estimate, c.ks) for c in group], ks)


def markdown(curves: Sequence[Choice]) -> str:
    """Return one table with a block per task and selector, the best of each column in bold."""
    ks = k_grid([curve.cell for curve in curves])
    names = ["Dataset", "Chosen by"]
    return as_markdown(names, ["NFE"], lambda cell: [f"{cell.cost():.1f}"], blocks(curves, ks), ks)


COLUMNS = (
    "model", "task", "policy", "selector", "reward_model", "questions", "n", "k", "nfe", "best", "low", "high",
    "entropy", "entropy_low", "entropy_high",
)  # fmt: skip


def as_csv(curves: Sequence[Choice]) -> str:
    """Return one line per curve and k; the answer entropy (nats) is the policy's, whatever the selector."""

    def rows() -> Iterator[list[object]]:
        for curve in curves:
            summary = curve.summary()
            shared = [summary[name] for name in COLUMNS[:7]]
            spread = entropy(curve.cell, curve.ks)
            for column, k in enumerate(curve.ks):
                numbers = [x for e in (curve.estimate, spread) for x in (e.mean, e.low, e.high)]
                yield [*shared, k, float(curve.nfe[column]), *(float(number[column]) for number in numbers)]

    return rows_as_csv(COLUMNS, rows())


def notes(cells: Sequence[GradedCell]) -> str:
    """Return what a reader must know about Best@k, as a Markdown list."""
    lines = [
        "Best@k in percent: the expectation over all subsets of k samples (exact; 1,000 random subsets per question "
        f"for weighted votes), mean over questions. {INTERVALS}",
        "Equal answers by the grader's own equivalence; ties are shared evenly. Samples without an answer count "
        f"among the k and have no vote: {sum(cell.unread for cell in cells)} of {sum(cell.drawn for cell in cells)}.",
    ]
    for cell in cells:
        if cell.reward_model is not None:
            within = [metrics.auc(b.passed, b.reward) for b in cell.ballots]
            overall = metrics.auc(
                *(np.concatenate([getattr(b, n) for b in cell.ballots]) for n in ("passed", "reward"))
            )
            decided = int(np.isfinite(within).sum())
            inside = f"{np.nanmean(within):.3f} within a question ({decided} have both)" if decided else "–"
            lines.append(
                f"{cell.reward_model} on {task_name(cell.task)}, {label(cell.policy, plain=True)}: a right "
                f"sample scores above a wrong one with probability {overall:.3f}; {inside}."
            )
    return "\n".join(f"- {line}" for line in lines) + "\n"
