"""`twotemp select`: choose one answer from many, on the samples of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from twotemp import rewards
from twotemp.analysis import SELECTORS, add_ballots, check_selectors, every_choice, k_grid, survey
from twotemp.cli.console import progress, say
from twotemp.cli.options import Altered, DataFiles, Graders, graders_by_task, task_files
from twotemp.cli.results import INCOMPLETE, show_blocks, show_gaps, show_page
from twotemp.errors import UserError
from twotemp.report import selection, write_selection
from twotemp.serialization import json_text


def select(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    by: Annotated[
        str,
        typer.Option(
            help="Selectors, separated by commas: majority, orm, weighted, confidence, pll, oracle."
        ),
    ] = "majority,orm,weighted,oracle",
    rm: Annotated[
        str | None,
        typer.Option(
            help="Reward model: verifier (default), verifier:FOLDER, a folder, a hub id, or likelihood:DENOISER."
        ),
    ] = None,
    rm_system: Annotated[
        str | None,
        typer.Option(help="Text the reward model expects before the question (AceMath's is known)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write (default: RUN/selection).")] = None,
    grader: Graders = None,
    data: DataFiles = None,
    altered: Altered = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers scored together.")] = 32,
    device: Annotated[
        str | None, typer.Option(help="The reward model's device (default: CUDA if available).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each task, policy and selector.")
    ] = False,
) -> None:
    """Choose one answer from k samples and report Best@k and Best@NFE.

    Nothing is drawn again; rewards are computed once and stored in the run. If the run is incomplete, what is
    missing is listed and the exit code is 3.

    [bold]Examples[/bold]

      twotemp select runs/first --by majority,orm,weighted,oracle

      twotemp select runs/llada --by majority,orm --rm nvidia/AceMath-7B-RM --device cuda
    """
    selectors = check_selectors([name.strip() for name in by.split(",") if name.strip()])
    needs = {SELECTORS[name].needs for name in selectors}
    if "rewards" not in needs and (rm or rm_system):
        raise UserError(
            f"--by {by} uses no reward model: add orm or weighted, or leave --rm and --rm-system out"
        )
    surveyed = survey([run], graders_by_task([run], grader))
    files = task_files(data, [cell.task for cell in surveyed.cells])
    model = sampler = None
    if "rewards" in needs:
        model = rewards.load(rm or rewards.VERIFIER, system=rm_system, device=device, batch_size=batch_size)
    if "likelihoods" in needs:  # under the model that drew the samples
        sampler = rewards.sampling_model(device=device, batch_size=batch_size)
    with progress("rewards") as bar:
        cells = add_ballots(
            surveyed.cells,
            data=files,
            allow_altered=altered,
            reward_model=model,
            confidence="traces" in needs,
            itself=sampler,
            watch=lambda cell, done, total: bar.update(done, total, cell),
        )
    choices = every_choice(cells, selectors)
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
