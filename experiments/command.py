"""`twotemp` inside an experiment: where the command is stopped or fails, so does the experiment."""

from __future__ import annotations

import sys

from twotemp.cli import app

# Rows in the same state are computed once, and candidates that are asked the same question share most of their
# states: one batch of all their rows takes half the time of batches of 64.
MANY_ROWS = ("--batch-size", "512")


def twotemp(*arguments: str) -> None:
    """In this process. Ctrl-C is an exit code to it, and what was half drawn must not be taken for a result."""
    if code := app(list(arguments), standalone_mode=False):
        sys.exit(code)
