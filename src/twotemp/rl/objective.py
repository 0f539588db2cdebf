"""GRPO (Shao et al. 2024) on flat tensors of terms, one for every log q that the estimator asks for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STD_FLOOR = 1e-4  # as in TRL: keeps a nearly constant group from dominating


@dataclass(frozen=True)
class Loss:
    """Sums over terms; divide by the number of tokens in the whole batch for means."""

    total: Tensor  # with gradient
    kl: Tensor
    clipped: Tensor  # weight of the terms whose gradient the clip removed


def advantages(rewards: Tensor, *, scale: bool) -> Tensor:
    """Return A = r - mean of the group (scale: divided by its std), [groups, size].

    A NaN reward is ungraded: it counts in no mean and has advantage 0. So have all samples of a group with equal
    rewards, or with fewer than two graded ones.
    """
    centred = _centred(rewards)
    return centred / (group_std(rewards)[:, None] + STD_FLOOR) if scale else centred


def group_std(rewards: Tensor) -> Tensor:
    """Return the standard deviation of the graded rewards of each group (n - 1), [groups]; 0 for fewer than two."""
    count = (~rewards.isnan()).sum(1)
    return (_centred(rewards).square().sum(1) / (count - 1).clamp_min(1)).sqrt()


def _centred(rewards: Tensor) -> Tensor:
    """Return r - mean of the group's graded rewards; 0 for the ungraded, and exactly 0 where all are equal."""
    graded = ~rewards.isnan()
    known = rewards.nan_to_num()
    mean = known.sum(1, keepdim=True) / graded.sum(1, keepdim=True).clamp_min(1)
    # Compare the rewards themselves: the float mean of equal ones may differ from them in the last bit.
    most = torch.where(graded, rewards, -torch.inf).amax(1, keepdim=True)
    least = torch.where(graded, rewards, torch.inf).amin(1, keepdim=True)
    return torch.where(graded & (most > least), known - mean, 0.0)


def grpo_loss(
    new: Tensor,
    old: Tensor,
    reference: Tensor | None,
    advantage: Tensor,
    weight: Tensor,
    *,
    epsilon: float,
    beta: float,
) -> Loss:
    """Return the sum over terms of w * ( -min(rho A, clip(rho, 1 - eps, 1 + eps) A) + beta KL ).

    rho = exp(new - old); KL to the reference by the k3 estimator, exp(ref - new) - (ref - new) - 1 >= 0.

    Args:
        new: log q under the weights being trained, [terms] as all the others; the only one with a gradient.
        old: log q under the weights that drew the samples.
        reference: log q under the untrained weights; None: no KL.
        advantage: of the term's sample.
        weight: of the term, from the estimator.
        epsilon: clip of the ratio.
        beta: weight of the KL.
    """
    ratio = (new - old).exp()
    free = ratio * advantage
    bounded = ratio.clamp(1 - epsilon, 1 + epsilon) * advantage
    losses = -torch.minimum(free, bounded)
    kl = torch.zeros_like(new)
    if reference is not None:
        gap = reference - new
        kl = gap.exp() - gap - 1
        losses = losses + beta * kl
    return Loss(
        total=(weight * losses).sum(),
        kl=(weight * kl).sum().detach(),
        clipped=(weight * (bounded < free)).sum().detach(),
    )
