"""A run as tables, figures and pages: everything a reader needs, made from what `analysis` found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twotemp.analysis import Choice, Graded, check_grid, findings, k_grid, selection_findings, unique
from twotemp.folders import disk_errors
from twotemp.report import best_figures, best_tables, figures, style, tables
from twotemp.report.figures import Drawn
from twotemp.serialization import json_text

__all__ = ["Page", "write", "write_selection"]

NO_FIGURES = "Without figures: they need matplotlib (pip install 'twotemp[plots]')."


@dataclass(frozen=True)
class Page:
    path: Path  # report.md or selection.md
    figures: tuple[Drawn, ...]
    sentences: tuple[str, ...]


def write(
    cells: Sequence[Graded], folder: Path | str, ks: Sequence[int] | None = None, gaps: Sequence[str] = ()
) -> Page:
    """Write report.md, passk.{md,csv,tex} and every figure there is data for into a folder.

    gaps: what is missing or damaged, as `analysis.survey` says it; it stands at the top of the page.
    """
    folder = Path(folder)
    grid = list(ks) if ks else k_grid(cells)
    check_grid(grid, cells)
    sentences = [finding.sentence for finding in findings(cells)]
    table = tables.markdown(cells, grid)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = figures.draw(cells, folder) if figures.available() else []
        (folder / "passk.md").write_text(table, "utf-8")
        (folder / "passk.csv").write_text(tables.as_csv(cells, grid), "utf-8")
        (folder / "passk.tex").write_text(tables.latex(cells, grid), "utf-8")
        models = ", ".join(style.model_name(m) for m in unique(one.model for one in cells))
        parts = [*_shown(sentences), "## pass@k\n", table, _notes(cells)]
        return _page(folder / "report.md", f"{models}: pass@k and pass@NFE", gaps, parts, drawn, sentences)


def write_selection(found: Sequence[Choice], folder: Path | str, gaps: Sequence[str] = ()) -> Page:
    """Write selection.md, selection.csv, selected.jsonl (what was chosen) and the figures into a folder."""
    folder = Path(folder)
    sentences = list(selection_findings(found))
    table = best_tables.markdown(found)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = best_figures.draw(found, folder) if figures.available() else []
        (folder / "selection.csv").write_text(best_tables.as_csv(found), "utf-8")
        rows = "".join(json_text(row) + "\n" for choice in found for row in choice.chosen())
        (folder / "selected.jsonl").write_text(rows, "utf-8")
        notes = best_tables.notes(unique(choice.cell for choice in found))
        parts = [*_shown(sentences), "## Best@k\n", table, notes]
        return _page(folder / "selection.md", "One answer from many", gaps, parts, drawn, sentences)


def _page(
    path: Path,
    title: str,
    gaps: Sequence[str],
    parts: Sequence[str],
    drawn: Sequence[Drawn],
    sentences: Sequence[str],
) -> Page:
    lines = [f"# {title}\n"]
    if gaps:
        lines += ["**Incomplete:** what is compared below is what both sides have.\n"]
        lines += ["\n".join(f"- {gap}" for gap in gaps) + "\n"]
    lines += parts if figures.available() else [*parts, NO_FIGURES + "\n"]
    for one in drawn:
        lines += [f"## {one.name}\n", f"![{one.name}]({one.path.name})\n", one.caption + "\n"]
    path.write_text("\n".join(lines), "utf-8")
    return Page(path, tuple(drawn), tuple(sentences))


def _shown(sentences: Sequence[str]) -> list[str]:
    if not sentences:
        return []
    paired = "Differences are paired: the same questions on both sides, resampled together.\n"
    return ["## What it shows\n", "\n".join(f"- {one}" for one in sentences) + "\n", paired]


def _notes(cells: Sequence[Graded]) -> str:
    """What a reader must know to compare these numbers with others."""
    lines = [
        f"Percent. {tables.INTERVALS} Bold: the highest mean, where all are over the same questions.",
        "NFE counts tokens before EOS for AR and steps until every position is written for the others; "
        "`forwards` are the passes run.",
    ]
    for task in unique(one.task for one in cells):
        here = [one for one in cells if one.task == task]
        counts = [len(one.questions) for one in here]
        sizes = "–".join(map(str, sorted({min(counts), max(counts)})))
        lengths = "/".join(str(length) for length in unique(one.config.length for one in here))
        blocks = "/".join(str(block or "default") for block in unique(one.config.block for one in here))
        lines.append(
            f"{style.task_name(task)}: {sizes} questions, length {lengths}, block {blocks}, "
            f"grader {', '.join(unique(one.grader for one in here))}."
        )
    if ungraded := sum(one.table.ungraded for one in cells):
        lines.append(f"{ungraded} samples could not be graded and are left out.")
    return "\n".join(f"- {line}" for line in lines) + "\n"
