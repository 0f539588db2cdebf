"""The command line: one subcommand per stage. Nothing imports it, and it imports heavy things only when used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from twotemp.cli import (
    demo,
    doctor,
    drift,
    evaluate,
    forks,
    grpo,
    imports,
    listing,
    lm_eval,
    report,
    sample,
    select,
    serve,
    trace,
    tune,
)
from twotemp.cli.command import STOPPED, command
from twotemp.errors import UserError

app = typer.Typer(
    name="twotemp",
    help="Simple, efficient and diverse sampling from masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "sample": sample.sample,
    "policies": listing.policies,
    "tasks": listing.tasks,
    "graders": listing.graders,
    "eval": evaluate.evaluate,
    "run": evaluate.run,
    "regrade": evaluate.regrade,
    "grade": evaluate.grade,
    "tune": tune.tune,
    "report": report.report,
    "export": report.export,
    "select": select.select,
    "import": imports.import_results,
    "demo": demo.demo,
    "grpo": grpo.grpo,
    "forks": forks.forks,
    "trace": trace.trace,
    "drift": drift.drift,
    "doctor": doctor.doctor,
    "serve": serve.serve,
    "play": serve.play,
}
_CONTINUED = {"eval", "run", "tune", "demo", "grpo", "forks"}
for _name, _function in _COMMANDS.items():
    app.command(_name)(command(_function, continued=_name in _CONTINUED))
# Another program's command line: it reads all of its options itself, `--help` too.
app.command("lm-eval", context_settings=lm_eval.PASS_ON, add_help_option=False)(lm_eval.lm_eval)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from twotemp import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; what the user can mend is printed as one message, without a traceback."""
    # Before torch is imported: its threads, when they wait, spin for some microseconds only, then sleep. Beside
    # another busy program torch's own choice makes the embedded model several times slower (docs/LOG.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        app()
    except UserError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(STOPPED)
