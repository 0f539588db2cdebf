"""Write reports of a run: tables, figures and pages, from the numbers of `analysis`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twotemp.analysis import (
    Choice,
    Finding,
    GradedCell,
    check_grid,
    findings,
    k_grid,
    selection_findings,
    unique,
)
from twotemp.analysis.compare import ComparisonBudget
from twotemp.errors import counted
from twotemp.folders import disk_errors
from twotemp.report import figures, selection, tables
from twotemp.report.figures import SavedFigure
from twotemp.report.style import family_label, model_name, signed, task_name
from twotemp.serialization import json_text

__all__ = ["Page", "sentence", "write", "write_selection"]

NO_FIGURES = "Without figures: they need matplotlib (pip install 'twotemp[plots]')."


@dataclass(frozen=True)
class Page:
    """A page on disk, and what it contains."""

    path: Path  # report.md or selection.md
    figures: tuple[SavedFigure, ...]
    sentences: tuple[str, ...]


def write(
    cells: Sequence[GradedCell], folder: Path | str, ks: Sequence[int] | None = None, gaps: Sequence[str] = ()
) -> Page:
    """Write report.md, passk.{md,csv,tex} and every figure that the cells have data for.

    Args:
        cells: Graded cells of one or several runs.
        folder: Where to write; created if it does not exist.
        ks: The columns of the tables; default: powers of two.
        gaps: What is missing or damaged (`analysis.survey`); listed at the top of the page.
    """
    folder = Path(folder)
    grid = list(ks) if ks else k_grid(cells)
    check_grid(grid, cells)
    sentences = [sentence(finding) for finding in findings(cells)]
    table = tables.markdown(cells, grid)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = figures.draw(cells, folder) if figures.available() else []
        (folder / "passk.md").write_text(table, "utf-8")
        (folder / "passk.csv").write_text(tables.as_csv(cells, grid), "utf-8")
        (folder / "passk.tex").write_text(tables.latex(cells, grid), "utf-8")
        models = ", ".join(model_name(m) for m in unique(cell.model for cell in cells))
        parts = [*_findings(sentences), "## pass@k\n", table, _notes(cells)]
        return _page(folder / "report.md", f"{models}: pass@k and pass@NFE", gaps, parts, drawn, sentences)


def write_selection(curves: Sequence[Choice], folder: Path | str, gaps: Sequence[str] = ()) -> Page:
    """Write selection.md, selection.csv, selected.jsonl (the chosen answers) and the figures into a folder."""
    folder = Path(folder)
    sentences = [sentence(finding) for finding in selection_findings(curves)]
    table = selection.markdown(curves)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = selection.draw(curves, folder) if figures.available() else []
        (folder / "selection.csv").write_text(selection.as_csv(curves), "utf-8")
        rows = "".join(json_text(row) + "\n" for curve in curves for row in curve.chosen())
        (folder / "selected.jsonl").write_text(rows, "utf-8")
        notes = selection.notes(unique(curve.cell for curve in curves))
        parts = [*_findings(sentences), "## Best@k\n", table, notes]
        return _page(folder / "selection.md", "One answer from many", gaps, parts, drawn, sentences)


def _page(
    path: Path,
    title: str,
    gaps: Sequence[str],
    parts: Sequence[str],
    drawn: Sequence[SavedFigure],
    sentences: Sequence[str],
) -> Page:
    lines = [f"# {title}\n"]
    if gaps:
        lines += ["**Incomplete:** comparisons below use the questions that both sides have.\n"]
        lines += ["\n".join(f"- {gap}" for gap in gaps) + "\n"]
    lines += parts if figures.available() else [*parts, NO_FIGURES + "\n"]
    for figure in drawn:
        lines += [f"## {figure.name}\n", f"![{figure.name}]({figure.path.name})\n", figure.caption + "\n"]
    path.write_text("\n".join(lines), "utf-8")
    return Page(path, tuple(drawn), tuple(sentences))


def _findings(sentences: Sequence[str]) -> list[str]:
    if not sentences:
        return []
    paired = "Differences are paired: the same questions on both sides, resampled together.\n"
    return ["## What it shows\n", "\n".join(f"- {text}" for text in sentences) + "\n", paired]


def _notes(cells: Sequence[GradedCell]) -> str:
    """Return what a reader must know to compare these numbers with others, as a Markdown list."""
    lines = [
        f"Percent. {tables.INTERVALS} Bold: the highest mean, where all are over the same questions.",
        "NFE counts tokens before EOS for AR and steps until every position is written for the others; "
        "`forwards` are the passes run.",
    ]
    for task in unique(cell.task for cell in cells):
        group = [cell for cell in cells if cell.task == task]
        counts = [len(cell.questions) for cell in group]
        sizes = "–".join(map(str, sorted({min(counts), max(counts)})))
        lengths = "/".join(str(length) for length in unique(cell.config.length for cell in group))
        blocks = "/".join(str(block or "default") for block in unique(cell.config.block for cell in group))
        lines.append(
            f"{task_name(task)}: {sizes} questions, length {lengths}, block {blocks}, "
            f"grader {', '.join(unique(cell.grader for cell in group))}."
        )
    ungraded = sum(cell.table.ungraded for cell in cells)
    if ungraded:
        lines.append(f"Left out because they could not be graded: {counted(ungraded, 'sample')}.")
    return "\n".join(f"- {line}" for line in lines) + "\n"


def sentence(finding: Finding) -> str:
    """Return one sentence: which policy is better, by how much, how certain that is, and on which tasks."""
    first, second = (family_label(side, plain=True) for side in (finding.first, finding.second))
    suffix = f" ({model_name(finding.model)})" if finding.model else ""
    if finding.metric == "entropy":
        return _entropy_sentence(finding, first, second, suffix)
    where = _budget(finding.budget, second) + suffix
    if finding.selector:
        where = f"choosing by {finding.selector} {where}"
    if finding.task:
        where = f"on {task_name(finding.task)}, {where}"
    mean, low, high = (100 * value for value in (finding.mean, finding.low, finding.high))
    detail = "".join(f", {task_name(task)} {signed(100 * gap)}" for task, gap in finding.tasks)
    interval = f"95 % interval {signed(low)} to {signed(high)}" + detail * (len(finding.tasks) > 1)
    if math.isnan(low):
        verdict = f"{first} and {second} differ by {signed(mean)} points"
        interval = _too_few(finding)
    elif low <= 0 <= high:
        verdict = f"{first} and {second} cannot be told apart: {signed(mean)} points"
    else:
        verdict = f"{first} solves {abs(mean):.1f} points {'more' if mean > 0 else 'fewer'} than {second}"
    return f"{where[0].upper()}{where[1:]}, {verdict} ({interval})."


def _entropy_sentence(finding: Finding, first: str, second: str, suffix: str) -> str:
    mean, low, high = finding.mean, finding.low, finding.high
    verdict = "is higher than" if low > 0 else "is lower than" if high < 0 else "cannot be told from"
    interval = f"95 % interval {signed(low, 2)} to {signed(high, 2)}"
    if math.isnan(low):
        verdict, interval = "compared with", _too_few(finding)
    detail = ", ".join(f"{task_name(task)} {signed(gap, 2)}" for task, gap in finding.tasks)
    return (
        f"The entropy of {first}'s answers to a question ({finding.budget.amount:.0f} samples){suffix} {verdict} "
        f"that of {second}: {signed(mean, 2)} nats ({interval}; {detail})."
    )


def _budget(budget: ComparisonBudget, second: str) -> str:
    if budget.kind == "samples":
        return (
            f"with {budget.amount:.0f} samples per question"
            if budget.amount > 1
            else "with one sample per question"
        )
    if budget.kind == "nfe":
        return f"for equal NFE ({budget.amount:.0f} per question)"
    return f"for the NFE of one {second} sample ({budget.amount:.0f})"


def _too_few(finding: Finding) -> str:
    return f"{finding.questions} questions: too few for an interval"
