"""What the subcommands share: a console for people on stderr, so that stdout stays clean for data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

people = Console(stderr=True)
output = Console()


def show_log() -> None:
    """Print what the library has to say (the batch size it chose, memory that ran out) to people."""
    handler = RichHandler(console=people, show_time=False, show_level=False, show_path=False)
    logger = logging.getLogger("twotemp")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress bar with count, rate and time left; silent where stderr is not a terminal."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=people,
        disable=not people.is_terminal,
    )
    with bar:
        yield bar
