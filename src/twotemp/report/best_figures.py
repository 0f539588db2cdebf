"""Choosing one answer from many, in the paper's layout: Best@k above Best@NFE, and how spread the answers are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twotemp import metrics
from twotemp.analysis import SELECTORS, Choice, Graded, k_grid, unique
from twotemp.analysis.choice import entropy
from twotemp.analysis.names import dataset
from twotemp.metrics import NO_ANSWER
from twotemp.report import style
from twotemp.report.figures import BANDS, Drawn, band, cost_ticks, grid, legend, look, power_ticks, save

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


def draw(found: Sequence[Choice], folder: Path) -> list[Drawn]:
    """For each task Best@k and Best@NFE, and answers to some questions; the entropy of the answers of all."""
    cells = unique(choice.cell for choice in found)
    blocks = unique((one.model, one.task) for one in cells)
    several = len({model for model, _ in blocks}) > 1
    tags = {(model, task): f"{style.model_name(model)}-{task}" if several else task for model, task in blocks}
    with look():
        drawn = []
        for key in blocks:
            here = [c for c in found if (c.cell.model, c.cell.task) == key]
            drawn.append(
                save(folder, f"best-{tags[key]}", best(here), BEST.format(task=style.task_name(key[1])))
            )
        drawn.append(save(folder, "entropy", entropies(cells), ENTROPY))
        for key in blocks:
            these = [one for one in cells if (one.model, one.task) == key]
            if shown_questions(these):
                drawn.append(save(folder, f"answers-{tags[key]}", answers(these), ANSWERS))
    return drawn


def best(found: Sequence[Choice]) -> Figure:
    selectors = unique(choice.selector for choice in found)
    figure, axes = grid(2, len(selectors), share_y=True)
    for column, selector in enumerate(selectors):
        top, bottom = axes[:, column]
        for choice in (c for c in found if c.selector == selector):
            drawn = style.line(choice.cell.policy), style.label(choice.cell.policy)
            band(top, choice.ks, choice.estimate, *drawn)
            band(bottom, choice.nfe, choice.estimate, *drawn)
        top.set_title(SELECTORS[selector].title)
        top.set_xlabel("samples k")
        power_ticks(top, [c.cell for c in found])
        bottom.set_xlabel("NFE (k × mean per sample)")
        cost_ticks(bottom)
    axes[0, 0].set_ylabel("Best@k (%)")
    axes[1, 0].set_ylabel("Best@NFE (%)")
    legend(figure)
    return figure


def entropies(cells: Sequence[Graded]) -> Figure:
    blocks = unique((one.model, one.task) for one in cells)
    figure, axes = grid(1, len(blocks))
    for axis, (model, task) in zip(axes[0], blocks):
        here = [one for one in cells if (one.model, one.task) == (model, task)]
        for one in here:
            ks = k_grid([one])
            band(axis, ks, entropy(one, ks), style.line(one.policy), style.label(one.policy), scale=1)
        axis.set_title(dataset(model, task, [one.model for one in cells]))
        axis.set_xlabel("samples k")
        power_ticks(axis, here)
    axes[0, 0].set_ylabel("answer entropy (nats)")
    legend(figure)
    return figure


def answers(cells: Sequence[Graded]) -> Figure:
    """Bars, one for each policy, over the answers to a few questions that all policies have."""
    shown = shown_questions(cells)
    figure, axes = grid(1, len(shown), share_y=True)
    for axis, question in zip(axes[0], shown):
        here = [next(b for b in one.ballots if b.question == question) for one in cells]
        pooled = np.concatenate([b.answers for b in here])
        right = {int(number) for b in here for number in b.answers[b.passed]}
        numbers, counts = np.unique(pooled, return_counts=True)
        top = [int(n) for n in numbers[np.argsort(-counts, kind="stable")][:SHOWN_ANSWERS]]
        width = 0.8 / len(cells)
        for place, (one, ballot) in enumerate(zip(cells, here)):
            shares = [float(np.mean(ballot.answers == number)) for number in top]
            at = np.arange(len(top)) + (place - (len(cells) - 1) / 2) * width
            axis.bar(at, shares, width, color=style.line(one.policy)["color"], label=style.label(one.policy))
        texts = ["none" if n == NO_ANSWER else here[0].spelled[n] for n in top]
        labels = [_short(text) + " *" * (number in right) for text, number in zip(texts, top)]
        axis.set_xticks(range(len(top)), labels, rotation=45, ha="right", rotation_mode="anchor")
        axis.set_title(question, fontsize=8)
        axis.grid(axis="x", visible=False)
    axes[0, 0].set_ylabel("share of the samples")
    legend(figure)
    return figure


def shown_questions(cells: Sequence[Graded]) -> list[str]:
    """Not picked by hand: the questions at the quartiles of the entropy of all policies' answers together."""
    common = [q for q in cells[0].questions if all(q in one.questions for one in cells)]
    by_question = {q: [b.answers for one in cells for b in one.ballots if b.question == q] for q in common}
    spread = {
        q: metrics.answer_entropy(a := np.concatenate(parts), [len(a)])[0] for q, parts in by_question.items()
    }
    ranked = sorted(common, key=lambda q: (spread[q], q))
    last, parts = len(ranked) - 1, SHOWN_QUESTIONS + 1
    places = {min(last, round(len(ranked) * part / parts)) for part in range(1, parts)} if ranked else set()
    return [ranked[place] for place in sorted(places)]


def _short(text: str) -> str:
    """What a tick has room for: the end, as long answers (programs) begin alike."""
    line = " ".join(text.split())
    return (line if len(line) <= 18 else "…" + line[-17:]).replace("$", r"\$")
