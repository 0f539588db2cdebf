"""Consoles and progress bars of the subcommands: messages go to stderr, so that stdout stays clean for data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic
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

from twotemp import plugins

if TYPE_CHECKING:
    from twotemp.models.base import Denoiser

status = Console(stderr=True)
output = Console()
QUIET_SECONDS = 30.0  # between two lines of progress where stderr is not a terminal


class Unrepeated(logging.Filter):
    """Passes each message once. Otherwise every chunk of a run would repeat its batch size."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        new = message not in self._messages
        self._messages.add(message)
        return new


def show_log(level: int = logging.INFO) -> None:
    """Print the library's log messages (the batch size it chose, memory that ran out), each once."""
    handler = RichHandler(console=status, show_time=False, show_level=False, show_path=False)
    handler.addFilter(Unrepeated())
    logger = logging.getLogger("twotemp")
    logger.handlers[:] = [handler]
    logger.setLevel(level)


def say(text: str) -> None:
    """Print a line to stderr verbatim: brackets in a folder's name are not markup."""
    status.print(text, highlight=False, soft_wrap=True, markup=False)


def next_command(command: str, folder: Path) -> str:
    """Return the command to type next, with the plug-ins that the current one was given."""
    return " ".join(["twotemp", command, str(folder), *(f"--plugin {name}" for name in plugins.NAMED)])


def say_cache(model: Denoiser | None, cache: str | None) -> None:
    """Say whether the cache in use changes results.

    Args:
        model: None where the model is loaded by other processes.
        cache: The value of --cache.
    """
    if cache is not None:
        say(f"cache {cache}: approximate; `twotemp drift` measures by how much")
    elif model is not None and model.block_size is not None:
        say("cache block: exact")


class ProgressBar:
    """Shows how far one piece of work is: a bar on a terminal, otherwise a line every `QUIET_SECONDS`."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress, self._title = progress, title
        self._task = progress.add_task(title, total=None, note="")
        self._done: int | None = None
        # Time and count when the first new item was done. Earlier time (items of an earlier run, loading the model,
        # the first batch) says nothing about the rate.
        self._start: tuple[float, int] | None = None
        self._printed = monotonic()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show the number of finished items; a smaller number than before starts the next part of the work."""
        now = monotonic()
        if self._done is None or done < self._done:
            self._progress.reset(self._task, completed=done, total=total)
            self._start = None
        elif self._start is None and done > self._done:
            self._start = now, done
        self._done = done
        self._progress.update(self._task, completed=done, total=total, note=note)
        if not status.is_terminal and now - self._printed >= QUIET_SECONDS:
            self._printed = now
            of = "" if total is None else f" of {total}"
            say(f"{self._title}: {done}{of}{self._left(now, done, total)}{note and '; ' + note}")

    def _left(self, now: float, done: int, total: int | None) -> str:
        if total is None or self._start is None or done == self._start[1]:
            return ""
        began, before = self._start
        seconds = (now - began) * (total - done) / (done - before)
        return f", {timedelta(seconds=round(seconds))} left"


@contextmanager
def progress(title: str) -> Iterator[ProgressBar]:
    """Show a `ProgressBar` while the block runs."""
    display = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=status,
        disable=not status.is_terminal,
    )
    with display:
        yield ProgressBar(display, title)
