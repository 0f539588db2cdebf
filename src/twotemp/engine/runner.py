"""How a step's logits are computed, and what that costs the rows (forwards, processed positions).

A runner computes a *window* of every row and may reuse keys and values of the columns outside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from twotemp.engine.rows import Rows, Window
from twotemp.errors import UserError, unknown
from twotemp.models.base import CachedDenoiser, Denoiser

CACHES = ("prefix", "dual")
Kind = Literal["block", "prefix", "dual"]


class Runner(Protocol):
    def logits(self, rows: Rows, window: Window) -> Tensor:
        """Logits at the masked positions of the window, row-major."""
        ...

    def keep(self, slots: Sequence[int]) -> None:
        """The batch now consists of these rows only."""
        ...


def check_cache(model: Denoiser, cache: str | None) -> None:
    """Refuse a cache that does not exist or that this model cannot have."""
    if cache is None:
        return
    if cache not in CACHES:
        raise unknown("cache", cache, CACHES)
    if model.block_size is not None:
        raise UserError(f"{model.name} has an exact block cache already; leave cache={cache!r} out")
    if not isinstance(model, CachedDenoiser):
        raise UserError(f"{model.name} cannot reuse keys and values; leave cache={cache!r} out")


def runner_for(model: Denoiser, rows: int, columns: int, cache: str | None) -> Runner:
    """The fastest exact way to compute this model's logits, or the approximate cache asked for."""
    check_cache(model, cache)
    if isinstance(model, CachedDenoiser):
        if model.block_size is not None:
            return Windowed(model, rows, columns, "block")
        if cache is not None:
            return Windowed(model, rows, columns, "prefix" if cache == "prefix" else "dual")
    return Uncached(model)


class Once:
    """Rows in the same state are computed once: which stand for which, and how logits are handed out."""

    def __init__(self, ids: Tensor, want: Tensor, length: Tensor, vocab_size: int) -> None:
        # All that a call depends on, in one matrix: ids, which of them are wanted, which are padding.
        state = ids + vocab_size * want
        state = state.masked_fill(torch.arange(ids.shape[1], device=ids.device) >= length[:, None], -1)
        _, which = torch.unique(state, dim=0, return_inverse=True)
        order = torch.arange(len(ids), device=ids.device)
        size = int(which.max()) + 1
        # The first row of each state stands for it.
        self.chosen = torch.full((size,), len(ids), device=ids.device).scatter_reduce(0, which, order, "amin")
        self.which = which
        self.needed = size < len(ids)

    def spread(self, logits: Tensor, want: Tensor) -> Tensor:
        """Every row takes its state's stretch of the logits of the chosen rows. want: of all rows."""
        count = want.sum(1)
        chosen = count[self.chosen]
        first = (chosen.cumsum(0) - chosen)[self.which]
        stretch = torch.arange(int(count.sum()), device=want.device)
        stretch = stretch - (count.cumsum(0) - count).repeat_interleave(count)
        return logits[first.repeat_interleave(count) + stretch]


class Uncached:
    """Exact for every model: the whole row, every step; the head only where something may be committed."""

    def __init__(self, model: Denoiser) -> None:
        self.model = model

    def logits(self, rows: Rows, window: Window) -> Tensor:
        ids = rows.ids[:, : rows.width]
        want = torch.zeros_like(ids, dtype=torch.bool)
        row, column = window.masked.nonzero(as_tuple=True)
        want[row, window.positions[row, column]] = True
        real = torch.arange(rows.width, device=ids.device) < rows.length[:, None] if rows.padded else None
        once = Once(ids, want, rows.length, self.model.vocab_size) if rows.twins else None
        if once is not None and once.needed:
            some = once.chosen
            logits = self.model.logits(ids[some], None if real is None else real[some], want[some])
            logits = once.spread(logits, want)
        else:
            logits = self.model.logits(ids, real, want)
        rows.forwards += 1
        rows.processed += rows.length
        return logits

    def keep(self, slots: Sequence[int]) -> None:
        pass


class Windowed:
    """Keys and values are kept, and a step computes a window of the row only.

    block    exact for block-causal models: a block sees itself and what lies before, so what is committed
             before it never changes again. The window runs from the first column without final K, V to the
             end of the block: the first pass of a row takes in its prompt, the first pass of a block the
             finished block before it (the commit pass, merged), the others compute the block alone.
    prefix   approximate (Fast-dLLM): the whole row at the first step of a block; after that the block and
             all that follows, against the K, V of what lies before as they were then.
    dual     approximate (Fast-dLLM): the same, but the columns after the block are frozen too.
    """

    def __init__(self, model: CachedDenoiser, rows: int, columns: int, kind: Kind) -> None:
        self.model = model
        self.kind = kind
        self.cache = model.new_cache(rows, columns)

    def logits(self, rows: Rows, window: Window) -> Tensor:
        begin, end, visible = self._span(rows, window)
        span = end - begin
        row = window.masked.nonzero()[:, 0]
        # Rows that take in a prompt or refresh the whole row go apart, so that the others stay narrow.
        wide = span > 2 * rows.block_width
        groups = [group for group in (wide.nonzero()[:, 0], (~wide).nonzero()[:, 0]) if len(group)]
        parts = [
            self._compute(rows, window, begin, end, visible, group, len(groups) == 1) for group in groups
        ]
        if len(parts) == 1:
            logits = parts[0]
        else:
            logits = parts[0].new_empty(len(row), parts[0].shape[1])
            logits[wide[row]], logits[~wide[row]] = parts
        rows.forwards += 1
        rows.processed += span
        rows.cached = window.start.clone()
        return logits

    def _span(self, rows: Rows, window: Window) -> tuple[Tensor, Tensor, Tensor]:
        """Which columns to compute, [begin, end), and how many are visible. `rows.cached`: the block whose
        first step the cache has seen, by its start; -1: none."""
        if self.kind == "block":
            return rows.cached.clamp_min(0), window.end, window.end
        stale = rows.cached != window.start
        begin = torch.where(stale, 0, (window.start - self.model.lookback).clamp_min(0))
        end = rows.length if self.kind == "prefix" else torch.where(stale, rows.length, window.end)
        return begin, end, rows.length

    def _compute(
        self, rows: Rows, window: Window, begin: Tensor, end: Tensor, seen: Tensor, group: Tensor, all_: bool
    ) -> Tensor:
        ids, begin, end, seen = rows.ids[group], begin[group], end[group], seen[group]
        at = begin[:, None] + torch.arange(int((end - begin).max()), device=ids.device)
        inside = at < end[:, None]
        at = torch.where(inside, at, rows.columns)
        row, column = window.masked[group].nonzero(as_tuple=True)
        want = torch.zeros_like(inside)
        want[row, window.positions[group][row, column] - begin[row]] = True
        visible = torch.arange(rows.columns, device=ids.device) < seen[:, None]
        tokens = ids.gather(1, at.clamp_max(rows.columns - 1))
        # Only where nothing of the cache is reused do a row's keys and values follow from its tokens alone.
        alone = rows.twins and not bool((begin > 0).any())
        once = Once(tokens, want, end - begin, self.model.vocab_size) if alone else None
        if once is None or not once.needed:
            subset = None if all_ else group
            return self.model.window_logits(tokens, at, visible, self.cache, want, subset)
        some = once.chosen
        logits = self.model.window_logits(
            tokens[some], at[some], visible[some], self.cache, want[some], group[some]
        )
        self.cache.copy(group[some[once.which]], group)
        return once.spread(logits, want)

    def keep(self, slots: Sequence[int]) -> None:
        self.cache.keep(torch.tensor(slots, dtype=torch.int64, device=self.model.device))
