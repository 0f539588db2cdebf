"""Log the losses of a training run, and report its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from twotemp.folders import Log

LOG = "log.jsonl"
CURVE = "loss.png"
ProgressCallback = Callable[[int, int, str], None]  # steps done, steps in total, and a note


def ignore_progress(done: int, total: int, note: str) -> None:
    """Do nothing: the progress callback of a run that reports no progress."""


class LossLog:
    """A file of mean losses by task, one JSON object per line, in the run directory."""

    def __init__(self, out: Path, done: int) -> None:
        """Open the log and drop lines after step `done`, because the resumed run will write them again."""
        self._out = out
        self._log = Log(out / LOG, keep=lambda row: row["step"] <= done)
        self.rows = self._log.rows
        self._losses: dict[str, list[float]] = {}
        self._tokens = self.rows[-1]["tokens"] if self.rows else 0
        self._seconds = self.rows[-1]["seconds"] if self.rows else 0.0
        self._since = time.monotonic()

    def add(self, task: str, loss: float, tokens: int) -> None:
        """Add the loss of one step."""
        self._losses.setdefault(task, []).append(loss)
        self._tokens += tokens

    def write(self, step: int, objective: str, rate: float) -> None:
        """Write a line with the mean losses since the last one."""
        losses = {task: round(sum(values) / len(values), 4) for task, values in sorted(self._losses.items())}
        now = time.monotonic()
        self._seconds, self._since = self._seconds + now - self._since, now
        self._log.add(
            {
                "step": step,
                "objective": objective,
                "learning_rate": rate,
                "tokens": self._tokens,
                "seconds": round(self._seconds, 1),
                "loss": losses,
            }
        )
        self._losses = {}

    def plot(self, label: str) -> None:
        """Plot the loss of each task with this label of the axis, if matplotlib is installed."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for task in sorted({task for row in self.rows for task in row["loss"]}):
            points = [(row["step"], row["loss"][task]) for row in self.rows if task in row["loss"]]
            axes.plot(*zip(*points), label=task, linewidth=1)
        axes.set(xlabel="step", ylabel=label, yscale="log")
        axes.legend()
        figure.savefig(self._out / CURVE, dpi=120)
