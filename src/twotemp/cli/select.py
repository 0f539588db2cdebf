"""`twotemp select`: one answer from many, on the samples of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from twotemp.cli.options import Altered, task_files
from twotemp.plain import json_text


def select(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    by: Annotated[
        str, typer.Option(help="Selectors, separated by commas: majority, orm, weighted, confidence, oracle.")
    ] = "majority,orm,weighted,oracle",
    rm: Annotated[str, typer.Option(help="Reward model: `verifier`, a folder, or a hub id.")] = "verifier",
    rm_system: Annotated[
        str | None,
        typer.Option(help="Text the reward model expects before the question (AceMath's is known)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write (default: RUN/selection).")] = None,
    grader: Annotated[str | None, typer.Option(help="Whose grades, where there are several.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Local data files: TASK=FILE.")] = None,
    altered: Altered = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers scored together.")] = 32,
    device: Annotated[str | None, typer.Option(help="Of the reward model (default: CUDA if any).")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a task, policy and selector.")
    ] = False,
) -> None:
    """Choose one answer from k samples: Best@k and Best@NFE of every policy, under every selector.

    Nothing is drawn again; rewards are computed once and kept in the run.

    [bold]Examples[/bold]

      twotemp select runs/first --by majority,orm,weighted,oracle

      twotemp select runs/llada --by majority,orm --rm nvidia/AceMath-7B-RM --device cuda
    """
    from twotemp.selection import SELECTORS, named, read

    selectors = named([name.strip() for name in by.split(",") if name.strip()])
    needs = {SELECTORS[name].needs for name in selectors}
    model = None
    if "rewards" in needs:
        from twotemp import rewards

        model = rewards.load(rm, system=rm_system, device=device, batch_size=batch_size)
    with _scoring() as watch:
        ballots = read(
            run,
            grader=grader,
            data=task_files(data),
            allow_altered=altered,
            reward_model=model,
            confidence="traces" in needs,
            watch=watch,
        )
    from twotemp.cli.console import output, people
    from twotemp.report import selection

    found = selection.curves(ballots, selectors)
    made = selection.write(found, out or run / "selection")
    if as_json:
        for curve in found:
            typer.echo(json_text(curve.summary()))
    else:
        _show(found)
        for sentence in made.sentences:
            output.print(f"• {sentence}", highlight=False)
    people.print(f"report: {made.path}", highlight=False)
    for figure in made.figures:
        people.print(f"figure: {figure.path}", highlight=False)


def _show(found: list[Any]) -> None:
    """Best@k at a few k, with 95 % intervals."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from twotemp.cli.console import output
    from twotemp.report import style
    from twotemp.report.series import k_grid, unique
    from twotemp.selection import SELECTORS

    ks = k_grid([curve.ballots for curve in found])
    ks = ks if len(ks) <= 3 else [ks[0], ks[len(ks) // 2], ks[-1]]
    title = "Best@k in %, mean ± half-width of the 95 % interval"
    table = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("NFE", *(f"k = {k}" for k in ks)):
        table.add_column(name, justify="right", no_wrap=True)
    for task, selector in unique((c.ballots.task, c.selector) for c in found):
        table.add_row(f"[bold]{style.task_name(task)}, {SELECTORS[selector].title}[/bold]")
        block = [c for c in found if (c.ballots.task, c.selector) == (task, selector)]
        for curve in block:
            at = {k: place for place, k in enumerate(curve.ks)}
            mean, half = curve.estimate.mean, curve.estimate.half_width
            cells = [f"{100 * mean[at[k]]:.1f} ± {100 * half[at[k]]:.1f}" if k in at else "–" for k in ks]
            name = style.label(curve.ballots.policy, plain=True)
            table.add_row(name, f"{curve.ballots.cost:.1f}", *cells, end_section=curve is block[-1])
    output.print(table)


@contextmanager
def _scoring() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for the rewards."""
    from twotemp.cli.console import progress

    with progress("rewards") as bar:
        yield lambda cell, done, total: bar.update(done, total, cell)
