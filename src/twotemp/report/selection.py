"""Report the choice of one answer from many: Best@k and Best@NFE, and the diversity of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twotemp import metrics
from twotemp.analysis import SELECTORS, Choice, GradedCell, k_grid, unique
from twotemp.analysis.compare import entropy
from twotemp.metrics import NO_ANSWER
from twotemp.report import style
from twotemp.report.figures import (
    BANDS,
    SavedFigure,
    band,
    cost_ticks,
    grid,
    legend,
    power_ticks,
    save,
    styled,
)
from twotemp.report.style import dataset, label, model_name, task_name
from twotemp.report.tables import INTERVALS, TableBlock, as_markdown, block, rows_as_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        f"among the k and have no vote: {sum(cell.without_answer for cell in cells)} of "
        f"{sum(cell.drawn for cell in cells)}.",
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


SHOWN_QUESTIONS, SHOWN_ANSWERS = 3, 6
BEST = (
    "{task}: Best@k (top) and Best@NFE (bottom), a column for each selector. The same data, only the x axis changes. "
    + BANDS
)
ENTROPY = f"Mean entropy of the answers to a question among k samples; no answer counts as one more. {BANDS}"
ANSWERS = (
    "Answers to three questions (at the quartiles of the entropy of all policies' answers together), most frequent "
    "first. Right answers are marked *."
)


def draw(curves: Sequence[Choice], folder: Path) -> list[SavedFigure]:
    """Draw Best@k, Best@NFE and example answers of each task, and the answer entropy of all."""
    cells = unique(curve.cell for curve in curves)
    keys = unique((cell.model, cell.task) for cell in cells)
    several = len({model for model, _ in keys}) > 1
    tags = {(model, task): f"{model_name(model)}-{task}" if several else task for model, task in keys}
    with styled():
        drawn = []
        for key in keys:
            group = [c for c in curves if (c.cell.model, c.cell.task) == key]
            caption = BEST.format(task=task_name(key[1]))
            drawn.append(save(folder, f"best-{tags[key]}", best(group), caption))
        drawn.append(save(folder, "entropy", entropies(cells), ENTROPY))
        for key in keys:
            members = [cell for cell in cells if (cell.model, cell.task) == key]
            if shown_questions(members):
                drawn.append(save(folder, f"answers-{tags[key]}", answers(members), ANSWERS))
    return drawn


def best(curves: Sequence[Choice]) -> Figure:
    """Draw Best@k above Best@NFE, one column per selector."""
    selectors = unique(curve.selector for curve in curves)
    figure, axes = grid(2, len(selectors), share_y=True)
    for column, selector in enumerate(selectors):
        top, bottom = axes[:, column]
        for curve in (c for c in curves if c.selector == selector):
            line, name = style.line(curve.cell.policy), label(curve.cell.policy)
            band(top, curve.ks, curve.estimate, line, name)
            band(bottom, curve.nfe, curve.estimate, line, name)
        top.set_title(SELECTORS[selector].title)
        top.set_xlabel("samples k")
        power_ticks(top, [c.cell for c in curves])
        bottom.set_xlabel("NFE (k × mean per sample)")
        cost_ticks(bottom)
    axes[0, 0].set_ylabel("Best@k (%)")
    axes[1, 0].set_ylabel("Best@NFE (%)")
    legend(figure)
    return figure


def entropies(cells: Sequence[GradedCell]) -> Figure:
    """Draw the answer entropy against k, one column per model and task."""
    keys = unique((cell.model, cell.task) for cell in cells)
    figure, axes = grid(1, len(keys))
    for axis, (model, task) in zip(axes[0], keys):
        group = [cell for cell in cells if (cell.model, cell.task) == (model, task)]
        for cell in group:
            ks = k_grid([cell])
            band(axis, ks, entropy(cell, ks), style.line(cell.policy), label(cell.policy), scale=1)
        axis.set_title(dataset(model, task, [cell.model for cell in cells]))
        axis.set_xlabel("samples k")
        power_ticks(axis, group)
    axes[0, 0].set_ylabel("answer entropy (nats)")
    legend(figure)
    return figure


def answers(cells: Sequence[GradedCell]) -> Figure:
    """Draw the most frequent answers to a few questions as bars, one bar per policy."""
    questions = shown_questions(cells)
    figure, axes = grid(1, len(questions), share_y=True)
    for axis, question in zip(axes[0], questions):
        ballots = [next(b for b in cell.ballots if b.question == question) for cell in cells]
        pooled = np.concatenate([b.answers for b in ballots])
        right = {int(number) for b in ballots for number in b.answers[b.passed]}
        numbers, counts = np.unique(pooled, return_counts=True)
        top = [int(n) for n in numbers[np.argsort(-counts, kind="stable")][:SHOWN_ANSWERS]]
        width = 0.8 / len(cells)
        for index, (cell, ballot) in enumerate(zip(cells, ballots)):
            shares = [float(np.mean(ballot.answers == number)) for number in top]
            x = np.arange(len(top)) + (index - (len(cells) - 1) / 2) * width
            axis.bar(x, shares, width, color=style.line(cell.policy)["color"], label=label(cell.policy))
        texts = ["none" if n == NO_ANSWER else ballots[0].spelled[n] for n in top]
        labels = [_short(text) + " *" * (number in right) for text, number in zip(texts, top)]
        axis.set_xticks(range(len(top)), labels, rotation=45, ha="right", rotation_mode="anchor")
        axis.set_title(question, fontsize=8)
        axis.grid(axis="x", visible=False)
    axes[0, 0].set_ylabel("share of the samples")
    legend(figure)
    return figure


def shown_questions(cells: Sequence[GradedCell]) -> list[str]:
    """Return the questions at the quartiles of the entropy of all policies' answers: not chosen by hand."""
    common = [q for q in cells[0].questions if all(q in cell.questions for cell in cells)]
    by_question = {q: [b.answers for cell in cells for b in cell.ballots if b.question == q] for q in common}
    spread = {
        q: metrics.answer_entropy(a := np.concatenate(parts), [len(a)])[0] for q, parts in by_question.items()
    }
    ranked = sorted(common, key=lambda q: (spread[q], q))
    last, parts = len(ranked) - 1, SHOWN_QUESTIONS + 1
    ranks = {min(last, round(len(ranked) * part / parts)) for part in range(1, parts)} if ranked else set()
    return [ranked[rank] for rank in sorted(ranks)]


def _short(text: str) -> str:
    """Return what fits a tick: the end, as long answers (programs) begin alike."""
    line = " ".join(text.split())
    return (line if len(line) <= 18 else "…" + line[-17:]).replace("$", r"\$")
