"""`twotemp report` and `twotemp export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from twotemp.cli.console import output, say
from twotemp.cli.options import Graders, graders_by_task
from twotemp.cli.results import INCOMPLETE, write_report
from twotemp.errors import UserError
from twotemp.folders import expect
from twotemp.report import NO_FIGURES, grpo
from twotemp.store import export as write_parquet


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders named by --out; several are compared.")],
    out: Annotated[Path | None, typer.Option(help="Where to write (default: RUN/report).")] = None,
    k: Annotated[str | None, typer.Option("-k", help="Columns, e.g. 1,8,64 (default: 1, 2, 4, …).")] = None,
    grader: Graders = None,
) -> None:
    """Write tables (Markdown, CSV, LaTeX) and the paper's figures.

    Figures are drawn as far as the runs have data for them. With several samples per question the report also says
    what choosing one answer gives: see `twotemp select`. Runs of `twotemp grpo` get the paper's three panels and a
    table of what each run did with its budget.

    Missing or damaged parts of a run are listed first, and the exit code is then 3.

    [bold]Examples[/bold]

      twotemp report runs/first

      twotemp report runs/tlc runs/tct -k 1,8,64 --out comparison
    """
    ks = _numbers(k) if k else None
    folder = out or runs[0] / "report"
    if {expect(run, "evaluation", "grpo") for run in runs} == {"grpo"}:
        _training_report(runs, folder)
    elif not write_report(runs, folder, ks, graders_by_task(runs, grader)):
        raise typer.Exit(INCOMPLETE)


def export(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Argument(help="The Parquet file to write.")],
) -> None:
    """Write all samples of a run with their grades to one Parquet file.

    [bold]Example[/bold]

      twotemp export runs/first samples.parquet
    """
    say(f"wrote {write_parquet(run, out)} rows to {out}; read it with pandas.read_parquet('{out}')")


def _training_report(runs: Sequence[Path], folder: Path) -> None:
    page, figure = grpo.write(runs, folder)
    output.print(page.read_text("utf-8"), markup=False, highlight=False, soft_wrap=True)
    say(f"figure: {figure.path}" if figure else NO_FIGURES)
    say(f"report: {page}; sample from the trained model: twotemp sample --model {runs[0] / 'model'} …")


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"-k {text}: write whole numbers separated by commas, e.g. 1,8,64") from None
