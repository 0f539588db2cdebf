"""Choosing one answer from many, in the paper's layout: Best@k above Best@NFE, and how spread the answers are."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twotemp import metrics
from twotemp.metrics import NO_ANSWER, Estimate
from twotemp.metrics.passk import Floats
from twotemp.policies import spell
from twotemp.report import style
from twotemp.report.figures import BAND, FORMATS, Drawn, _grid, _legend, look
from twotemp.report.findings import Finding
from twotemp.report.series import k_grid, unique
from twotemp.selection import SELECTORS, Ballots, best_at, best_for, choices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The paper's question: does TCT's diversity pay off once one answer has to be chosen?
FIRST, SECONDS = "tct", ("ar", "ct")
SHOWN_QUESTIONS, SHOWN_ANSWERS = 3, 6


@dataclass(frozen=True, eq=False)
class Curve:
    """One policy on one task under one selector."""

    ballots: Ballots
    selector: str
    ks: tuple[int, ...]

    @cached_property
    def values(self) -> Floats:
        return best_at(self.ballots, self.selector, self.ks)

    @cached_property
    def estimate(self) -> Estimate:
        return metrics.bootstrap(self.values)

    @property
    def nfe(self) -> Floats:
        return metrics.cost_axis(self.ballots.nfe, self.ks)

    def summary(self) -> dict[str, Any]:
        """As JSON data."""
        one = self.ballots
        return {
            "model": one.model,
            "task": one.task,
            "policy": spell(one.policy),
            "selector": self.selector,
            "reward_model": one.reward_model if SELECTORS[self.selector].needs == "rewards" else None,
            "grader": one.grader,
            "questions": len(one.questions),
            "n": one.samples,
            "ungraded": one.ungraded,
            "without_answer": one.unread,
            "nfe": one.cost,
            "best": {
                str(k): {
                    "nfe": float(nfe),
                    **{name: float(getattr(self.estimate, name)[at]) for name in ("mean", "low", "high")},
                }
                for at, (k, nfe) in enumerate(zip(self.ks, self.nfe))
            },
        }


@dataclass(frozen=True)
class SelectionReport:
    path: Path  # selection.md
    figures: tuple[Drawn, ...]
    sentences: tuple[str, ...]


def curves(ballots: Sequence[Ballots], selectors: Sequence[str]) -> list[Curve]:
    return [Curve(one, name, tuple(k_grid([one]))) for one in ballots for name in selectors]


def write(found: Sequence[Curve], folder: Path) -> SelectionReport:
    """Write selection.md, selection.csv, selected.jsonl (what was chosen) and the figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ballots = unique(curve.ballots for curve in found)
    drawn = draw(found, folder)
    sentences = tuple(findings(found))
    (folder / "selection.csv").write_text(as_csv(found), "utf-8")
    with (folder / "selected.jsonl").open("w", encoding="utf-8") as file:
        for curve in found:
            for row in chosen(curve):
                file.write(json.dumps(row) + "\n")
    parts = ["# One answer from many\n", "\n".join(f"- {s}" for s in sentences) + "\n", markdown(found)]
    parts.append(_notes(ballots))
    for one in drawn:
        parts += [f"## {one.name}\n", f"![{one.name}]({one.path.name})\n", one.caption + "\n"]
    path = folder / "selection.md"
    path.write_text("\n".join(parts), "utf-8")
    return SelectionReport(path, tuple(drawn), sentences)


def chosen(curve: Curve) -> Iterator[dict[str, Any]]:
    """The answer chosen from all samples of each question; null where no sample has one."""
    for ballot, at in zip(curve.ballots, choices(curve.ballots, curve.selector)):
        number = NO_ANSWER if at is None else int(ballot.answers[at])
        yield {
            "task": curve.ballots.task,
            "policy": spell(curve.ballots.policy),
            "selector": curve.selector,
            "question": ballot.question,
            "sample": None if at is None else int(ballot.index[at]),
            "answer": None if number == NO_ANSWER else ballot.spelled[number],
            "votes": None if number == NO_ANSWER else int((ballot.answers == number).sum()),
            "samples": len(ballot.passed),
            "passed": at is not None and bool(ballot.passed[at]),
        }


# --- sentences ------------------------------------------------------------------------------------------------


def findings(found: Sequence[Curve]) -> Iterator[str]:
    """TCT against AR and CT: at equal NFE under every selector, and the entropy of the answers."""
    for model in unique(c.ballots.model for c in found):
        here = [c for c in found if c.ballots.model == model]
        for second in SECONDS:
            for selector in unique(c.selector for c in here):
                pairs = _pairs([c for c in here if c.selector == selector], second)
                if pairs:
                    yield _equal_cost(selector, pairs).sentence
            if pairs := _pairs([c for c in here if c.selector == here[0].selector], second):
                yield _entropies(pairs)


Pair = tuple[Ballots, Ballots]


def _pairs(found: Sequence[Curve], second: str) -> list[Pair]:
    """TCT and another policy on every task that has both; in a sweep the first of each name stands for it."""
    by_task: dict[str, dict[str, Ballots]] = {}
    for curve in found:
        by_task.setdefault(curve.ballots.task, {}).setdefault(curve.ballots.policy.name, curve.ballots)
    return [(named[FIRST], named[second]) for named in by_task.values() if FIRST in named and second in named]


def _equal_cost(selector: str, pairs: Sequence[Pair]) -> Finding:
    budgets = [min(a.cost * a.samples, b.cost * b.samples) for a, b in pairs]
    values = [
        _difference(a, b, lambda one, nfe=budget: best_for(one, selector, nfe))  # type: ignore[misc]
        for (a, b), budget in zip(pairs, budgets)
    ]
    pooled = metrics.bootstrap(100 * np.concatenate(values))
    first, second = pairs[0]
    return Finding(
        style.label(first.policy, plain=True),
        style.label(second.policy, plain=True),
        f"choosing by {selector} for equal NFE ({np.mean(budgets):.0f} a question)",
        float(pooled.mean[0]),
        float(pooled.low[0]),
        float(pooled.high[0]),
        tuple((a.task, float(100 * np.nanmean(v))) for (a, _), v in zip(pairs, values)),
    )


def _entropies(pairs: Sequence[Pair]) -> str:
    k = min(one.samples for pair in pairs for one in pair)
    values = [_difference(a, b, lambda one: one.entropy([k])[:, 0]) for a, b in pairs]
    pooled = metrics.bootstrap(np.concatenate(values))
    mean, low, high = (float(x[0]) for x in (pooled.mean, pooled.low, pooled.high))
    names = [style.label(one.policy, plain=True) for one in pairs[0]]
    apart = ", ".join(f"{style.task_name(a.task)} {np.nanmean(v):+.2f}" for (a, _), v in zip(pairs, values))
    verdict = (
        "is not different from" if low <= 0 <= high else "is higher than" if mean > 0 else "is lower than"
    )
    return (
        f"The entropy of {names[0]}'s answers to a question ({k} samples) {verdict} that of {names[1]}: "
        f"{mean:+.2f} nats (95 % interval {low:+.2f} to {high:+.2f}; {apart})."
    )


def _difference(first: Ballots, second: Ballots, value: Callable[[Ballots], Floats]) -> Floats:
    a, b = metrics.align(first.questions, second.questions)
    return value(first)[a] - value(second)[b]


# --- tables ---------------------------------------------------------------------------------------------------


def markdown(found: Sequence[Curve]) -> str:
    """Best@k in percent: a block for each task and selector, the best of each column in bold."""
    ks = k_grid([curve.ballots for curve in found])
    lines = [
        "| " + " | ".join(["Dataset", "Chosen by", "Method", "NFE", *(f"k = {k}" for k in ks)]) + " |",
        "|" + "---|" * 3 + "---:|" * (1 + len(ks)),
    ]
    for key in unique((c.ballots.model, c.ballots.task, c.selector) for c in found):
        block = [c for c in found if (c.ballots.model, c.ballots.task, c.selector) == key]
        best = {k: max(c.estimate.mean[c.ks.index(k)] for c in block if k in c.ks) for k in ks}
        for curve in block:
            cells = [_cell(curve, k, best[k]) if k in curve.ks else "–" for k in ks]
            first = curve is block[0]
            head = [style.task_name(key[1]) if first else "", SELECTORS[key[2]].title if first else ""]
            method = style.label(curve.ballots.policy, plain=True)
            lines.append("| " + " | ".join([*head, method, f"{curve.ballots.cost:.1f}", *cells]) + " |")
    return "\n".join(lines) + "\n"


def _cell(curve: Curve, k: int, best: float) -> str:
    at, estimate = curve.ks.index(k), curve.estimate
    text = f"{100 * estimate.mean[at]:.1f} ± {100 * estimate.half_width[at]:.1f}"
    return f"**{text}**" if estimate.mean[at] == best else text


COLUMNS = (
    "model", "task", "policy", "selector", "reward_model", "questions", "n", "k", "nfe", "best", "low", "high",
    "entropy", "entropy_low", "entropy_high",
)  # fmt: skip


def as_csv(found: Sequence[Curve]) -> str:
    """One line a curve and k; the entropy of the answers (nats) is the policy's, whatever chooses."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for curve in found:
        about = curve.summary()
        same = [about[name] for name in COLUMNS[:7]]
        entropy = metrics.bootstrap(curve.ballots.entropy(curve.ks))
        for at, k in enumerate(curve.ks):
            numbers = [
                getattr(e, name)[at] for e in (curve.estimate, entropy) for name in ("mean", "low", "high")
            ]
            writer.writerow([*same, k, f"{curve.nfe[at]:.6g}", *(f"{number:.6g}" for number in numbers)])
    return out.getvalue()


def _notes(ballots: Sequence[Ballots]) -> str:
    lines = [
        "Best@k in percent: the expectation over all subsets of k samples (exact; 1,000 random subsets a question "
        "for weighted votes), mean over questions ± half-width of the 95 % bootstrap interval.",
        "Equal answers by the grader's own equivalence; ties are shared evenly. Samples without an answer count "
        f"among the k and are never elected: {sum(one.unread for one in ballots)} of "
        f"{sum(len(b.passed) for one in ballots for b in one)}.",
    ]
    for one in ballots:
        if one.scored:
            within = [metrics.auc(b.passed, b.reward) for b in one]
            every = metrics.auc(
                np.concatenate([b.passed for b in one]), np.concatenate([b.reward for b in one])
            )
            decided = int(np.isfinite(within).sum())
            inside = f"{np.nanmean(within):.3f} within a question ({decided} have both)" if decided else "–"
            lines.append(
                f"{one.reward_model} on {style.task_name(one.task)}, {style.label(one.policy, plain=True)}: a right "
                f"sample scores above a wrong one with probability {every:.3f}; {inside}."
            )
    return "\n".join(f"- {line}" for line in lines) + "\n"


# --- figures --------------------------------------------------------------------------------------------------


def draw(found: Sequence[Curve], folder: Path) -> list[Drawn]:
    """A figure of Best@k and Best@NFE a task, the entropy of the answers, and answers to some questions."""
    ballots = unique(curve.ballots for curve in found)
    cells = unique((one.model, one.task) for one in ballots)
    several = len({model for model, _ in cells}) > 1
    drawn = []
    with look():
        for model, task in cells:
            here = [c for c in found if (c.ballots.model, c.ballots.task) == (model, task)]
            tag = f"{style.model_name(model)}-{task}" if several else task
            drawn.append(_save(folder, f"best-{tag}", best(here), BEST.format(task=style.task_name(task))))
        drawn.append(_save(folder, "entropy", entropy(ballots), ENTROPY))
        for model, task in cells:
            these = [one for one in ballots if (one.model, one.task) == (model, task)]
            tag = f"{style.model_name(model)}-{task}" if several else task
            drawn.append(_save(folder, f"answers-{tag}", answers(these), ANSWERS))
    return drawn


BEST = (
    "{task}: Best@k (top) and Best@NFE (bottom), a column a selector. The same data, only the x axis changes. "
    "Bands: 95 % bootstrap intervals over questions."
)
ENTROPY = (
    "Mean entropy of the answers to a question among k samples; no answer counts as one more. Bands: 95 % bootstrap "
    "intervals over questions."
)
ANSWERS = (
    "Answers to three questions (at the quartiles of the entropy of all policies' answers together), most frequent "
    "first. Right answers are marked *."
)


def _save(folder: Path, name: str, figure: Figure, caption: str) -> Drawn:
    figure.draw_without_rendering()  # lays the panels out, once for all formats
    figure.set_layout_engine("none")
    for kind in FORMATS:
        figure.savefig(folder / f"{name}.{kind}")
    return Drawn(name, folder / f"{name}.png", caption)


def best(found: Sequence[Curve]) -> Figure:
    selectors = unique(curve.selector for curve in found)
    figure, axes = _grid(2, len(selectors), share_y=True)
    for column, selector in enumerate(selectors):
        for curve in (c for c in found if c.selector == selector):
            _band(axes[0, column], curve.ks, curve.estimate, curve.ballots, 100)
            _band(axes[1, column], curve.nfe, curve.estimate, curve.ballots, 100)
        axes[0, column].set_title(SELECTORS[selector].title)
        _powers(axes[0, column], [c.ballots for c in found])
        axes[1, column].set_xscale("log")
        axes[1, column].set_xlabel("NFE (k × mean per sample)")
    axes[0, 0].set_ylabel("Best@k (%)")
    axes[1, 0].set_ylabel("Best@NFE (%)")
    _legend(figure)
    return figure


def entropy(ballots: Sequence[Ballots]) -> Figure:
    cells = unique((one.model, one.task) for one in ballots)
    figure, axes = _grid(1, len(cells))
    for axis, (model, task) in zip(axes[0], cells):
        here = [one for one in ballots if (one.model, one.task) == (model, task)]
        for one in here:
            ks = k_grid([one])
            _band(axis, ks, metrics.bootstrap(one.entropy(ks)), one, 1)
        axis.set_title(style.task_name(task))
        _powers(axis, here)
    axes[0, 0].set_ylabel("answer entropy (nats)")
    _legend(figure)
    return figure


def _band(axis: Axes, x: Any, estimate: Estimate, one: Ballots, scale: float) -> None:
    look = style.line(one.policy)
    axis.plot(x, scale * estimate.mean, label=style.label(one.policy), **look)
    axis.fill_between(
        x, scale * estimate.low, scale * estimate.high, color=look["color"], alpha=BAND, linewidth=0
    )


def _powers(axis: Axes, ballots: Sequence[Ballots]) -> None:
    ticks = k_grid(ballots)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(k) for k in ticks])
    axis.minorticks_off()
    axis.set_xlabel("samples k")


def answers(ballots: Sequence[Ballots]) -> Figure:
    """Bars, one a policy, over the answers to a few questions that all policies have."""
    shown = shown_questions(ballots)
    figure, axes = _grid(1, len(shown), share_y=True)
    for axis, question in zip(axes[0], shown):
        here = [next(b for b in one if b.question == question) for one in ballots]
        pooled = np.concatenate([b.answers for b in here])
        right = {int(number) for b in here for number in b.answers[b.passed]}
        numbers, counts = np.unique(pooled, return_counts=True)
        top = [int(n) for n in numbers[np.argsort(-counts, kind="stable")][:SHOWN_ANSWERS]]
        width = 0.8 / len(ballots)
        for place, (one, ballot) in enumerate(zip(ballots, here)):
            shares = [float(np.mean(ballot.answers == number)) for number in top]
            at = np.arange(len(top)) + (place - (len(ballots) - 1) / 2) * width
            axis.bar(at, shares, width, color=style.line(one.policy)["color"], label=style.label(one.policy))
        texts = ["none" if n == NO_ANSWER else here[0].spelled[n] for n in top]
        labels = [_short(text) + " *" * (number in right) for text, number in zip(texts, top)]
        axis.set_xticks(range(len(top)), labels, rotation=45, ha="right", rotation_mode="anchor")
        axis.set_title(question, fontsize=8)
        axis.grid(axis="x", visible=False)
    axes[0, 0].set_ylabel("share of the samples")
    _legend(figure)
    return figure


def shown_questions(ballots: Sequence[Ballots]) -> list[str]:
    """Not picked by hand: the questions at the quartiles of the entropy of all policies' answers together."""
    common = [q for q in ballots[0].questions if all(q in one.questions for one in ballots)]
    by_question = {q: [b.answers for one in ballots for b in one if b.question == q] for q in common}
    entropies = {
        q: metrics.answer_entropy(a := np.concatenate(parts), [len(a)])[0] for q, parts in by_question.items()
    }
    ranked = sorted(common, key=lambda q: (entropies[q], q))
    last, parts = len(ranked) - 1, SHOWN_QUESTIONS + 1
    places = {min(last, round(len(ranked) * part / parts)) for part in range(1, parts)}
    return [ranked[place] for place in sorted(places)]


def _short(text: str) -> str:
    """What a tick has room for: the end, as long answers (programs) begin alike."""
    line = " ".join(text.split())
    return (line if len(line) <= 18 else "…" + line[-17:]).replace("$", r"\$")
