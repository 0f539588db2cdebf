"""A run as tables, figures and plain sentences: everything a reader needs, made from the store alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twotemp.report import style, tables
from twotemp.report.figures import Drawn, draw
from twotemp.report.findings import Finding, compare
from twotemp.report.series import Series, check_grid, k_grid, read, unique

__all__ = ["Report", "Series", "read", "write"]


@dataclass(frozen=True)
class Report:
    path: Path  # report.md
    figures: tuple[Drawn, ...]
    findings: tuple[Finding, ...]


def write(series: Sequence[Series], folder: Path | str, ks: Sequence[int] | None = None) -> Report:
    """Write report.md, passk.{md,csv,tex} and every figure there is data for into a folder."""
    folder = Path(folder)
    grid = list(ks) if ks else k_grid(series)
    check_grid(grid, series)
    folder.mkdir(parents=True, exist_ok=True)
    drawn, found = draw(series, folder), compare(series)
    markdown = tables.markdown(series, grid)
    (folder / "passk.md").write_text(markdown)
    (folder / "passk.csv").write_text(tables.as_csv(series, grid))
    (folder / "passk.tex").write_text(tables.latex(series, grid))
    path = folder / "report.md"
    path.write_text(_page(series, markdown, drawn, found))
    return Report(path, tuple(drawn), tuple(found))


def _page(series: Sequence[Series], table: str, drawn: Sequence[Drawn], found: Sequence[Finding]) -> str:
    models = ", ".join(style.model_name(m) for m in unique(s.model for s in series))
    parts = [f"# {models}: pass@k and pass@NFE\n"]
    if found:
        parts += ["## What it shows\n", "\n".join(f"- {one.sentence}" for one in found) + "\n"]
        parts.append("Differences are paired: the same questions on both sides, resampled together.\n")
    parts += ["## pass@k\n", table, _notes(series)]
    for one in drawn:
        parts += [f"## {one.name}\n", f"![{one.name}]({one.path.name})\n", one.caption + "\n"]
    return "\n".join(parts)


def _notes(series: Sequence[Series]) -> str:
    """What a reader must know to compare these numbers with others."""
    lines = [
        "Percent, mean ± half-width of the 95 % bootstrap interval (10,000 resamples of the questions).",
        "NFE counts tokens before EOS for AR and steps until every position is written for the others; "
        "`forwards` are the passes run.",
    ]
    for task in unique(s.task for s in series):
        here = [s for s in series if s.task == task]
        sizes = "–".join(map(str, sorted({len(s.questions) for s in here})))
        lengths = "/".join(str(length) for length in unique(s.length for s in here))
        blocks = "/".join(str(block or "default") for block in unique(s.block for s in here))
        lines.append(
            f"{style.task_name(task)}: {sizes} questions, length {lengths}, block {blocks}, "
            f"grader {', '.join(unique(s.grader for s in here))}."
        )
    lost, waiting = sum(s.ungraded for s in series), sum(s.pending for s in series)
    lines.append(f"{lost} samples could not be graded and are left out.")
    if waiting:
        lines.append(f"{waiting} samples are not graded yet: `twotemp regrade RUN`.")
    return "\n".join(f"- {line}" for line in lines) + "\n"
