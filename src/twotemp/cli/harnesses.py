"""`twotemp lm-eval` and `twotemp import`: run lm-evaluation-harness, and import results of harnesses."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from twotemp.cli.console import next_command, say
from twotemp.errors import UserError, unknown
from twotemp.evaluation import regrade
from twotemp.integrations.imports import READERS, import_cells


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with `--model twotemp` registered.

    All options are those of lm-eval; see docs/lm-eval.md.

    [bold]Example[/bold]
      twotemp lm-eval run --model twotemp --model_args pretrained=tiny --tasks gsm8k --limit 10
    """
    if find_spec("lm_eval") is None:
        raise UserError("lm-evaluation-harness is not installed; pip install 'twotemp[lm-eval]'")
    # An optional package, imported after the check above; its own models come first, because lm-eval registers them
    # only as long as no other model is registered.
    import lm_eval.models  # noqa: F401
    from lm_eval.__main__ import cli_evaluate

    import twotemp.integrations.lm_eval  # noqa: F401

    sys.argv = ["lm-eval", *context.args]
    cli_evaluate()


def import_results(
    harness: Annotated[str, typer.Argument(help="lm-eval or inspect.")],
    results: Annotated[
        list[Path], typer.Argument(help="lm-eval's output folders or results_*.json; inspect's logs.")
    ],
    out: Annotated[Path, "The run's folder; cells are added to an existing run."],
    grader: Annotated[
        str | None, "The grader of the samples (`twotemp graders`; default: the harness's own verdicts)."
    ] = None,
    metric: Annotated[
        str | None, "Which of the harness's metrics or scorers to use, if there are several."
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
    imported = import_cells(READERS[harness](results, metric, grader is None), out)
    for cell, count in imported.items():
        say(f"{cell}: {count} samples")
    if grader is not None:
        regrade(out, grader=grader, cells=imported)
    say(f"imported into {out}; next: {next_command('report', out)}")
