"""Write reports of a run: tables, figures and pages, from the numbers of `analysis`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twotemp.analysis import Choice, GradedCell, check_grid, findings, k_grid, selection_findings, unique
from twotemp.folders import disk_errors
from twotemp.report import best_figures, best_tables, figures, tables
from twotemp.report.figures import SavedFigure
from twotemp.report.names import model_name, task_name
from twotemp.report.sentences import sentence
from twotemp.serialization import json_text

__all__ = ["Page", "write", "write_selection"]

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
    table = best_tables.markdown(curves)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = best_figures.draw(curves, folder) if figures.available() else []
        (folder / "selection.csv").write_text(best_tables.as_csv(curves), "utf-8")
        rows = "".join(json_text(row) + "\n" for curve in curves for row in curve.chosen())
        (folder / "selected.jsonl").write_text(rows, "utf-8")
        notes = best_tables.notes(unique(curve.cell for curve in curves))
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
        lines.append(f"{ungraded} samples could not be graded and are left out.")
    return "\n".join(f"- {line}" for line in lines) + "\n"
