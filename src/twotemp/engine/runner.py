"""How a step's logits are computed, and what that costs the rows (forwards, processed positions).

A runner computes a *window* of every row and may reuse keys and values of the columns outside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from twotemp.engine.rows import Rows, Window, compact
from twotemp.errors import UserError, unknown
from twotemp.models.base import CachedDenoiser, Denoiser

CACHES = ("prefix", "dual")
Kind = Literal["block", "prefix", "dual"]


class Runner(Protocol):
    def logits(self, rows: Rows, window: Window) -> Tensor:
        """Logits at what is asked of the window, row-major."""
        ...

    def book(self, rows: Rows, window: Window) -> None:
        """The step with these logits was taken: what it cost, and what the cache is about now."""
        ...

    def keep(self, slots: Sequence[int]) -> None:
        """The batch now consists of these rows only."""
        ...

    def grow(self, rows: int, columns: int) -> None:
        """The batch now has so many rows and columns, new ones last."""
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


def runner_for(
    model: Denoiser, rows: int, columns: int, cache: str | None = None, fixed_rows: int | None = None
) -> Runner:
    """The fastest exact way to compute this model's logits, or the one asked for."""
    if fixed_rows is not None:
        return Fixed(model, fixed_rows)
    if isinstance(model, CachedDenoiser):
        if model.block_size is not None:
            return Windowed(model, rows, columns, "block")
        if cache is not None:
            return Windowed(model, rows, columns, "prefix" if cache == "prefix" else "dual")
    return Uncached(model)


class Once:
    """Rows in the same state are computed once: which stand for which, and how logits are handed out.

    To know them costs two round trips to the device; rows that started from different prompts never ask.
    """

    def __init__(self, ids: Tensor, want: Tensor, length: Tensor, count: Tensor, vocab_size: int) -> None:
        """want: indices of ids.flatten(); length: tokens per row; count: wanted ones per row, on the host."""
        wanted = torch.zeros_like(ids, dtype=torch.bool).flatten().index_fill(0, want, True).view_as(ids)
        # All that a call depends on, in one matrix: ids, which of them are wanted, which are padding.
        state = ids + vocab_size * wanted
        state = state.masked_fill(torch.arange(ids.shape[1], device=ids.device) >= length[:, None], -1)
        distinct, self._which = torch.unique(state, dim=0, return_inverse=True)
        self.needed = len(distinct) < len(ids)
        if not self.needed:
            return
        # The first row of each state stands for it.
        order = torch.arange(len(ids), device=ids.device)
        first = torch.full((len(distinct),), len(ids), device=ids.device)
        self.chosen = first.scatter_reduce(0, self._which, order, "amin")
        self.source = self.chosen[self._which]  # [B]: the row that stands for each
        self._count = count
        self.want = compact(wanted[self.chosen], int(count[self.chosen.cpu()].sum()))

    def spread(self, logits: Tensor) -> Tensor:
        """Every row takes its state's stretch of the logits of the chosen rows."""
        total, count = int(self._count.sum()), self._count.to(logits.device)
        chosen = count[self.chosen]
        first = (chosen.cumsum(0) - chosen)[self._which] - (count.cumsum(0) - count)
        stretch = torch.arange(total, device=logits.device)
        return logits[stretch + first.repeat_interleave(count, output_size=total)]


class Uncached:
    """Exact for every model: the whole row, every step; the head only where something may be committed."""

    def __init__(self, model: Denoiser) -> None:
        self.model = model

    def logits(self, rows: Rows, window: Window) -> Tensor:
        ids = rows.ids[:, : rows.width]
        want = window.row * rows.width + window.at
        real = torch.arange(rows.width, device=ids.device) < rows.length[:, None] if rows.padded else None
        if rows.twins:
            once = Once(ids, want, rows.length, window.count, self.model.vocab_size)
            if once.needed:
                some = once.chosen
                found = self.model.logits(ids[some], None if real is None else real[some], once.want)
                return once.spread(found)
        return self.model.logits(ids, real, want)

    def book(self, rows: Rows, window: Window) -> None:
        rows.forwards += 1
        rows.processed += rows.tokens

    def keep(self, slots: Sequence[int]) -> None:
        pass

    def grow(self, rows: int, columns: int) -> None:
        pass


class Fixed(Uncached):
    """Every forward pass has one shape: so many rows of so many columns, and a block of predictions per row.

    The order in which a kernel adds up depends on the shape of its operands, and in half precision that changes
    samples. Here a row's logits depend on the row and the shape alone. Missing rows are copies of the last one.
    """

    def __init__(self, model: Denoiser, rows: int) -> None:
        super().__init__(model)
        self.rows = rows

    def logits(self, rows: Rows, window: Window) -> Tensor:
        pick = torch.arange(self.rows, device=rows.ids.device).clamp_max(len(rows.requests) - 1)
        real = torch.arange(rows.columns, device=rows.ids.device) < rows.length[:, None]
        first = rows.columns * torch.arange(self.rows, device=rows.ids.device)
        want = (first[:, None] + window.positions[pick]).flatten()
        return self.model.logits(rows.ids[pick], real[pick], want)[window.index]


class Windowed:
    """Keys and values are kept, and a step computes a window of the row only.

    block    exact for block-causal models: a block sees itself and what lies before, so what is committed
             before it never changes again. The window runs from the first column without final K, V to the
             end of the block: the first pass of a row takes in its prompt, the first pass of a block the
             finished block before it (the commit pass, merged), the others compute the block alone. A prompt
             is taken in once for all rows that start from it.
    prefix   approximate (Fast-dLLM): the whole row at the first step of a block; after that the block and
             all that follows, against the K, V of what lies before as they were then.
    dual     approximate (Fast-dLLM): the same, but the columns after the block are frozen too.
    """

    def __init__(self, model: CachedDenoiser, rows: int, columns: int, kind: Kind) -> None:
        self.model = model
        self.kind = kind
        self.cache = model.new_cache(rows, columns)
        # Whose final K, V each row of the cache holds.
        self.prompts: list[tuple[int, ...] | None] = [None] * rows

    def logits(self, rows: Rows, window: Window) -> Tensor:
        if self.kind == "block" and bool((rows.cached < 0).any()):
            self._take_over(rows, window)
        begin, end, visible = self._span(rows, window)
        # Rows that take in a prompt or refresh the whole row go apart, so that the others stay narrow.
        wide = end - begin > 2 * rows.block_width
        if bool(wide.all()) or not bool(wide.any()):
            return self._compute(rows, window, begin, end, visible, None)
        parts, places = [], []
        for member in (wide, ~wide):
            parts.append(self._compute(rows, window, begin, end, visible, member.nonzero()[:, 0]))
            places.append(compact(member.to(self.model.device)[window.row], len(parts[-1])))
        found = torch.empty(
            len(window.index), *parts[0].shape[1:], dtype=parts[0].dtype, device=self.model.device
        )
        for place, part in zip(places, parts):
            found.index_copy_(0, place, part)
        return found

    def book(self, rows: Rows, window: Window) -> None:
        begin, end, _ = self._span(rows, window)
        rows.forwards += 1
        rows.processed += end - begin
        rows.cached = window.start.clone()
        self.prompts = [request.prompt for request in rows.requests]

    def _take_over(self, rows: Rows, window: Window) -> None:
        """Give new rows their prompt's finished blocks from a row that has had the same prompt.

        They are booked as if computed, so that a sample's cost does not depend on its neighbours.
        """
        known = {prompt: slot for slot, prompt in enumerate(self.prompts) if prompt is not None}
        new = [
            slot for slot in (rows.cached < 0).nonzero()[:, 0].tolist() if rows.requests[slot].prompt in known
        ]
        if new:
            source = torch.tensor([known[rows.requests[slot].prompt] for slot in new])
            target = torch.tensor(new)
            self.cache.copy(source.to(self.model.device), target.to(self.model.device))
            rows.cached[target] = window.start[target]
            rows.processed[target] += (window.start[target] - self.model.lookback).clamp_min(0)

    def _span(self, rows: Rows, window: Window) -> tuple[Tensor, Tensor, Tensor]:
        """Which columns to compute, [begin, end), and how many are visible; on the host. `rows.cached`: the
        block whose first step the cache has seen, by its start; -1: none."""
        if self.kind == "block":
            # With the shift of a model the last position before the block, final too, predicts its first.
            return (rows.cached - self.model.lookback).clamp_min(0), window.end, window.end
        stale = rows.cached != window.start
        begin = torch.where(stale, 0, (window.start - self.model.lookback).clamp_min(0))
        end = rows.tokens if self.kind == "prefix" else torch.where(stale, rows.tokens, window.end)
        return begin, end, rows.tokens

    def _compute(
        self, rows: Rows, window: Window, begin: Tensor, end: Tensor, seen: Tensor, group: Tensor | None
    ) -> Tensor:
        """Logits of a group of rows (on the host; None: all of them)."""
        device = self.model.device
        every, count = torch.arange(len(begin)), window.count
        if group is not None:
            every, begin, end, seen, count = (t[group] for t in (every, begin, end, seen, count))
        # Only where nothing of the cache is reused do a row's keys and values follow from its tokens alone.
        alone = rows.twins and not bool(((begin > 0) | (end < seen)).any())
        width = int((end - begin).max())
        members, begin, end, seen = torch.stack([every, begin, end, seen]).to(device, non_blocking=True)
        at = begin[:, None] + torch.arange(width, device=device)
        at = torch.where(at < end[:, None], at, rows.columns)
        row, column = window.row, window.at
        if group is not None:
            index = compact(window.asked[members], int(count.sum()))
            row = index // window.asked.shape[1]
            column = window.positions[members].flatten()[index]
        want = row * width + column - begin[row]
        visible = torch.arange(rows.columns, device=device) < seen[:, None]
        ids = rows.ids if group is None else rows.ids[members]
        tokens = ids.gather(1, at.clamp_max(rows.columns - 1))
        if alone:
            once = Once(tokens, want, end - begin, count, self.model.vocab_size)
            if once.needed:
                some = once.chosen
                found = self.model.window_logits(
                    tokens[some], at[some], visible[some], self.cache, once.want, members[some]
                )
                self.cache.copy(members[once.source], members)
                return once.spread(found)
        return self.model.window_logits(
            tokens, at, visible, self.cache, want, None if group is None else members
        )

    def keep(self, slots: Sequence[int]) -> None:
        self.cache.keep(torch.tensor(slots, dtype=torch.int64, device=self.model.device))
        self.prompts = [self.prompts[slot] for slot in slots]

    def grow(self, rows: int, columns: int) -> None:
        self.cache.grow(rows, columns)
        self.prompts += [None] * (rows - len(self.prompts))
