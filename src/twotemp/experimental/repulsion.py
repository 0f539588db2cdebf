"""Repulsion (ODD): before a policy sees them, a sample's logits are pushed away from what earlier samples say.

Lamont et al., arXiv 2603.04893. The samples k = 0, 1, ... of a group stand at the same step. With P the prediction at
masks and the token itself where one is written,

    v_k = normalized max over positions of P_k        a bag of tokens
    q_k = mean over masks of max_w P_k(w)             how sure the sample is
    d_k = normalized part of v_k that is orthogonal to d_0 ... d_(k-1)
    loss = - sum_(k > 0) <v_k, d_k> q_k,   d constant

and G, the gradient by the logits, without end tokens and divided by the sample's largest norm at a position:
z <- z - alpha (share of the row that is still masked) G. Sample k moves by samples < k alone, so it is the same for
every n > k, but only if these are decoded beside it: see `twotemp.engine.scheduler`.

Positions are what the row has written so far and the masks of its active block; with one block that is the authors'
region. Where every step writes equally many, the share is the authors' 1 - t / steps. The gradient is computed in
closed form rather than by autograd, since the engine runs in inference mode and since it costs less.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twotemp.records import Request

if TYPE_CHECKING:
    from twotemp.models.base import Denoiser

# Below this, what is left of a unit vector is rounding, and a direction made of it would depend on the batch.
_FLAT = 1e-4
_LEAST_NORM = 1e-8
_LARGEST_ALPHA = 1e30  # beside it no logit matters, and no product overflows


@dataclass(frozen=True)
class SampleGroups:
    """Which rows of a batch belong to one group, in the order of their sample index."""

    slots: list[list[int]]  # on the host
    grid: Tensor  # [G, S]: the rows of each group; B where it has fewer
    cell: Tensor  # [B]: index of each row in the flattened grid
    alpha: Tensor  # [B] float32; 0 for the first of a group, which nothing pushes

    @classmethod
    def from_requests(cls, requests: Sequence[Request], device: torch.device | str) -> SampleGroups | None:
        """Return the groups of these rows; None if every row is alone in its group, so that nothing is pushed."""
        members: dict[Hashable, list[int]] = {}
        for slot, request in enumerate(requests):
            members.setdefault(request.group, []).append(slot)
        slots = [sorted(group, key=lambda slot: requests[slot].index) for group in members.values()]
        rows, size = len(requests), max(map(len, slots), default=0)
        if size < 2:
            return None
        grid = torch.tensor([group + [rows] * (size - len(group)) for group in slots])
        cell = torch.empty(rows + 1, dtype=torch.int64).scatter_(
            0, grid.flatten(), torch.arange(grid.numel())
        )
        alpha = torch.tensor([min(r.policy.repel, _LARGEST_ALPHA) for r in requests])
        alpha = alpha.where(cell[:rows] % size > 0, 0.0)
        return cls(slots, grid.to(device), cell[:rows].to(device), alpha.to(device))


@dataclass(frozen=True)
class Repulsion:
    """What the samples of a step know of each other beside their predictions."""

    groups: SampleGroups
    written: Tensor  # [B, V] bool: the tokens that each row has written
    masked_share: Tensor  # [B]: how much of the row is still masked

    @classmethod
    def from_rows(
        cls, groups: SampleGroups, ids: Tensor, generated: Tensor, masked: Tensor, model: Denoiser
    ) -> Repulsion:
        """Read it off the rows: token ids, which of them were masked at the start and which still are, [B, C]."""
        tokens = torch.where(generated & ~masked, ids, model.mask_id)
        written = torch.zeros(len(ids), model.vocab_size, dtype=torch.bool, device=ids.device)
        written = written.scatter_(1, tokens, True)
        written[:, model.mask_id] = False
        return cls(groups, written, masked.sum(1) / generated.sum(1))

    def push(self, z: Tensor, index: Tensor, masked: Tensor, eos: Tensor) -> Tensor:
        """Return the logits, pushed away from what earlier samples of the group say.

        With m the bag before it is normalized, a = <v, d> and M masks, the gradient by P at a mask i is
        -q (d - a v) / |m| for the tokens w whose largest P is there, and -a / M for the likeliest token of i; by z it
        is P (g - <P, g>), as for any softmax.

        Args:
            z: [N, V] logits.
            index: [N], their entries in the flattened window.
            masked: [B, W] bool, where the logits of the window may move.
            eos: Ids of end tokens, which are not pushed.
        """
        rows, width = masked.shape
        p = torch.zeros(masked.numel(), z.shape[1], dtype=z.dtype, device=z.device)
        p = p.index_copy_(0, index, z.softmax(-1)).view(rows, width, -1).mul_(masked[..., None])
        most, where = p.max(1)
        bag = most.masked_fill(self.written, 1.0)
        size = bag.norm(dim=-1, keepdim=True).clamp_min(_LEAST_NORM)
        v = bag / size
        surest, likeliest = p.max(-1)
        masks = masked.sum(1, keepdim=True).clamp_min(1)
        q = surest.sum(1, keepdim=True) / masks
        d = directions(v, self.groups)
        a = (v * d).sum(-1, keepdim=True)
        by_bag = (q * (a * v - d) / size).masked_fill(self.written, 0.0)
        by_p = torch.zeros_like(p).scatter_(1, where[:, None], by_bag[:, None])
        by_p.scatter_add_(2, likeliest[..., None], (-a / masks)[:, None].expand(-1, width, 1))
        g = by_p.sub_((p * by_p).sum(-1, keepdim=True)).mul_(p)
        g.index_fill_(2, eos, 0.0)
        largest = g.norm(dim=-1).amax(1).clamp_min(_LEAST_NORM)
        g.mul_((self.groups.alpha * self.masked_share / largest)[:, None, None])
        return z - g.flatten(0, 1)[index]


def directions(v: Tensor, groups: SampleGroups) -> Tensor:
    """Return d_k of every row, [B, V]: Gram-Schmidt within each group; 0 where a sample says nothing new."""
    left = torch.cat([v, torch.zeros_like(v[:1])])[groups.grid]
    for k in range(left.shape[1]):
        norm = left[:, k].norm(dim=-1, keepdim=True)
        left[:, k] = d = (left[:, k] / norm).where(norm > _FLAT, 0.0)
        left[:, k + 1 :] -= (left[:, k + 1 :] * d[:, None]).sum(-1, keepdim=True) * d[:, None]
    return left.flatten(0, 1)[groups.cell]
