"""`twotemp report` and `twotemp export`, and how results look in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.report import Series


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders named by --out; several are compared.")],
    out: Annotated[Path | None, typer.Option(help="Where to write (default: RUN/report).")] = None,
    k: Annotated[str | None, typer.Option("-k", help="Columns, e.g. 1,8,64 (default: 1, 2, 4, …).")] = None,
    grader: Annotated[str | None, typer.Option(help="Whose grades, where there are several.")] = None,
) -> None:
    """Write tables (Markdown, CSV, LaTeX) and the paper's figures, as far as the runs have data for them.

    Runs of `twotemp grpo` get the paper's three panels and a table of what each did with its budget.
    """
    ks = _numbers(k) if k else None
    from twotemp.report import grpo, read

    if any(grpo.is_run(run) for run in runs):
        _training_report(runs, out or runs[0] / "report")
    else:
        write_report(read(runs, grader), out or runs[0] / "report", ks)


def export(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Argument(help="The Parquet file to write.")],
) -> None:
    """Write all samples of a run with their grades as one Parquet file."""
    from twotemp.cli.console import people
    from twotemp.store import export as write

    people.print(f"{write(run, out)} rows in {out}", highlight=False)


def write_report(series: Sequence[Series], folder: Path, ks: Sequence[int] | None = None) -> None:
    """Write the report; the table, the findings and the names of the files go to the terminal."""
    from twotemp.cli.console import output, people
    from twotemp.report import write

    made = write(series, folder, ks)
    show_table(series, ks)
    for finding in made.findings:
        output.print(f"• {finding.sentence}", highlight=False)
    people.print(f"report: {made.path}", highlight=False)
    for figure in made.figures:
        people.print(f"figure: {figure.path}", highlight=False)


def _training_report(runs: Sequence[Path], folder: Path) -> None:
    from twotemp.cli.console import output, people
    from twotemp.report import grpo

    page, figure = grpo.write(runs, folder)
    output.print(page.read_text("utf-8"), markup=False, highlight=False, soft_wrap=True)
    people.print(f"report: {page}", highlight=False)
    people.print(f"figure: {figure.path}", highlight=False)


def show_table(series: Sequence[Series], ks: Sequence[int] | None = None) -> None:
    """pass@k with 95 % intervals and both NFE accountings, in as many columns as the terminal has room for."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from twotemp.cli.console import output
    from twotemp.report import style, tables
    from twotemp.report.series import k_grid

    grid = list(ks) if ks else k_grid(series)
    room = max(2, (output.width - 31) // 12)
    if len(grid) > room:  # evenly spaced, the first and the last always
        grid = [grid[round(at * (len(grid) - 1) / (room - 1))] for at in range(room)]
    several = len({s.model for s in series}) > 1
    title = "pass@k in %, mean ±half-width of the 95 % interval; fwd: forward passes run"
    table = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("NFE", "fwd", *(f"k = {k}" for k in grid)):
        table.add_column(name, justify="right", no_wrap=True)
    for block in tables.blocks(series, grid):
        first = block[0].series
        where = style.task_name(first.task) + (f", {style.model_name(first.model)}" if several else "")
        table.add_row(f"[bold]{where}[/bold]", *[""] * (len(grid) + 2))
        for row in block:
            cells = ["–" if cell is None else f"{cell.mean:.1f} ±{cell.half:.1f}" for cell in row.cells]
            table.add_row(
                style.label(row.series.policy, plain=True),
                f"{row.nfe:.1f}",
                f"{row.forwards:.1f}",
                *(
                    f"[bold]{text}[/bold]" if cell and cell.best else text
                    for cell, text in zip(row.cells, cells)
                ),
                end_section=row is block[-1],
            )
    output.print(table)
    lost = sum(s.ungraded for s in series)
    if lost:
        output.print(f"{lost} samples could not be graded and are left out", highlight=False)


def summary(one: Series) -> dict[str, object]:
    from twotemp.policies import spell
    from twotemp.report.series import k_grid

    return {
        "model": one.model,
        "task": one.task,
        "policy": spell(one.policy),
        "grader": one.grader,
        "questions": len(one.questions),
        "n": one.samples,
        "ungraded": one.ungraded,
        "nfe": one.cost("nfe"),
        "forwards": one.cost("forwards"),
        "seconds": one.cost("seconds"),
        "pass": {
            str(k): {name: float(getattr(one.curve, name)[k - 1]) for name in ("mean", "low", "high")}
            for k in k_grid([one])
        },
    }


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"-k {text}: write whole numbers separated by commas, e.g. 1,8,64") from None
