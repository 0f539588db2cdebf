"""How a step's logits are computed, and what that costs the rows (forwards, processed positions).

A runner computes a *window* of every row and may reuse keys and values of the columns outside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from twotemp.engine.rows import Rows, Window
from twotemp.models.base import CachedDenoiser, Denoiser


class Runner(Protocol):
    def logits(self, rows: Rows, window: Window) -> Tensor:
        """Logits at the masked positions of the window, row-major."""
        ...

    def keep(self, slots: Sequence[int]) -> None:
        """The batch now consists of these rows only."""
        ...


class Uncached:
    """Exact for every model: the whole row, every step; the head only where something may be committed.

    Rows in the same state (the first step of n samples, or samples that agree so far) are computed once.
    """

    def __init__(self, model: Denoiser) -> None:
        self.model = model

    def logits(self, rows: Rows, window: Window) -> Tensor:
        rows.forwards += 1
        rows.processed += rows.length
        ids = rows.ids[:, : rows.width]
        want = torch.zeros_like(ids, dtype=torch.bool)
        row, column = window.masked.nonzero(as_tuple=True)
        want[row, window.positions[row, column]] = True
        # All that the call depends on, in one matrix: ids, which of them are wanted, which are padding.
        state = ids + self.model.vocab_size * want
        if rows.padded:
            state = state.masked_fill(torch.arange(rows.width, device=ids.device) >= rows.length[:, None], -1)
        states, which = torch.unique(state, dim=0, return_inverse=True)
        if len(states) == len(state):
            return self.model.logits(ids, state >= 0 if rows.padded else None, want)
        want = states >= self.model.vocab_size
        ids = states.clamp_min(0) - self.model.vocab_size * want
        logits = self.model.logits(ids, states >= 0 if rows.padded else None, want)
        # Every row takes its state's stretch of the logits.
        count = want.sum(1)
        first, count = (count.cumsum(0) - count)[which], count[which]
        stretch = torch.arange(len(row), device=ids.device) - (count.cumsum(0) - count).repeat_interleave(
            count
        )
        return logits[first.repeat_interleave(count) + stretch]

    def keep(self, slots: Sequence[int]) -> None:
        pass


class BlockCached:
    """Exact for block-causal models: a block sees only itself and what lies before, so what is committed
    before it never changes again.

    The window of a row runs from its first column without final K, V to the end of its block. So the first
    pass of a row takes in its prompt, the first pass of a block takes in the finished block before it (the
    commit pass, merged), and the other passes compute the block alone.
    """

    def __init__(self, model: CachedDenoiser, rows: int, columns: int) -> None:
        self.model = model
        self.cache = model.new_cache(rows, columns)

    def logits(self, rows: Rows, window: Window) -> Tensor:
        span = window.end - rows.cached
        at = rows.cached[:, None] + torch.arange(int(span.max()), device=rows.ids.device)
        inside = at < window.end[:, None]
        at = torch.where(inside, at, rows.columns)
        ids = rows.ids.gather(1, at.clamp_max(rows.columns - 1))
        row, column = window.masked.nonzero(as_tuple=True)
        want = torch.zeros_like(inside)
        want[row, window.positions[row, column] - rows.cached[row]] = True
        visible = torch.arange(rows.columns, device=rows.ids.device) < window.end[:, None]
        rows.forwards += 1
        rows.processed += span
        rows.cached = window.start.clone()
        return self.model.window_logits(ids, at, visible, self.cache, want)

    def keep(self, slots: Sequence[int]) -> None:
        self.cache.keep(torch.tensor(slots, dtype=torch.int64, device=self.model.device))
