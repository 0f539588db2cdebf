"""Best@k as Markdown and CSV, and what a reader must know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from twotemp import metrics
from twotemp.analysis import SELECTORS, Choice, Graded, k_grid, unique
from twotemp.analysis.choice import entropy
from twotemp.analysis.names import dataset
from twotemp.report import style
from twotemp.report.tables import INTERVALS, Block, as_markdown, block, rows_as_csv


def blocks(found: Sequence[Choice], ks: Sequence[int]) -> Iterator[Block]:
    """Best@k, one model, dataset and selector after the other."""
    models = [choice.cell.model for choice in found]
    for key in unique((c.cell.model, c.cell.task, c.selector) for c in found):
        here = [c for c in found if (c.cell.model, c.cell.task, c.selector) == key]
        names = [dataset(*key[:2], models), SELECTORS[here[0].selector].title]
        yield block(names, [(c.cell, c.estimate, c.ks) for c in here], ks)


def markdown(found: Sequence[Choice]) -> str:
    """A block for each task and selector, the best of each column in bold."""
    ks = k_grid([choice.cell for choice in found])
    names = ["Dataset", "Chosen by"]
    return as_markdown(names, ["NFE"], lambda one: [f"{one.cost():.1f}"], blocks(found, ks), ks)


COLUMNS = (
    "model", "task", "policy", "selector", "reward_model", "questions", "n", "k", "nfe", "best", "low", "high",
    "entropy", "entropy_low", "entropy_high",
)  # fmt: skip


def as_csv(found: Sequence[Choice]) -> str:
    """One line for each curve and k; the entropy of the answers (nats) is the policy's, whatever chooses."""

    def rows() -> Iterator[list[object]]:
        for choice in found:
            about = choice.summary()
            same = [about[name] for name in COLUMNS[:7]]
            spread = entropy(choice.cell, choice.ks)
            for at, k in enumerate(choice.ks):
                numbers = [e for one in (choice.estimate, spread) for e in (one.mean, one.low, one.high)]
                yield [*same, k, float(choice.nfe[at]), *(float(number[at]) for number in numbers)]

    return rows_as_csv(COLUMNS, rows())


def notes(cells: Sequence[Graded]) -> str:
    lines = [
        "Best@k in percent: the expectation over all subsets of k samples (exact; 1,000 random subsets per question "
        f"for weighted votes), mean over questions. {INTERVALS}",
        "Equal answers by the grader's own equivalence; ties are shared evenly. Samples without an answer count "
        f"among the k and have no vote: {sum(one.unread for one in cells)} of {sum(one.drawn for one in cells)}.",
    ]
    for one in cells:
        if one.reward_model is not None:
            within = [metrics.auc(b.passed, b.reward) for b in one.ballots]
            every = metrics.auc(
                *(np.concatenate([getattr(b, n) for b in one.ballots]) for n in ("passed", "reward"))
            )
            decided = int(np.isfinite(within).sum())
            inside = f"{np.nanmean(within):.3f} within a question ({decided} have both)" if decided else "–"
            lines.append(
                f"{one.reward_model} on {style.task_name(one.task)}, {style.label(one.policy, plain=True)}: a right "
                f"sample scores above a wrong one with probability {every:.3f}; {inside}."
            )
    return "\n".join(f"- {line}" for line in lines) + "\n"
