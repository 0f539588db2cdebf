"""Entries of rows in row-major lists: the indices of wanted ones, and of rows that share their logits.

The host knows how many entries each row has (`Window.count`), so none of this waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compact(flags: Tensor, count: int) -> Tensor:
    """Return the indices of the True entries of `flags.flatten()`, of which there are `count`.

    `nonzero` would have to ask the device for that number; prefix sums do not.
    """
    flags = flags.flatten()
    target = torch.where(
        flags, flags.cumsum(0) - 1, count
    )  # all False entries share a last slot, cut off below
    indices = torch.empty(count + 1, dtype=torch.int64, device=flags.device)
    return indices.scatter_(0, target, torch.arange(len(flags), device=flags.device))[:count]


class DistinctRows:
    """Rows in the same state, of which one is computed and its logits are shared by the others."""

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
    """Return start[i], start[i] + 1, ..., `count[i]` numbers, for one i after the other."""
    shift = start - (count.cumsum(0) - count)
    return torch.arange(int(count.sum())) + shift.repeat_interleave(count)
