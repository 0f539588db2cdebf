"""*Where* to write: a tempered rule is the plain rule applied to scores perturbed by T_pos-scaled noise.

Shapes: B rows, W positions of the active block; `masked` says which of them may be committed.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BELOW_ALL = 1e6  # more than any score and any noise that 52-bit uniforms can give


def perturb(score: Tensor, t_pos: Tensor, noise: Tensor) -> Tensor:
    """s + T_pos * noise; the score itself at T_pos = 0, the noise itself at T_pos = inf.

    With Gumbel noise on log c, the K highest are K draws without replacement from Cat(c^(1/T_pos)) (TLC);
    with Logistic noise on c - lambda, P(above 0) = sigma((c - lambda) / T_pos) (TCT).
    """
    finite = torch.isfinite(t_pos)[:, None]
    scaled = torch.where(finite, t_pos[:, None], 0.0) * noise
    return torch.where(finite, score + scaled, noise)


def demote(score: Tensor, where: Tensor) -> Tensor:
    """Rank some positions below all the others, in their own order."""
    return score - _BELOW_ALL * where


def select(score: Tensor, masked: Tensor, k: Tensor, cut: Tensor) -> Tensor:
    """Commit the k highest scores and every score above the cut.

    cut = inf: a fixed budget K (LC: U = argmax over |I| = K of sum c). k = 1 and a finite cut: thresholding
    (CT: U = {c > lambda}), where an empty set becomes the highest score, so that every step commits.
    """
    score = score.masked_fill(~masked, -torch.inf)
    return masked & ((_rank(score) < k[:, None]) | (score > cut[:, None]))


def select_entropy_bound(score: Tensor, entropy: Tensor, masked: Tensor, k: Tensor, bound: Tensor) -> Tensor:
    """Commit the longest prefix U, best score first, with sum_U H - max_U H <= gamma; at least k.

    The left side bounds the joint dependence that committing U in parallel ignores (Ben-Hamu et al., 2025).
    """
    score = score.masked_fill(~masked, -torch.inf)
    order = score.argsort(dim=1, descending=True, stable=True)
    h = entropy.masked_fill(~masked, torch.inf).gather(1, order)
    fits = h.cumsum(1) - h.cummax(1).values <= bound[:, None]  # inf - inf is NaN: padding never fits
    size = fits.cumprod(1).sum(1)
    return masked & (_rank(score) < torch.maximum(size, k)[:, None])


def _rank(score: Tensor) -> Tensor:
    """0 for the highest score of a row; equal scores keep their order, left first."""
    order = score.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(score.shape[1], device=score.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)
