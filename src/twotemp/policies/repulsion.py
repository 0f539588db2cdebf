"""*Beside whom*: before a policy sees them, a sample's logits are pushed away from what earlier samples say (ODD).

Lamont et al., arXiv 2603.04893. The samples k = 0, 1, ... of a group stand at the same step. With P the prediction at
masks and the token itself where one is written,

    v_k = normalised max over positions of P_k        a bag of tokens
    q_k = mean over masks of max_w P_k(w)             how sure the sample is
    d_k = normalised part of v_k that is orthogonal to d_0 ... d_(k-1)
    loss = - sum_(k > 0) <v_k, d_k> q_k,   d constant

and G, the gradient by the logits, without end tokens and divided by the sample's largest norm at a position:
z <- z - alpha (share of the row that is still masked) G. Sample k moves by samples < k alone.

Positions are what the row has written so far and the masks of its active block; with one block that is the authors'
region. Where every step writes equally many, the share is the authors' 1 - t / steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twotemp.records import Request

# Below this, what is left of a unit vector is rounding, and a direction made of it would depend on the batch.
_FLAT = 1e-4
_LEAST_NORM = 1e-8
_FURTHEST = 1e30  # no logit is seen beside it, and no product overflows


@dataclass(frozen=True)
class Groups:
    """Which rows of a batch are samples of one group, by index."""

    slots: list[list[int]]  # on the host
    grid: Tensor  # [G, S]: the rows of each group; B where it has fewer
    place: Tensor  # [B]: of each row in the flattened grid
    alpha: Tensor  # [B] float32; 0 for the first of a group, which nothing pushes

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device | str) -> Groups | None:
        """None: all are alone, so that nobody is pushed."""
        found: dict[Hashable, list[int]] = {}
        for slot, request in enumerate(requests):
            found.setdefault(request.group, []).append(slot)
        slots = [sorted(some, key=lambda slot: requests[slot].index) for some in found.values()]
        rows, size = len(requests), max(map(len, slots), default=0)
        if size < 2:
            return None
        grid = torch.tensor([some + [rows] * (size - len(some)) for some in slots])
        place = torch.empty(rows + 1, dtype=torch.int64).scatter_(
            0, grid.flatten(), torch.arange(grid.numel())
        )
        alpha = torch.tensor([min(r.policy.repel, _FURTHEST) for r in requests])
        alpha = alpha.where(place[:rows] % size > 0, 0.0)
        return cls(slots, grid.to(device), place[:rows].to(device), alpha.to(device))


@dataclass(frozen=True)
class Crowd:
    """What a step's samples know of each other beside their predictions."""

    groups: Groups
    written: Tensor  # [B, V] bool: the tokens that each row has written
    open: Tensor  # [B]: the share of the row that is still masked


def push(z: Tensor, index: Tensor, masked: Tensor, eos: Tensor, crowd: Crowd) -> Tensor:
    """Logits [N, V] at the entries `index` of the flattened window, moved where the window is masked [B, W].

    With m the bag before it is normalised, a = <v, d> and M masks, the gradient by P at a mask i is
    -q (d - a v) / |m| for the tokens w whose largest P is there, and -a / M for the likeliest token of i; by z it is
    P (g - <P, g>), as for any softmax.
    """
    rows, width = masked.shape
    p = torch.zeros(masked.numel(), z.shape[1], dtype=z.dtype, device=z.device)
    p = p.index_copy_(0, index, z.softmax(-1)).view(rows, width, -1).mul_(masked[..., None])
    most, where = p.max(1)
    bag = most.masked_fill(crowd.written, 1.0)
    size = bag.norm(dim=-1, keepdim=True).clamp_min(_LEAST_NORM)
    v = bag / size
    surest, likeliest = p.max(-1)
    masks = masked.sum(1, keepdim=True).clamp_min(1)
    q = surest.sum(1, keepdim=True) / masks
    d = directions(v, crowd.groups)
    a = (v * d).sum(-1, keepdim=True)
    by_bag = (q * (a * v - d) / size).masked_fill(crowd.written, 0.0)
    by_p = torch.zeros_like(p).scatter_(1, where[:, None], by_bag[:, None])
    by_p.scatter_add_(2, likeliest[..., None], (-a / masks)[:, None].expand(-1, width, 1))
    g = by_p.sub_((p * by_p).sum(-1, keepdim=True)).mul_(p)
    g.index_fill_(2, eos, 0.0)
    largest = g.norm(dim=-1).amax(1).clamp_min(_LEAST_NORM)
    g.mul_((crowd.groups.alpha * crowd.open / largest)[:, None, None])
    return z - g.flatten(0, 1)[index]


def directions(v: Tensor, groups: Groups) -> Tensor:
    """d_k of every row, [B, V]: Gram-Schmidt within each group; 0 where a sample says nothing new."""
    left = torch.cat([v, torch.zeros_like(v[:1])])[groups.grid]
    for k in range(left.shape[1]):
        norm = left[:, k].norm(dim=-1, keepdim=True)
        left[:, k] = d = (left[:, k] / norm).where(norm > _FLAT, 0.0)
        left[:, k + 1 :] -= (left[:, k + 1 :] * d[:, None]).sum(-1, keepdim=True) * d[:, None]
    return left.flatten(0, 1)[groups.place]
