"""`twotemp import`: results of other harnesses as a run of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_results(
    harness: Annotated[str, typer.Argument(help="lm-eval or inspect.")],
    results: Annotated[
        list[Path], typer.Argument(help="lm-eval's output folders or results_*.json; inspect's logs.")
    ],
    out: Annotated[Path, typer.Option(help="The run's folder; one that exists gets more cells.")],
    grader: Annotated[
        str | None,
        typer.Option(help="Who judges the samples (`twotemp graders`); unset: the harness's own verdicts."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Which of the harness's metrics or scorers, where there are several.")
    ] = None,
) -> None:
    """Bring samples that twotemp drew inside another harness into a run, for `report` and `select`.

    [bold]Examples[/bold]

      twotemp import lm-eval results/ --out runs/gsm8k --grader maths

      twotemp import inspect logs/*.eval --out runs/mine
    """
    from twotemp.cli.console import say
    from twotemp.errors import unknown
    from twotemp.evaluation import regrade
    from twotemp.integrations.imports import READERS, bring

    if harness not in READERS:
        raise unknown("harness", harness, READERS)
    brought = bring(READERS[harness](results, metric, grader is None), out)
    for cell, count in brought.items():
        say(f"{cell}: {count} samples")
    if grader is not None:
        regrade(out, grader=grader, cells=brought)
    say(f"next: twotemp report {out}")
