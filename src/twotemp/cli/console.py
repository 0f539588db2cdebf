"""What the subcommands share: a console for people on stderr, so that stdout stays clean for data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from twotemp.models.base import Denoiser

people = Console(stderr=True)
output = Console()


def show_log() -> None:
    """Print what the library has to say (the batch size it chose, memory that ran out) to people."""
    handler = RichHandler(console=people, show_time=False, show_level=False, show_path=False)
    logger = logging.getLogger("twotemp")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)


def say_cache(model: Denoiser, cache: str | None) -> None:
    """Whether the cache in use, if any, changes results."""
    if cache is not None:
        people.print(f"cache {cache}: approximate; twotemp drift measures by how much", highlight=False)
    elif model.block_size is not None:
        people.print("cache block: exact", highlight=False)


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
