"""Results in a terminal: tables of pass@k and Best@k, written reports, and where the files are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from twotemp.analysis import GradedCell, add_ballots, common_reward_model, every_choice, k_grid, survey
from twotemp.analysis.compare import interval
from twotemp.cli.console import next_command, output, say, status
from twotemp.errors import UserError
from twotemp.report import NO_FIGURES, Page, figures, tables, write, write_selection
from twotemp.report.style import label as policy_label
from twotemp.report.tables import TableBlock
from twotemp.tasks import SOURCES

INCOMPLETE = 3  # exit code: the report is written, but its run is incomplete


def write_report(
    runs: Sequence[Path],
    folder: Path,
    ks: Sequence[int] | None = None,
    grader: str | Mapping[str, str] | None = None,
) -> bool:
    """Write the report of some runs and print its table, its findings and the names of its files.

    Args:
        runs: the folders of the runs.
        folder: where the report goes.
        ks: the columns of the table; None: 1, 2, 4, ….
        grader: the grader whose verdicts are used, or one for each task.

    Returns:
        Whether the runs are complete.
    """
    surveyed = survey(runs, grader)
    page = write(surveyed.cells, folder, ks, surveyed.gaps)
    show_gaps(surveyed.gaps)
    show_table(surveyed.cells, ks)
    show_page(page)
    several = [cell for cell in surveyed.cells if cell.samples > 1]
    if several:
        model = common_reward_model(several)
        selectors = ("majority", "orm", "weighted", "oracle") if model else ("majority", "oracle")
        try:
            counted = add_ballots(several, hub=False, reward_model=model)
            selection = write_selection(every_choice(counted, selectors), folder, surveyed.gaps)
        except UserError as error:
            say(f"the report has no page about choosing one answer: {error}")
        else:
            show_page(selection)
    choose = select_command(runs[0], {cell.task for cell in several})
    say(f"next: open {page.path}{f'; choose one answer of many: {choose}' if several else ''}")
    return not surveyed.gaps


def select_command(run: Path, names: Collection[str]) -> str:
    """Return the command that chooses one answer per question of a run with these tasks."""
    # The default selectors need the embedded verifier, which knows only the embedded tasks.
    return next_command("select", run) + ("" if {*names} <= {*SOURCES} else " --by majority,oracle")


def show_gaps(gaps: Sequence[str]) -> None:
    """Print what is missing or damaged."""
    for gap in gaps:
        status.print(f"[red]incomplete:[/red] {escape(gap)}", highlight=False)


def show_page(page: Page) -> None:
    """Print a page's findings and where its files are."""
    for sentence in page.sentences:
        output.print(f"• {sentence}", highlight=False, markup=False)
    say(f"report: {page.path}")
    for figure in page.figures:
        say(f"figure: {figure.path}")
    if not figures.available():
        say(NO_FIGURES)


def show_table(cells: Sequence[GradedCell], ks: Sequence[int] | None = None) -> None:
    """Print pass@k with 95 % intervals and both costs, NFE and forward passes."""
    costs = {"NFE": lambda cell: cell.cost("nfe"), "fwd": lambda cell: cell.cost("forwards")}
    grid = list(ks) if ks else k_grid(cells)
    title = "pass@k in % (95 % interval); fwd: forward passes run"
    show_blocks(title, costs, lambda ks: tables.blocks(cells, ks), grid)
    ungraded = sum(cell.table.ungraded for cell in cells)
    if ungraded:
        output.print(f"{ungraded} samples could not be graded and are left out", highlight=False)


def show_blocks(
    title: str,
    costs: Mapping[str, Callable[[GradedCell], float]],
    blocks: Callable[[Sequence[int]], Iterable[TableBlock]],
    grid: Sequence[int],
) -> None:
    """Print a table of policies against k, with as many columns as the terminal has room for.

    Args:
        title: the line above the table.
        costs: columns of costs, each with the function that computes it.
        blocks: returns the rows of the table, by task, for some values of k.
        grid: the values of k to choose columns from.
    """
    names = [", ".join(block.names) for block in blocks(grid[:1])]
    names += [policy_label(row.cell.policy, plain=True) for block in blocks(grid[:1]) for row in block.rows]
    room = max(2, (output.width - max(map(len, names)) - 2 - 6 * len(costs)) // len("100.0 (95–100)  "))
    if len(grid) > room:  # evenly spaced, the first and the last always
        grid = [grid[round(column * (len(grid) - 1) / (room - 1))] for column in range(room)]
    table = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for head in (*costs, *(f"k = {k}" for k in grid)):
        table.add_column(head, justify="right", no_wrap=True)
    for block in blocks(grid):
        table.add_row(f"[bold]{', '.join(block.names)}[/bold]")
        for row in block.rows:
            texts = ["–" if e is None else e.text(0) for e in row.entries]
            bold = [e is not None and e.best for e in row.entries]
            entries = [f"[bold]{text}[/bold]" if best else text for text, best in zip(texts, bold)]
            numbers = [f"{cost(row.cell):.1f}" for cost in costs.values()]
            label = policy_label(row.cell.policy, plain=True)
            table.add_row(label, *numbers, *entries, end_section=row is block.rows[-1])
    output.print(table)


def summary(cell: GradedCell) -> dict[str, object]:
    """Return a cell's configuration, costs and pass@k as `--json` prints them."""
    costs = {"forwards": cell.cost("forwards"), "seconds": cell.cost("seconds")}
    return {**cell.summary(), **costs, "pass": {str(k): interval(cell.curve, k - 1) for k in k_grid([cell])}}
