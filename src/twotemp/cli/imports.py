"""`twotemp import`: results of other harnesses as a run of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twotemp.cli.console import next_command, say
from twotemp.errors import unknown
from twotemp.evaluation import regrade
from twotemp.integrations.imports import READERS, bring


def import_results(
    harness: Annotated[str, typer.Argument(help="lm-eval or inspect.")],
    results: Annotated[
        list[Path], typer.Argument(help="lm-eval's output folders or results_*.json; inspect's logs.")
    ],
    out: Annotated[Path, typer.Option(help="The run's folder; an existing run gets more cells.")],
    grader: Annotated[
        str | None,
        typer.Option(
            help="The grader of the samples (`twotemp graders`; default: the harness's own verdicts)."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="One of the harness's metrics or scorers, if there are several.")
    ] = None,
) -> None:
    """Import samples drawn inside another harness into a run.

    `twotemp report` and `twotemp select` then read them like samples of `twotemp eval`.

    [bold]Examples[/bold]

      twotemp import lm-eval results/ --out runs/gsm8k --grader maths

      twotemp import inspect logs/*.eval --out runs/mine
    """
    if harness not in READERS:
        raise unknown("harness", harness, READERS)
    imported = bring(READERS[harness](results, metric, grader is None), out)
    for cell, count in imported.items():
        say(f"{cell}: {count} samples")
    if grader is not None:
        regrade(out, grader=grader, cells=imported)
    say(f"imported into {out}; next: {next_command('report', out)}")
