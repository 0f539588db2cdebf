"""The command line: one subcommand a stage. Nothing imports it, and it imports heavy things only when used."""

from __future__ import annotations

import os
import sys

import typer

from twotemp.cli import demo, doctor, drift, evaluate, forks, grpo, report, sample, select, train
from twotemp.errors import UserError

app = typer.Typer(
    name="twotemp",
    help="Simple, efficient and diverse sampling from masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("sample")(sample.sample)
app.command("policies")(sample.policies)
app.command("eval")(evaluate.evaluate)
app.command("run")(evaluate.run)
app.command("regrade")(evaluate.regrade)
app.command("grade")(evaluate.grade)
app.command("report")(report.report)
app.command("export")(report.export)
app.command("select")(select.select)
app.command("demo")(demo.demo)
app.command("grpo")(grpo.grpo)
app.command("forks")(forks.forks)
app.command("trace")(forks.trace)
app.command("train")(train.train)
app.command("drift")(drift.drift)
app.command("doctor")(doctor.doctor)


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
        typer.secho("stopped; what was finished is kept", fg="yellow", err=True)
        sys.exit(130)
