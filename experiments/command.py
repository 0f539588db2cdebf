"""`twotemp` inside an experiment: where the command is stopped or fails, so does the experiment."""

from __future__ import annotations

import sys

from twotemp.cli import app


def twotemp(*arguments: str) -> None:
    """In this process. Ctrl-C is an exit code to it, and what was half drawn must not be taken for a result."""
    if code := app(list(arguments), standalone_mode=False):
        sys.exit(code)
