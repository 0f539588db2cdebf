"""How a training goes: its losses, kept line by line, and who watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from twotemp.folders import Log

LOG = "log.jsonl"
CURVE = "loss.png"
Watch = Callable[[int, int, str], None]  # what is done, of how many, and a note


def unwatched(done: int, total: int, note: str) -> None:
    """Nobody does."""


class LossLog:
    """Mean losses by task since the last line, one JSON object per line, in the folder of a run."""

    def __init__(self, out: Path, done: int) -> None:
        """Lines after the checkpoint that is continued are dropped: they will be written again."""
        self._out = out
        self._log = Log(out / LOG, keep=lambda row: row["step"] <= done)
        self.rows = self._log.rows
        self._losses: dict[str, list[float]] = {}
        self._tokens = self.rows[-1]["tokens"] if self.rows else 0
        self._seconds = self.rows[-1]["seconds"] if self.rows else 0.0
        self._since = time.monotonic()

    def add(self, task: str, loss: float, tokens: int) -> None:
        self._losses.setdefault(task, []).append(loss)
        self._tokens += tokens

    def write(self, step: int, objective: str, rate: float) -> None:
        losses = {task: round(sum(all_) / len(all_), 4) for task, all_ in sorted(self._losses.items())}
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

    def plot(self, said: str) -> None:
        """The loss curve of each task, where matplotlib is installed. said: what the loss is."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for task in sorted({task for row in self.rows for task in row["loss"]}):
            points = [(row["step"], row["loss"][task]) for row in self.rows if task in row["loss"]]
            axes.plot(*zip(*points), label=task, linewidth=1)
        axes.set(xlabel="step", ylabel=said, yscale="log")
        axes.legend()
        figure.savefig(self._out / CURVE, dpi=120)
