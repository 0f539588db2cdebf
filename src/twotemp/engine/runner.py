"""How a step's logits are computed, and what that costs the rows (forwards, processed positions).

A runner computes a *window* of every row and may reuse keys and values of the columns outside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from twotemp.engine.canvas_runner import CanvasRunner
from twotemp.engine.graphs import Graphs, ReplayedForward
from twotemp.engine.rows import Rows, Window, compact
from twotemp.errors import UserError, unknown
from twotemp.models.base import CachedDenoiser, CanvasDenoiser, Denoiser
from twotemp.policies.decision import Decision
from twotemp.policies.tokens import Embed

CACHES = ("prefix", "dual")
CacheKind = Literal["block", "prefix", "dual"]


class Runner(Protocol):
    """Computes the logits of a batch."""

    embed: Embed | None  # turns predictions into the next input of models with self-conditioning

    def logits(self, rows: Rows, window: Window) -> Tensor:
        """Return the logits [N, V] at the predicted positions of the window, row-major."""

    def record_step(self, rows: Rows, window: Window, decision: Decision) -> None:
        """Note that the step with these logits was taken: its cost, and what the cache now holds."""

    def keep(self, slots: Sequence[int]) -> None:
        """Drop all other rows."""

    def grow(self, rows: int, columns: int) -> None:
        """Make room for this many rows and columns, new ones last."""


def check_cache(model: Denoiser, cache: str | None) -> None:
    """Raise a UserError for a cache that does not exist or that this model cannot use."""
    if cache is None:
        return
    if cache not in CACHES:
        raise unknown("cache", cache, CACHES)
    if model.block_size is not None:
        raise UserError(f"{model.name} has an exact block cache already; leave cache={cache!r} out")
    if not isinstance(model, CachedDenoiser):
        raise UserError(f"{model.name} cannot reuse keys and values; leave cache={cache!r} out")


def runner_for(
    model: Denoiser,
    rows: int,
    columns: int,
    cache: str | None = None,
    fixed_rows: int | None = None,
    graphs: Graphs | None = None,
) -> Runner:
    """Return the runner for a batch of this model.

    Args:
        model: The model.
        rows: Rows of the batch.
        columns: Columns of the batch.
        cache: An approximate cache; None takes the fastest exact way.
        fixed_rows: Compute this many rows in every forward pass, however many requests there are.
        graphs: Replays such forward passes; None: every pass starts its own kernels.
    """
    if isinstance(model, CanvasDenoiser) and model.canvases:
        return CanvasRunner(model, rows, columns)
    if fixed_rows is not None:
        return FixedShapeRunner(model, fixed_rows, graphs)
    if isinstance(model, CachedDenoiser):
        if model.block_size is not None:
            return WindowRunner(model, rows, columns, "block")
        if cache is not None:
            return WindowRunner(model, rows, columns, "prefix" if cache == "prefix" else "dual")
    return UncachedRunner(model)


class UncachedRunner:
    """Computes the whole row at every step, exact for every model; the head only where something may be committed."""

    embed: Embed | None = None

    def __init__(self, model: Denoiser) -> None:
        self.model = model

    def logits(self, rows: Rows, window: Window) -> Tensor:
        ids, length = rows.state.ids[:, : rows.width], rows.state.length
        want = window.row * rows.width + window.column
        real = torch.arange(rows.width, device=ids.device) < length[:, None] if rows.padded else None
        if rows.shared_prompts:
            states = [rows.state.hashed, rows.state.host_length, window.count]
            distinct = DistinctRows(torch.stack(states, 1), window.count)
            if distinct.fewer:
                index = distinct.rows.to(ids.device, non_blocking=True)
                real = None if real is None else real[index]
                return distinct.spread(self.model.logits(ids[index], real, distinct.want(want, rows.width)))
        return self.model.logits(ids, real, want)

    def record_step(self, rows: Rows, window: Window, decision: Decision) -> None:
        rows.state.forwards += 1
        rows.state.processed += rows.state.host_length

    def keep(self, slots: Sequence[int]) -> None:
        pass

    def grow(self, rows: int, columns: int) -> None:
        pass


class FixedShapeRunner(UncachedRunner):
    """Runs every forward pass in one shape: a fixed number of rows and columns, and a block of predictions per row.

    The order in which a kernel adds up depends on the shape of its operands, and in half precision that changes
    samples. Here a row's logits depend on the row and the shape alone. Missing rows are copies of the last one.
    """

    def __init__(self, model: Denoiser, rows: int, graphs: Graphs | None = None) -> None:
        super().__init__(model)
        self.rows = rows
        self._forward = model.logits if graphs is None else ReplayedForward(model.logits, graphs)

    def logits(self, rows: Rows, window: Window) -> Tensor:
        ids, device = rows.state.ids, rows.state.ids.device
        pick = torch.arange(self.rows, device=device).clamp_max(len(rows.requests) - 1)
        real = torch.arange(rows.columns, device=device) < rows.state.length[:, None]
        first = rows.columns * torch.arange(self.rows, device=device)
        want = (first[:, None] + window.positions[pick]).flatten()
        return self._forward(ids[pick], real[pick], want)[window.index]


class WindowRunner:
    """Keeps keys and values, so that a step computes only a window of the row.

    block    exact for block-causal models: a block sees itself and what lies before, so what is committed
             before it never changes again. The window runs from the first column without final K, V to the
             end of the block: the first pass of a row computes its prompt, the first pass of a block also the
             finished block before it (the commit pass, merged), the others compute the block alone. A prompt
             is computed once for all rows that start from it.
    prefix   approximate (Fast-dLLM): the whole row at the first step of a block; after that the block and
             all that follows, against the K, V that the columns before it had then.
    dual     approximate (Fast-dLLM): the same, but the columns after the block are frozen as well.
    """

    embed: Embed | None = None

    def __init__(self, model: CachedDenoiser, rows: int, columns: int, kind: CacheKind) -> None:
        self.model = model
        self.kind = kind
        self.cache = model.new_cache(rows, columns)
        # The prompt whose final K, V each row of the cache holds.
        self.prompts: list[tuple[int, ...] | None] = [None] * rows

    def logits(self, rows: Rows, window: Window) -> Tensor:
        if self.kind == "block" and bool((rows.state.cached < 0).any()):
            self._share_prompts(rows, window)
        begin, end, visible = self._span(rows, window)
        # Rows that compute a prompt or refresh the whole row go separately, so that the others stay narrow.
        wide = end - begin > 2 * rows.block_width
        if bool(wide.all()) or not bool(wide.any()):
            return self._compute(rows, window, begin, end, visible, None)
        logits = torch.empty(
            len(window.index), self.model.vocab_size, dtype=torch.float32, device=self.model.device
        )
        for member in (wide, ~wide):
            part = self._compute(rows, window, begin, end, visible, member.nonzero()[:, 0])
            logits.index_copy_(0, compact(member.to(self.model.device)[window.row], len(part)), part)
        return logits

    def record_step(self, rows: Rows, window: Window, decision: Decision) -> None:
        begin, end, _ = self._span(rows, window)
        rows.state.forwards += 1
        rows.state.processed += end - begin
        rows.state.cached = window.start.clone()
        self.prompts = [request.prompt for request in rows.requests]

    def _share_prompts(self, rows: Rows, window: Window) -> None:
        """Copy the finished blocks of a prompt to new rows from a row that has had the same prompt.

        They count as computed, so that a sample's cost does not depend on its neighbors.
        """
        state = rows.state
        known = {prompt: slot for slot, prompt in enumerate(self.prompts) if prompt is not None}
        unseen = (state.cached < 0).nonzero()[:, 0].tolist()
        new = [slot for slot in unseen if rows.requests[slot].prompt in known]
        if new:
            source = torch.tensor([known[rows.requests[slot].prompt] for slot in new])
            target = torch.tensor(new)
            self.cache.copy(source.to(self.model.device), target.to(self.model.device))
            state.cached[target] = window.start[target]
            state.processed[target] += (window.start[target] - self.model.lookback).clamp_min(0)

    def _span(self, rows: Rows, window: Window) -> tuple[Tensor, Tensor, Tensor]:
        """Return the columns to compute, as [begin, end), and the number of visible ones; [B] each, on the host."""
        cached, length = rows.state.cached, rows.state.host_length
        if self.kind == "block":
            # In a shifted model the last position before the block, which is final, predicts its first.
            return (cached - self.model.lookback).clamp_min(0), window.end, window.end
        stale = cached != window.start
        begin = torch.where(stale, 0, (window.start - self.model.lookback).clamp_min(0))
        end = length if self.kind == "prefix" else torch.where(stale, length, window.end)
        return begin, end, length

    def _compute(
        self, rows: Rows, window: Window, begin: Tensor, end: Tensor, seen: Tensor, subset: Tensor | None
    ) -> Tensor:
        """Return the logits of a subset of the rows.

        Args:
            rows: All rows.
            window: Their active blocks.
            begin: [B], first column to compute, on the host.
            end: [B], one past the last column to compute, on the host.
            seen: [B], how many columns are visible, on the host.
            subset: Which rows, on the host; None for all of them.
        """
        device = self.model.device
        slots, count = torch.arange(len(begin)), window.count
        if subset is not None:
            slots, begin, end, seen, count = (t[subset] for t in (slots, begin, end, seen, count))
        # A row's keys and values follow from its tokens alone only if nothing of the cache is reused.
        distinct = None
        if rows.shared_prompts and not bool(((begin > 0) | (end < seen)).any()):
            distinct = DistinctRows(torch.stack([rows.state.hashed[slots], end, count], 1), count)
        width = int((end - begin).max())
        slots, begin, end, seen = torch.stack([slots, begin, end, seen]).to(device, non_blocking=True)
        positions = begin[:, None] + torch.arange(width, device=device)
        positions = torch.where(positions < end[:, None], positions, rows.columns)
        row, column = window.row, window.column
        if subset is not None:
            index = compact(window.predicted[slots], int(count.sum()))
            row = index // window.predicted.shape[1]
            column = window.positions[slots].flatten()[index]
        want = row * width + column - begin[row]
        visible = torch.arange(rows.columns, device=device) < seen[:, None]
        ids = rows.state.ids if subset is None else rows.state.ids[slots]
        tokens = ids.gather(1, positions.clamp_max(rows.columns - 1))
        if distinct is not None and distinct.fewer:
            pick = distinct.rows.to(device, non_blocking=True)
            logits = self.model.window_logits(
                tokens[pick],
                positions[pick],
                visible[pick],
                self.cache,
                distinct.want(want, width),
                slots[pick],
            )
            self.cache.copy(slots[distinct.source.to(device, non_blocking=True)], slots)
            return distinct.spread(logits)
        return self.model.window_logits(
            tokens, positions, visible, self.cache, want, None if subset is None else slots
        )

    def keep(self, slots: Sequence[int]) -> None:
        self.cache.keep(torch.tensor(slots, dtype=torch.int64, device=self.model.device))
        self.prompts = [self.prompts[slot] for slot in slots]

    def grow(self, rows: int, columns: int) -> None:
        self.cache.grow(rows, columns)
        self.prompts += [None] * (rows - len(self.prompts))


class DistinctRows:
    """Rows in the same state, of which one is computed and its logits are shared by the others.

    The host knows how many entries each row has (`Window.count`), so none of this waits for the device.
    """

    def __init__(self, states: Tensor, count: Tensor) -> None:
        """Compare the rows.

        Args:
            states: [B, F] on the host; two rows whose entries are all equal have the same logits.
            count: [B], wanted entries per row, on the host.
        """
        first: dict[tuple[int, ...], int] = {}
        self.source = torch.tensor([first.setdefault(tuple(s), row) for row, s in enumerate(states.tolist())])
        self.rows = torch.tensor(list(first.values()))  # the first row of each state represents it
        self.fewer = len(self.rows) < len(self.source)
        self._count = count

    def want(self, want: Tensor, width: int) -> Tensor:
        """Return the wanted entries of the computed rows, from [N] entries of all rows that are `width` wide."""
        count = self._count[self.rows]
        start = (self._count.cumsum(0) - self._count)[self.rows]
        moved = width * (torch.arange(len(self.rows)) - self.rows)
        both = torch.stack([_ranges(start, count), moved.repeat_interleave(count)])
        both = both.to(want.device, non_blocking=True)
        return want[both[0]] + both[1]

    def spread(self, logits: Tensor) -> Tensor:
        """Return the logits of all rows from those of the computed rows."""
        computed = torch.zeros_like(self._count)
        computed[self.rows] = self._count[self.rows]
        start = (computed.cumsum(0) - computed)[self.source]
        return logits[_ranges(start, self._count).to(logits.device, non_blocking=True)]


def _ranges(start: Tensor, count: Tensor) -> Tensor:
    """Return the ranges start[i], start[i] + 1, ... of `count[i]` numbers each, concatenated over i."""
    shift = start - (count.cumsum(0) - count)
    return torch.arange(int(count.sum())) + shift.repeat_interleave(count)
