"""How the logits of a canvas are computed: the text before it is read once, then the canvas alone at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twotemp.engine.rows import Rows, Window
from twotemp.models.base import CanvasDenoiser
from twotemp.policies.decision import Decision
from twotemp.policies.tokens import Embed


class CanvasRunner:
    """Keeps what the encoder read and what the decoder predicted last.

    The first step of a canvas reads what has become final since the last one: the prompt, or the canvas before. A
    prompt is read once for all rows that start from it.
    """

    def __init__(self, model: CanvasDenoiser, rows: int, columns: int) -> None:
        self.model = model
        self.embed: Embed | None = model.soft_embeddings
        self.cache = model.new_cache(rows, columns)
        # The prompt that each row of the cache holds.
        self.prompts: list[tuple[int, ...] | None] = [None] * rows
        self.soft: Tensor | None = None  # [B, W, D]: what the last step predicted

    def logits(self, rows: Rows, window: Window) -> Tensor:
        """See `Runner.logits`."""
        self._read(rows, window)
        device, state = self.model.device, rows.state
        continued = state.forwards > state.steps_before  # this canvas has been predicted before
        facts = torch.stack([window.start, window.end - window.start, continued.long()])
        start, length, continues = facts.to(device, non_blocking=True)
        soft = None
        if self.soft is not None and bool(continued.any()):
            rest = (0, 0, 0, rows.block_width - self.soft.shape[1], 0, len(start) - len(self.soft))
            self.soft = torch.nn.functional.pad(self.soft, rest)
            soft = self.soft * continues[:, None, None].to(self.soft.dtype)
        ids = state.ids.gather(1, window.positions)
        return self.model.canvas_logits(ids, start, length, soft, self.cache, window.index)

    def record_step(self, rows: Rows, window: Window, decision: Decision) -> None:
        """See `Runner.record_step`."""
        state = rows.state
        known = state.cached.clamp_min(0)
        state.forwards += 1
        state.encoded += known < window.start
        state.processed += window.end - known
        state.cached = window.start.clone()
        self.soft = decision.soft
        self.prompts = [request.prompt for request in rows.requests]

    def keep(self, slots: Sequence[int]) -> None:
        """See `Runner.keep`."""
        index = torch.tensor(slots, dtype=torch.int64, device=self.model.device)
        self.cache.keep(index)
        self.prompts = [self.prompts[slot] for slot in slots]
        self.soft = None if self.soft is None else self.soft[index]

    def grow(self, rows: int, columns: int) -> None:
        """See `Runner.grow`."""
        self.cache.grow(rows, columns)
        self.prompts += [None] * (rows - len(self.prompts))

    def _read(self, rows: Rows, window: Window) -> None:
        """Read what has become final since the last canvas."""
        state, device = rows.state, self.model.device
        begin = state.cached.clamp_min(0)
        known = {prompt: slot for slot, prompt in enumerate(self.prompts) if prompt is not None}
        read: dict[tuple[int, ...], int] = {}
        first, old, new = [], [], []
        for slot in (begin < window.start).nonzero()[:, 0].tolist():
            prompt = rows.requests[slot].prompt
            if state.cached[slot] >= 0:  # a row between two canvases
                first.append(slot)
            elif prompt in known:
                old.append((known[prompt], slot))
            elif read.setdefault(prompt, slot) == slot:
                first.append(slot)
            else:
                new.append((read[prompt], slot))
        self._copy(old)  # before what they hold is overwritten
        if first:
            slots = torch.tensor(first)
            start, end = begin[slots], window.start[slots]
            width = int((end - start).max())
            slots, start, end = torch.stack([slots, start, end]).to(device, non_blocking=True)
            positions = start[:, None] + torch.arange(width, device=device)
            ids = state.ids[slots].gather(1, positions.clamp_max(rows.columns - 1))
            positions = torch.where(positions < end[:, None], positions, rows.columns)
            self.model.read(ids, positions, self.cache, slots)
        self._copy(new)

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the cached text from some rows to others, all at once."""
        if pairs:
            source, target = torch.tensor(pairs, device=self.model.device).T
            self.cache.copy(source, target)
