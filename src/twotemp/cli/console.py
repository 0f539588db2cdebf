"""What the subcommands share: a console for people on stderr, so that stdout stays clean for data."""

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

if TYPE_CHECKING:
    from twotemp.models.base import Denoiser

people = Console(stderr=True)
output = Console()
QUIET_SECONDS = 30.0  # between two lines of progress where stderr is not a terminal


def show_log(level: int = logging.INFO) -> None:
    """Print what the library has to say (the batch size it chose, memory that ran out) to people."""
    handler = RichHandler(console=people, show_time=False, show_level=False, show_path=False)
    logger = logging.getLogger("twotemp")
    logger.handlers[:] = [handler]
    logger.setLevel(level)


def say(text: str) -> None:
    """A line for people, as it is: brackets in the name of a folder are no markup."""
    people.print(text, highlight=False, soft_wrap=True, markup=False)


def then(command: str, folder: Path) -> str:
    """What to type next; it needs the plug-ins that this command was given."""
    from twotemp import plugins

    return " ".join(["twotemp", command, str(folder), *(f"--plugin {name}" for name in plugins.NAMED)])


def say_cache(model: Denoiser | None, cache: str | None) -> None:
    """Whether the cache in use, if any, changes results. model: None, where it is in other processes."""
    if cache is not None:
        say(f"cache {cache}: approximate; twotemp drift measures by how much")
    elif model is not None and model.block_size is not None:
        say("cache block: exact")


class Bar:
    """How far one piece of work is: a bar with the time left on a terminal, a line now and then in a log."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress, self._title = progress, title
        self._task = progress.add_task(title, total=None, note="")
        # The time and the count of the first call for this part of the work: what was done before it.
        self._start: tuple[float, int] | None = None
        self._done = 0
        self._said = monotonic()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        now = monotonic()
        if self._start is None or done < self._done:  # counted anew: the next part of the work
            self._progress.reset(self._task)
            self._start = now, done
        self._done = done
        self._progress.update(self._task, completed=done, total=total, note=note)
        if not people.is_terminal and now - self._said >= QUIET_SECONDS:
            self._said = now
            of = "" if total is None else f" of {total}"
            say(f"{self._title}: {done}{of}{self._left(now, done, total)}{note and '; ' + note}")

    def _left(self, now: float, done: int, total: int | None) -> str:
        assert self._start is not None
        began, before = self._start
        if total is None or done <= before:
            return ""
        seconds = (now - began) * (total - done) / (done - before)
        return f", {timedelta(seconds=round(seconds))} left"


@contextmanager
def progress(title: str) -> Iterator[Bar]:
    """A `Bar` for as long as the work goes on."""
    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=people,
        disable=not people.is_terminal,
    )
    with shown:
        yield Bar(shown, title)
