"""Figures of choosing one answer from many: Best@k above Best@NFE, and the diversity of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twotemp import metrics
from twotemp.analysis import SELECTORS, Choice, GradedCell, k_grid, unique
from twotemp.analysis.choice import entropy
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
from twotemp.report.names import dataset, label, model_name, task_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
