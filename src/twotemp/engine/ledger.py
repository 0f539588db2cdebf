"""Where a run's time goes: seconds by part, measured in laps. Costs a clock reading a lap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

from twotemp.models.base import Denoiser, LanguageModel

PARTS = ("forward", "head", "draw", "select", "bookkeeping")


class Ledger:
    """Seconds spent in each part of the loop, and how many steps and row-steps they cover.

    forward: the network's body; head: its last projection; draw: tokens, confidences and entropies;
    select: which positions to commit; bookkeeping: everything else the engine does.
    """

    def __init__(self, model: Denoiser | None = None) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.steps = self.row_steps = 0
        self._last = perf_counter()
        self._device = None if model is None or model.device.type != "cuda" else model.device
        self._parts = model.body_and_head if isinstance(model, LanguageModel) else None
        self.watched = self._parts is not None  # else the model is timed as one

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Body and head lie inside the model's call, so they are timed by hooks and not by a lap."""
        if self._parts is None:
            yield
            return
        body, head = self._parts
        hooks = [
            body.register_forward_pre_hook(lambda *_: self.lap("bookkeeping")),
            head.register_forward_pre_hook(lambda *_: self.lap("forward")),
            head.register_forward_hook(lambda *_: self.lap("head")),
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
        if self._device is not None:  # else a lap would time the launch, not the work
            torch.cuda.synchronize(self._device)
        return perf_counter()

    def report(self) -> str:
        total = sum(self.seconds.values()) or 1.0
        lines = [f"{part:12}{s:9.3f} s {100 * s / total:6.1f} %" for part, s in self.seconds.items()]
        lines.append(
            f"{self.steps} steps, {self.row_steps} row-steps, {1e3 * total / max(self.steps, 1):.2f} ms a step"
        )
        return "\n".join(lines)
