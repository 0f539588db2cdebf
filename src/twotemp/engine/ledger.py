"""Where a run's time goes: seconds by part. Costs one clock reading per part and step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

from twotemp.engine.observer import Observer, StepView
from twotemp.models.base import Denoiser, LanguageModel

PARTS = ("forward", "head", "draw", "select", "bookkeeping")


class Ledger(Observer):
    """Measures the seconds spent in each part of the loop, and the steps and row-steps they cover.

    forward: the network's body; head: its last projection; draw: tokens, confidences and entropies;
    select: which positions to commit; bookkeeping: everything else the engine does.
    """

    def __init__(self, model: Denoiser | None = None) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.steps = self.row_steps = 0
        self._last = perf_counter()
        self._device = None if model is None or model.device.type != "cuda" else model.device
        self._parts = model.body_and_head if isinstance(model, LanguageModel) else None  # None: timed as one

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Time body and head by hooks, as they lie inside the model's call."""
        hooks = []
        if self._parts is not None:
            body, head = self._parts
            hooks = [
                body.register_forward_pre_hook(lambda *_: self._book("bookkeeping")),
                head.register_forward_pre_hook(lambda *_: self._book("forward")),
                head.register_forward_hook(lambda *_: self._book("head")),
            ]
        self._last = self._now()  # the time since the last turn belongs to the caller
        try:
            yield
            self._book("bookkeeping")
        finally:
            for hook in hooks:
                hook.remove()

    def lap(self, part: str) -> None:
        # With hooks, the forward pass is measured up to the head; what the model does after that is overhead.
        self._book("bookkeeping" if self._parts is not None and part == "forward" else part)

    def step(self, view: StepView) -> None:
        self.steps += 1
        self.row_steps += len(view.requests)

    def _book(self, part: str) -> None:
        now = self._now()
        self.seconds[part] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device is not None:  # else this would time the kernel launches, not the work
            torch.cuda.synchronize(self._device)
        return perf_counter()

    def report(self) -> str:
        """Return the measurements as a small table."""
        total = sum(self.seconds.values()) or 1.0
        lines = [f"{part:12}{s:9.3f} s {100 * s / total:6.1f} %" for part, s in self.seconds.items()]
        lines.append(
            f"{self.steps} steps, {self.row_steps} row-steps, {1e3 * total / max(self.steps, 1):.2f} ms per step"
        )
        return "\n".join(lines)
