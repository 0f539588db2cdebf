"""Report a fork study: the figures of the paper's appendix C.5, and its numbers next to the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twotemp.errors import counted
from twotemp.forks.probe import LineFit, fit
from twotemp.forks.study import Study
from twotemp.report import style
from twotemp.report.blocks import Part, charts, curve, curve_chart, sentences, table
from twotemp.report.figures import SavedFigure, grid, save, styled
from twotemp.report.style import task_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER_R2 = 0.7  # "the median per-fork R^2 being ~0.7 across datasets"
PAPER_SHARE = (0.44, 0.79)  # of forks with two or more outcomes: GSM8K, MATH

FORK, ANCHOR = "#0072B2", "#D55E00"
FORK_COLUMNS = (
    "question/sample/position",
    "entropy (nats)",
    "LC steps",
    "slope",
    "R²",
    "different answers",
    "answers",
)
_ROWS = 1000  # forks in a table
_FEWEST = 3  # forks behind a mean that is drawn: with fewer, the curve would show single forks


def draw(studies: Sequence[Study], folder: Path) -> list[SavedFigure]:
    """Draw and save both figures."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        return [
            save(folder, "fork_entropy", *_entropy_figure(studies)),
            save(folder, "fork_outcomes", *_outcome_figure(studies)),
        ]


def _entropy_figure(studies: Sequence[Study]) -> tuple[Any, str]:
    """Draw a row per task: entropy against revealed anchors, slopes, and R^2 of the per-fork lines."""
    figure, axes = grid(len(studies), 3)
    for row, study in zip(axes, studies):
        _degradation(row[0], study)
        _histogram(row[1], study.slopes(), "slope (nats per anchor)", zero=True)
        _histogram(row[2], study.r2(), "$R^2$ of the fork's own line", limits=(0, 1))
        row[0].set_title(task_name(study.task), loc="left")
    return figure, (
        "Entropy at fork tokens while low-confidence remasking reveals potential anchors. Left: mean over the forks "
        "still masked and one standard deviation; the line is fitted to all points of all forks. Middle and right: "
        "slope and R² of a line fitted to each fork. Dashed: medians."
    )


def _degradation(axis: Axes, study: Study) -> None:
    x, mean, spread, count = degradation(study)
    shown = count >= min(_FEWEST, count.max(initial=0))
    axis.plot(x[shown], mean[shown], color=FORK, marker="o", linewidth=1.5)
    axis.fill_between(
        x[shown], (mean - spread)[shown], (mean + spread)[shown], color=FORK, alpha=0.15, linewidth=0
    )
    line, intercept = pooled(study)
    if np.isfinite(line.r2):
        ends = np.array([x[shown][0], x[shown][-1]])
        axis.plot(ends, intercept + line.slope * ends, color=ANCHOR, linestyle="--")
        text = f"{line.slope:+.3f} nats per anchor, $R^2$ = {line.r2:.2f}"
        axis.text(0.03, 0.05, text, transform=axis.transAxes, color=ANCHOR, size=7)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("anchors revealed")
    axis.set_ylabel("fork entropy (nats)")
    axis.locator_params(axis="x", integer=True)


def _histogram(
    axis: Axes,
    values: np.ndarray,
    label: str,
    *,
    limits: tuple[float, float] | None = None,
    zero: bool = False,
) -> None:
    axis.set_xlabel(label)
    axis.set_ylabel("forks")
    axis.grid(axis="x", visible=False)
    if not len(values):
        axis.text(0.5, 0.5, "no fork with enough anchors", transform=axis.transAxes, ha="center", va="center")
        return
    axis.hist(values, bins=20, range=limits, color=FORK, alpha=0.85)
    middle = float(np.median(values))
    axis.axvline(middle, color=ANCHOR, linestyle="--")
    axis.set_title(f"median {middle:.2f}", color=ANCHOR, weight="normal", loc="right")
    if zero:
        axis.axvline(0, color=style.INK, linewidth=0.8)
    axis.locator_params(axis="x", nbins=6)
    axis.locator_params(axis="y", integer=True)


def _outcome_figure(studies: Sequence[Study]) -> tuple[Any, str]:
    """Draw a column per task: how many alternatives at a fork lead to different answers."""
    figure, axes = grid(1, len(studies), share_y=True)
    for axis, study in zip(axes[0], studies):
        distinct = study.distinct()
        most = max((len(fork.tokens) for fork in study.forks), default=0)
        shares = 100 * np.bincount(distinct, minlength=most + 1) / max(len(distinct), 1)
        colors = [FORK if n >= 2 else "#b5b5b5" for n in range(len(shares))]
        axis.bar(range(len(shares)), shares, color=colors, width=0.8)
        several = f"\n{100 * np.mean(distinct >= 2):.0f} % have 2 or more" if len(distinct) else ""
        axis.set_title(task_name(study.task) + several)
        axis.set_xlabel("distinct outcomes")
        axis.set_xticks(range(len(shares)))
        axis.grid(axis="x", visible=False)
    axes[0, 0].set_ylabel("forks (%)")
    return figure, (
        "Well-formed, semantically distinct outcomes when a fork is set to each of its likeliest tokens and the rest "
        "is completed by greedy low-confidence remasking."
    )


def degradation(study: Study) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return four columns: anchors revealed, mean and standard deviation of the entropy, and the count of forks."""
    points: dict[int, list[float]] = {}
    for fork in study.forks:
        for revealed, entropy in zip(fork.revealed, fork.path):
            points.setdefault(revealed, []).append(entropy)
    columns = [points[revealed] for revealed in sorted(points)]
    return (
        np.array(sorted(points), dtype=np.int64),
        np.array([np.mean(c) for c in columns]),
        np.array([np.std(c) for c in columns]),
        np.array([len(c) for c in columns], dtype=np.int64),
    )


def pooled(study: Study) -> tuple[LineFit, float]:
    """Fit one line through all points of all forks; return it with its intercept."""
    x = [n for fork in study.forks for n in fork.revealed]
    y = [h for fork in study.forks for h in fork.path]
    line = fit(x, y) if len(set(x)) > 1 else LineFit(np.nan, np.nan)
    return line, float(np.mean(y) - line.slope * np.mean(x)) if len(y) else np.nan


def numbers(study: Study) -> dict[str, Any]:
    """Return the numbers of the report as data."""
    slopes, r2, distinct = study.slopes(), study.r2(), study.distinct()
    return {
        "task": study.task,
        "threshold": study.threshold,
        "forks": len(study.forks),
        "with_anchors": len(slopes),
        "median_slope": _median(slopes),
        "falling": float(np.mean(slopes < 0)) if len(slopes) else None,
        "fitted": len(r2),
        "median_r2": _median(r2),
        "graded": len(distinct),
        "two_or_more": float(np.mean(distinct >= 2)) if len(distinct) else None,
        "mean_outcomes": float(np.mean(distinct)) if len(distinct) else None,
    }


def text(studies: Sequence[Study], facts: str) -> str:
    """Return the report in Markdown; `facts` describes the run."""
    lines = [
        "# Fork tokens",
        "",
        facts,
        "",
        "| task | forks | above (nats) | with anchors | median slope | falling | median R² | ≥ 2 outcomes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for study in studies:
        n = numbers(study)
        lines.append(
            f"| {n['task']} | {n['forks']} | {n['threshold']:.2f} | {n['with_anchors']} | "
            f"{_number(n['median_slope'])} | {_percent(n['falling'])} | {_number(n['median_r2'])} "
            f"(of {n['fitted']}) | {_percent(n['two_or_more'])} |"
        )
    lines += [
        f"| *the paper* | | | | | almost all | about {PAPER_R2} | "
        f"{100 * PAPER_SHARE[0]:.0f} % (GSM8K) to {100 * PAPER_SHARE[1]:.0f} % (MATH) |",
        "",
        "*with anchors*: forks that LC did not commit at once, for which a slope exists. *R²* needs three points and "
        "an entropy that moves. *Outcomes*: well-formed and different by the task's grader (for programs: by "
        "which of their tests pass). Ungraded alternatives "
        f"(our own failures): {sum(f.ungraded for s in studies for f in s.forks)}.",
        "",
    ]
    return "\n".join(lines)


def blocks(study: Study) -> list[Part]:
    """Return what the viewer shows of a study: sentences, two charts and its forks, the most uncertain first."""
    n, task = numbers(study), task_name(study.task)
    conclusions = [
        f"Forks are the most uncertain positions of the answers: {counted(n['forks'], 'fork')} in {task}."
    ]
    if n["with_anchors"]:
        conclusions.append(
            f"While LC reveals other positions before a fork, its entropy falls at {_percent(n['falling'])} of "
            f"{counted(n['with_anchors'], 'fork')} (median slope {n['median_slope']:+.2f} nats per position)."
        )
    if n["graded"]:
        conclusions.append(
            f"At {_percent(n['two_or_more'])} of {counted(n['graded'], 'fork')} the likeliest tokens lead to two or "
            f"more different answers ({n['mean_outcomes']:.1f} on average)."
        )
    x, mean, spread, count = degradation(study)
    kept = count >= min(_FEWEST, count.max(initial=0))
    entropy = curve("mean ± 1 std", FORK, x[kept], mean[kept], (mean - spread)[kept], (mean + spread)[kept])
    sizes, forks = np.unique(study.distinct(), return_counts=True)
    outcomes = curve("share of forks", FORK, sizes, forks / max(1, forks.sum()), points=True)
    figures = [
        curve_chart("entropy of forks still masked (nats)", "other positions revealed", [entropy]),
        curve_chart("forks by different answers", "different answers", [outcomes], percent=True),
    ]
    rows = [
        [
            fork.name,
            round(fork.entropy, 3),
            len(fork.path),
            _entry(fork.line.slope),
            _entry(fork.line.r2),
            fork.distinct,
            ", ".join(dict.fromkeys(answer for answer in fork.answers if answer is not None)),
        ]
        for fork in sorted(study.forks, key=lambda fork: -fork.entropy)[:_ROWS]
    ]
    return [
        sentences(f"Forks of {task}", conclusions),
        charts(f"Forks of {task}: measured", figures),
        table(f"Forks of {task}: one by one", FORK_COLUMNS, rows),
    ]


def _entry(value: float) -> float | str:
    return round(value, 3) if np.isfinite(value) else "–"


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
