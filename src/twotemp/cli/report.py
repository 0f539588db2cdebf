"""`twotemp report` and `twotemp export`, and how results look in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from twotemp.cli.options import per_task
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.analysis import GradedCell
    from twotemp.report import Page
    from twotemp.report.tables import TableBlock

INCOMPLETE = 3  # exit code: the report is written, and the run it is of is not whole


Judges = Annotated[
    list[str] | None,
    typer.Option(help="Whose grades, where there are several; TASK=NAME: of that task. May be repeated."),
]


def judges_of(runs: Sequence[Path], said: Sequence[str] | None) -> Mapping[str, str]:
    """`--grader`, by task."""
    from twotemp.analysis import unique
    from twotemp.store import Store

    if not said:
        return {}
    stores = [Store.open(run) for run in runs]
    cells = (cell for store in stores for cell in store.cells(without=store.damage()))
    return per_task("--grader", said, unique(cell.config.task for cell in cells))


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders named by --out; several are compared.")],
    out: Annotated[Path | None, typer.Option(help="Where to write (default: RUN/report).")] = None,
    k: Annotated[str | None, typer.Option("-k", help="Columns, e.g. 1,8,64 (default: 1, 2, 4, …).")] = None,
    grader: Judges = None,
) -> None:
    """Write tables (Markdown, CSV, LaTeX) and the paper's figures, as far as the runs have data for them.

    With several samples per question also what choosing one answer gives: see `twotemp select`. Runs of
    `twotemp grpo` get the paper's three panels and a table of what each did with its budget.

    What is missing or damaged is listed first, and the exit code is then 3.
    """
    ks = _numbers(k) if k else None
    from twotemp.folders import expect

    folder = out or runs[0] / "report"
    if {expect(run, "evaluation", "grpo") for run in runs} == {"grpo"}:
        _training_report(runs, folder)
    elif not write_report(runs, folder, ks, judges_of(runs, grader)):
        raise typer.Exit(INCOMPLETE)


def export(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Argument(help="The Parquet file to write.")],
) -> None:
    """Write all samples of a run with their grades as one Parquet file."""
    from twotemp.cli.console import say
    from twotemp.store import export as write

    say(f"{write(run, out)} rows in {out}")


def write_report(
    runs: Sequence[Path],
    folder: Path,
    ks: Sequence[int] | None = None,
    grader: str | Mapping[str, str] | None = None,
) -> bool:
    """Write the report; the table, the findings and the names of the files go to the terminal. False: incomplete."""
    from twotemp.analysis import add_ballots, common_reward_model, every_choice, survey
    from twotemp.cli.console import say
    from twotemp.report import write, write_selection

    found = survey(runs, grader)
    page = write(found.cells, folder, ks, found.gaps)
    show_gaps(found.gaps)
    show_table(found.cells, ks)
    show_page(page)
    several = [one for one in found.cells if one.samples > 1]
    if several:
        model = common_reward_model(several)
        selectors = ("majority", "orm", "weighted", "oracle") if model else ("majority", "oracle")
        try:
            counted = add_ballots(several, hub=False, reward_model=model)
            chosen = write_selection(every_choice(counted, selectors), folder, found.gaps)
        except UserError as error:
            say(f"without what choosing one answer gives ({error})")
        else:
            show_page(chosen)
    return not found.gaps


def show_gaps(gaps: Sequence[str]) -> None:
    """What is missing or damaged, before anything else."""
    from twotemp.cli.console import people

    for gap in gaps:
        people.print(f"[red]incomplete:[/red] {escape(gap)}", highlight=False)


def show_page(page: Page) -> None:
    """The sentences, and where everything is."""
    from twotemp.cli.console import output, say
    from twotemp.report import NO_FIGURES
    from twotemp.report.figures import available

    for sentence in page.sentences:
        output.print(f"• {sentence}", highlight=False, markup=False)
    say(f"report: {page.path}")
    for figure in page.figures:
        say(f"figure: {figure.path}")
    if not available():
        say(NO_FIGURES)


def _training_report(runs: Sequence[Path], folder: Path) -> None:
    from twotemp.cli.console import output, say
    from twotemp.report import NO_FIGURES, grpo

    page, figure = grpo.write(runs, folder)
    output.print(page.read_text("utf-8"), markup=False, highlight=False, soft_wrap=True)
    say(f"report: {page}")
    say(f"figure: {figure.path}" if figure else NO_FIGURES)


def show_table(cells: Sequence[GradedCell], ks: Sequence[int] | None = None) -> None:
    """pass@k with 95 % intervals and both NFE accountings."""
    from twotemp.analysis import k_grid
    from twotemp.cli.console import output
    from twotemp.report import tables

    costs = {"NFE": lambda one: one.cost("nfe"), "fwd": lambda one: one.cost("forwards")}
    grid = list(ks) if ks else k_grid(cells)
    title = "pass@k in % (95 % interval); fwd: forward passes run"
    show_blocks(title, costs, lambda ks: tables.blocks(cells, ks), grid)
    lost = sum(one.table.ungraded for one in cells)
    if lost:
        output.print(f"{lost} samples could not be graded and are left out", highlight=False)


def show_blocks(
    title: str,
    costs: Mapping[str, Callable[[GradedCell], float]],
    blocks: Callable[[Sequence[int]], Iterable[TableBlock]],
    grid: Sequence[int],
) -> None:
    """Policies against k, in as many columns as the terminal has room for."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from twotemp.cli.console import output
    from twotemp.report.names import label as policy_label

    names = [", ".join(one.names) for one in blocks(grid[:1])]
    names += [policy_label(row.cell.policy, plain=True) for one in blocks(grid[:1]) for row in one.rows]
    room = max(2, (output.width - max(map(len, names)) - 2 - 6 * len(costs)) // len("100.0 (95–100)  "))
    if len(grid) > room:  # evenly spaced, the first and the last always
        grid = [grid[round(at * (len(grid) - 1) / (room - 1))] for at in range(room)]
    table = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for head in (*costs, *(f"k = {k}" for k in grid)):
        table.add_column(head, justify="right", no_wrap=True)
    for one in blocks(grid):
        table.add_row(f"[bold]{', '.join(one.names)}[/bold]")
        for row in one.rows:
            texts = ["–" if e is None else e.text(0) for e in row.entries]
            bold = [e is not None and e.best for e in row.entries]
            entries = [f"[bold]{text}[/bold]" if best else text for text, best in zip(texts, bold)]
            numbers = [f"{cost(row.cell):.1f}" for cost in costs.values()]
            label = policy_label(row.cell.policy, plain=True)
            table.add_row(label, *numbers, *entries, end_section=row is one.rows[-1])
    output.print(table)


def summary(one: GradedCell) -> dict[str, object]:
    from twotemp.analysis import k_grid
    from twotemp.analysis.choice import interval

    costs = {"forwards": one.cost("forwards"), "seconds": one.cost("seconds")}
    return {**one.summary(), **costs, "pass": {str(k): interval(one.curve, k - 1) for k in k_grid([one])}}


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"-k {text}: write whole numbers separated by commas, e.g. 1,8,64") from None
