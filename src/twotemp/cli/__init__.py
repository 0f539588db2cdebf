"""The command line: one subcommand per stage. No other package imports it."""

from twotemp.cli.commands import app, main

__all__ = ["app", "main"]
