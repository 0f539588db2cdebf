"""Best@k as Markdown and CSV, and what a reader must know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from twotemp import metrics
from twotemp.analysis import SELECTORS, Choice, Graded, k_grid, unique
from twotemp.analysis.choice import entropy
from twotemp.report import style
from twotemp.report.tables import INTERVALS, rows_as_csv, spelled

Block = tuple[str, str, list[Choice]]  # dataset, how it was chosen, a row for each policy


def blocks(found: Sequence[Choice]) -> Iterator[Block]:
    """The policies of one model and dataset under one selector after the other."""
    several = len({c.cell.model for c in found}) > 1
    for model, task, selector in unique((c.cell.model, c.cell.task, c.selector) for c in found):
        key = (model, task, selector)
        block = [c for c in found if (c.cell.model, c.cell.task, c.selector) == key]
        name = style.task_name(task) + (f", {style.model_name(model)}" if several else "")
        yield name, SELECTORS[selector].title, block


def entries(block: Sequence[Choice], ks: Sequence[int], digits: int = 1) -> Iterator[list[tuple[str, bool]]]:
    """For each policy its Best@k in percent, and whether it is the best of those over the same questions."""
    best: dict[int, float] = {}
    for k in ks:
        reach = [c for c in block if k in c.ks]
        if len({c.cell.questions_at(k) for c in reach}) == 1:
            best[k] = max(float(c.estimate.mean[c.ks.index(k)]) for c in reach)
    for choice in block:
        estimate, at = choice.estimate, {k: place for place, k in enumerate(choice.ks)}
        row = [("–", False)] * len(ks)
        for place, k in enumerate(ks):
            if k in at:
                mean, low, high = (
                    100 * float(x[at[k]]) for x in (estimate.mean, estimate.low, estimate.high)
                )
                row[place] = spelled(mean, low, high, digits), estimate.mean[at[k]] == best.get(k)
        yield row


def markdown(found: Sequence[Choice]) -> str:
    """Best@k in percent: a block for each task and selector, the best of each column in bold."""
    ks = k_grid([choice.cell for choice in found])
    lines = [
        "| " + " | ".join(["Dataset", "Chosen by", "Method", "NFE", *(f"k = {k}" for k in ks)]) + " |",
        "|" + "---|" * 3 + "---:|" * (1 + len(ks)),
    ]
    for name, title, block in blocks(found):
        for choice, row in zip(block, entries(block, ks)):
            head = [name, title] if choice is block[0] else ["", ""]
            cells = [f"**{text}**" if best else text for text, best in row]
            method = style.label(choice.cell.policy, plain=True)
            lines.append("| " + " | ".join([*head, method, f"{choice.cell.cost():.1f}", *cells]) + " |")
    return "\n".join(lines) + "\n"


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
        f"among the k and are never elected: {sum(one.unread for one in cells)} of "
        f"{sum(one.drawn for one in cells)}.",
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
