"""Where a run's time goes: seconds by part, measured in laps. Costs a clock reading a lap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

PARTS = ("forward", "head", "draw", "select", "bookkeeping")


class Ledger:
    """Seconds spent in each part of the loop, and how many steps and row-steps they cover.

    forward: the network's body; head: its last projection; draw: tokens, confidences and entropies;
    select: which positions to commit; bookkeeping: everything else the engine does.
    """

    def __init__(self, model: Any = None) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.steps = self.row_steps = 0
        self._last = perf_counter()
        self._model = model
        self._cuda = model is not None and model.device.type == "cuda"
        self.watched = hasattr(getattr(model, "module", None), "lm_head")  # else the model is timed as one

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Body and head lie inside the model's call, so they are timed by hooks and not by a lap."""
        if not self.watched:
            yield
            return
        module = self._model.module
        hooks = [
            module.base_model.register_forward_pre_hook(lambda *_: self.lap("bookkeeping")),
            module.lm_head.register_forward_pre_hook(lambda *_: self.lap("forward")),
            module.lm_head.register_forward_hook(lambda *_: self.lap("head")),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def start(self) -> None:
        """Forget the time since the last lap: the consumer's, not ours."""
        self._last = self._now()

    def lap(self, part: str) -> None:
        now = self._now()
        self.seconds[part] += now - self._last
        self._last = now

    def step(self, rows: int) -> None:
        self.steps += 1
        self.row_steps += rows

    def _now(self) -> float:
        if self._cuda:  # else a lap would time the launch, not the work
            torch.cuda.synchronize(self._model.device)
        return perf_counter()

    def report(self) -> str:
        total = sum(self.seconds.values()) or 1.0
        lines = [f"{part:12}{s:9.3f} s {100 * s / total:6.1f} %" for part, s in self.seconds.items()]
        lines.append(
            f"{self.steps} steps, {self.row_steps} row-steps, {1e3 * total / max(self.steps, 1):.2f} ms a step"
        )
        return "\n".join(lines)
