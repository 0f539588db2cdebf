"""The command line: one subcommand per stage. No other package imports it."""

from __future__ import annotations

import logging
import os
import sys

import typer

from twotemp import __version__
from twotemp.cli.commands import RICH, STOPPED, LazyGroup
from twotemp.errors import UserError

app = typer.Typer(
    name="twotemp",
    cls=LazyGroup,
    help="Simple, efficient and diverse sampling from masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=RICH,
    pretty_exceptions_enable=False,
)
# What these loggers say while torchao is imported (extensions for other GPUs, deprecations) concerns its developers.
_NOISY_LOGGERS = ("torchao", "torch.utils._pytree")


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; an error that the user can fix is printed as one message, without a traceback."""
    # Before torch is imported: its threads, when they wait, spin for some microseconds only, then sleep. Beside
    # another busy program torch's own choice makes the embedded model several times slower (docs/log.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        app()
    except UserError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(STOPPED)
