"""`twotemp report`, `twotemp view`, `twotemp select` and `twotemp export`: what the samples of runs show."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from twotemp import analysis, rewards
from twotemp.analysis import Choice, GradedCell, k_grid, with_portfolios
from twotemp.analysis.compare import interval
from twotemp.cli.console import next_command, output, progress, say, status
from twotemp.cli.options import Altered, DataFiles, Graders, Json, graders_by_task, task_files
from twotemp.cli.trace import tokenizer_of
from twotemp.errors import UserError, counted
from twotemp.evaluation.work import without_verdicts
from twotemp.folders import expect
from twotemp.report import (
    NO_FIGURES,
    Page,
    figures,
    grpo,
    live,
    selection,
    tables,
    viewer,
    write,
    write_selection,
)
from twotemp.report.diversity import write as write_diversity
from twotemp.report.style import label as policy_label
from twotemp.report.tables import TableBlock
from twotemp.serialization import json_text
from twotemp.store import Store
from twotemp.store import export as write_parquet
from twotemp.tasks import SOURCES


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders named by --out; several are compared.")],
    out: Annotated[Path | None, "Where to write (default: RUN/report)."] = None,
    k: Annotated[str | None, typer.Option("-k", help="Columns, e.g. 1,8,64 (default: 1, 2, 4, …).")] = None,
    grader: Graders = None,
    updates: Annotated[
        bool, "For GRPO runs: count updates instead of steps on the x-axis, as the paper does."
    ] = False,
    diversity: Annotated[
        bool, "Report how different the samples are, with their cost and length; needs no grades."
    ] = False,
    embeddings: Annotated[
        Path | None,
        "With --diversity: the folder of a sentence-embedding model, to compare texts by meaning as well.",
    ] = None,
) -> None:
    """Write tables (Markdown, CSV, LaTeX) and the paper's figures.

    Figures for which the runs have no data are left out. If there are several samples per question, the report also
    has the results of choosing one answer (see `twotemp select`). For runs of `twotemp grpo` it has the paper's three
    panels and a table of what each run did with its budget. report.html is the page of `twotemp view`, in one file.

    Missing or damaged parts of a run are listed first, and the exit code is then 3.

    [bold]Examples[/bold]
      twotemp report runs/first
      twotemp report runs/tlc runs/tct -k 1,8,64 --out comparison
      twotemp report runs/stories --diversity
    """
    ks = _numbers(k) if k else None
    folder = out or runs[0] / "report"
    kinds = {expect(run, "evaluation", "grpo") for run in runs}
    if diversity:
        if "grpo" in kinds:
            raise UserError("--diversity reads runs of `twotemp eval` only; leave the others out")
        _diversity_report(runs, folder, embeddings)
    elif embeddings is not None:
        raise UserError("--embeddings adds a measure to --diversity; give both")
    elif kinds == {"grpo"}:
        _training_report(runs, folder, updates)
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


def _training_report(runs: Sequence[Path], folder: Path, updates: bool) -> None:
    page, figure = grpo.write(runs, folder, updates=updates)
    html = viewer.write(folder / "report.html", viewer.view(runs))
    output.print(page.read_text("utf-8"), markup=False, highlight=False, soft_wrap=True)
    say(f"figure: {figure.path}" if figure else NO_FIGURES)
    say(
        f"report: {page}, {html}; sample from the trained model: twotemp sample --model {runs[0] / 'model'} …"
    )


def _diversity_report(runs: Sequence[Path], folder: Path, embeddings: Path | None = None) -> None:
    page = write_diversity(runs, folder, embeddings)
    output.print(page.read_text("utf-8"), markup=False, highlight=False, soft_wrap=True)
    say(f"report: {page}; diversity.csv has the same numbers")


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"-k {text}: write whole numbers separated by commas, e.g. 1,8,64") from None


def select(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    by: Annotated[
        str, "Selectors, separated by commas: majority, orm, weighted, confidence, pll, oracle."
    ] = "majority,orm,weighted,oracle",
    rm: Annotated[
        str | None,
        "Reward model: verifier (default), verifier:FOLDER, a folder, a hub id, or likelihood:DENOISER.",
    ] = None,
    rm_system: Annotated[
        str | None, "Text the reward model expects before the question (AceMath's is known)."
    ] = None,
    out: Annotated[Path | None, "Where to write (default: RUN/selection)."] = None,
    grader: Graders = None,
    data: DataFiles = None,
    altered: Altered = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers scored together.")] = 32,
    device: Annotated[str | None, "The reward model's device (default: CUDA if available)."] = None,
    as_json: Json = False,
) -> None:
    """Choose one answer from k samples and report Best@k and Best@NFE.

    Nothing is drawn again; rewards are computed once and stored in the run. If the run is incomplete, what is
    missing is listed and the exit code is 3.

    [bold]Examples[/bold]
      twotemp select runs/first --by majority,orm,weighted,oracle
      twotemp select runs/llada --by majority,orm --rm nvidia/AceMath-7B-RM --device cuda
    """
    selectors = analysis.check_selectors([name.strip() for name in by.split(",") if name.strip()])
    needs = {analysis.SELECTORS[name].needs for name in selectors}
    if "rewards" not in needs and (rm or rm_system):
        raise UserError(
            f"--by {by} uses no reward model: add orm or weighted, or leave --rm and --rm-system out"
        )
    surveyed = analysis.survey([run], graders_by_task([run], grader))
    files = task_files(data, [cell.task for cell in surveyed.cells])
    model = sampler = None
    if "rewards" in needs:
        model = rewards.load(rm or rewards.VERIFIER, system=rm_system, device=device, batch_size=batch_size)
    if "likelihoods" in needs:  # under the model that drew the samples
        sampler = rewards.sampling_model(device=device, batch_size=batch_size)
    with progress("rewards") as bar:
        cells = analysis.add_ballots(
            surveyed.cells,
            data=files,
            allow_altered=altered,
            reward_model=model,
            confidence="traces" in needs,
            sampling_model=sampler,
            on_scores=lambda cell, done, total: bar.update(done, total, cell),
        )
    cells = with_portfolios(cells, [run])
    choices = analysis.every_choice(cells, selectors)
    page = write_selection(choices, out or run / "selection", surveyed.gaps)
    show_gaps(surveyed.gaps)
    if as_json:
        for choice in choices:
            typer.echo(json_text(choice.summary()))
    else:
        costs, grid = {"NFE": lambda cell: cell.cost()}, k_grid(cells)
        title = "Best@k in % (95 % interval)"
        show_blocks(title, costs, lambda ks: selection.blocks(choices, ks), grid)
    show_page(replace(page, sentences=()) if as_json else page)
    say(f"next: open {page.path}")
    if surveyed.gaps:
        raise typer.Exit(INCOMPLETE)


INCOMPLETE = 3  # exit code: the report is written, but its run is incomplete


def write_report(
    runs: Sequence[Path],
    folder: Path,
    ks: Sequence[int] | None = None,
    grader: str | Mapping[str, str] | None = None,
) -> bool:
    """Write the report of some runs and print its table, its findings and the names of its files.

    Args:
        runs: The folders of the runs.
        folder: Where the report goes.
        ks: The columns of the table; None: 1, 2, 4, ….
        grader: The grader whose verdicts are used, or one for each task.

    Returns:
        Whether the runs are complete.
    """
    if without_verdicts(runs):
        _diversity_report(runs, folder)
        return True
    surveyed = analysis.survey(runs, grader)
    shown = with_portfolios(surveyed.cells, runs)
    page = write(shown, folder, ks, surveyed.gaps)
    show_gaps(surveyed.gaps)
    show_table(shown, ks)
    show_page(page)
    several = [cell for cell in surveyed.cells if cell.samples > 1]
    choices: list[Choice] = []
    if several:
        try:
            chosen = analysis.stored_choices(surveyed.cells, runs)
            answers = write_selection(chosen, folder, surveyed.gaps)
            choices = [choice for choice in chosen if not choice.cell.ordered]  # a page of cells
        except UserError as error:
            say(f"the report has no page about choosing one answer: {error}")
        else:
            show_page(answers)
    html = viewer.write(folder / "report.html", _view(runs, grader, choices=choices, surveyed=surveyed))
    choose = select_command(runs[0], {cell.task for cell in several})
    say(f"next: open {html} in a browser{f'; choose one answer from many: {choose}' if several else ''}")
    return not surveyed.gaps


def _view(runs: Sequence[Path], grader: str | Mapping[str, str] | None, **read: Any) -> viewer.View:
    """Return what the viewer shows of some runs; tokens are decoded if the model's tokenizer is on this machine."""

    def tokenizer() -> Any | None:
        return tokenizer_of(None, Store.open(runs[0]).cells()[0].config.model)

    return viewer.view(runs, grader, tokenizer=tokenizer, **read)


def view(
    runs: Annotated[list[Path], typer.Argument(help="Folders named by --out; several are compared.")],
    grader: Graders = None,
    out: Annotated[Path | None, "Write the page to this file instead of serving it."] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port (default: any free one).")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Look at a run in the browser: curves, questions, answers, samples.

    The page follows a run that is still being drawn. `twotemp report` writes the same page as report.html.

    [bold]Examples[/bold]
      twotemp view runs/first
      twotemp view runs/first --out first.html
    """
    by_task = graders_by_task(runs, grader)
    if out is not None:
        say(f"page: {viewer.write(out, _view(runs, by_task))}; next: open it in a browser")
        return
    for run in runs:
        expect(run, "evaluation", "grpo")
    # A served page can show all traces, because each chunk is sent only when it is looked at.
    running = live.LiveRun(runs, lambda: _view(runs, by_task, largest=sys.maxsize))
    server = live.server(running, port)
    address = f"http://{live.HOST}:{server.server_port}/"
    say(f"{', '.join(map(str, runs))}: {address}   Ctrl-C stops it")
    if browser:
        webbrowser.open(address)
    with server:
        server.serve_forever()


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
        output.print(
            f"left out because they could not be graded: {counted(ungraded, 'sample')}", highlight=False
        )


def show_blocks(
    title: str,
    costs: Mapping[str, Callable[[GradedCell], float]],
    blocks: Callable[[Sequence[int]], Iterable[TableBlock]],
    grid: Sequence[int],
) -> None:
    """Print a table of policies against k, with as many columns as the terminal has room for.

    Args:
        title: The line above the table.
        costs: Columns of costs, each with the function that computes it.
        blocks: Returns the rows of the table, by task, for some values of k.
        grid: The values of k to choose columns from.
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
