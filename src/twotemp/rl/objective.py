"""GRPO (Shao et al. 2024) and its relatives on flat tensors of terms, one for every log q that an estimator asks for.

An objective is an entry of `OBJECTIVES`: a function from the terms to a loss. Where the loss of a term depends on it
alone, micro-batches are added up. Otherwise (a ratio of whole completions) the learner first computes the loss's
derivative in every log q and then the gradients of log q with these as weights, so that any micro-batches will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from twotemp.errors import unknown

STD_FLOOR = 1e-4  # as in TRL: keeps a nearly constant group from dominating
# SPG's beta, and the share of the upper bound where the advantage is negative.
SPG_POWER, SPG_SHARE = 1.5, 0.5


@dataclass(frozen=True)
class Loss:
    """Sums over the batch; divide by the number of tokens, rows or groups in the global batch (`Objective.per`)."""

    total: Tensor  # with gradient
    kl: Tensor
    clipped: Tensor  # weight of the terms, or number of rows, whose gradient the clip removed


@dataclass(frozen=True)
class Terms:
    """What an objective sees: a batch of terms [N] of rows [R]. Only `new` has a gradient."""

    new: Tensor  # log q under the weights being trained
    old: Tensor  # under the weights that drew the samples
    reference: Tensor | None  # under the untrained weights; None: no KL
    weight: Tensor  # from the estimator
    row: Tensor  # int64
    column: Tensor  # int64: the position that was asked about
    advantage: Tensor  # [R]
    tokens: Tensor  # [R]: scored
    group: Tensor  # [R] int64

    def rows(self, values: Tensor) -> Tensor:
        """Return the log-likelihood of each row, [R]: the weighted sum of its terms' values."""
        return torch.zeros_like(self.advantage).index_add(0, self.row, self.weight * values)


@dataclass(frozen=True)
class Clip:
    """The numbers of an objective."""

    low: float  # epsilon: ratios below 1 - low are clipped where that is an improvement
    high: float  # those above 1 + high
    beta: float  # weight of the KL


def advantages(rewards: Tensor, *, scale: bool) -> Tensor:
    """Return A = r - mean of the group (scale: divided by its std), [groups, size].

    A NaN reward is ungraded: it counts in no mean and has advantage 0. So have all samples of a group with equal
    rewards, or with fewer than two graded ones.
    """
    centered = _centered(rewards)
    return centered / (group_std(rewards)[:, None] + STD_FLOOR) if scale else centered


def group_std(rewards: Tensor) -> Tensor:
    """Return the standard deviation of the graded rewards of each group (n - 1), [groups]; 0 for fewer than two."""
    count = (~rewards.isnan()).sum(1)
    return (_centered(rewards).square().sum(1) / (count - 1).clamp_min(1)).sqrt()


def _centered(rewards: Tensor) -> Tensor:
    """Return r - mean of the group's graded rewards; 0 for the ungraded, and exactly 0 where all are equal."""
    graded = ~rewards.isnan()
    known = rewards.nan_to_num()
    mean = known.sum(1, keepdim=True) / graded.sum(1, keepdim=True).clamp_min(1)
    # Compare the rewards themselves: the float mean of equal ones may differ from them in the last bit.
    most = torch.where(graded, rewards, -torch.inf).amax(1, keepdim=True)
    least = torch.where(graded, rewards, torch.inf).amin(1, keepdim=True)
    return torch.where(graded & (most > least), known - mean, 0.0)


def signed_softmax(rewards: Tensor) -> Tensor:
    """Return softmax(A) - softmax(-A) over each group's graded samples, [groups, size]: wd1's weights at psi = 1."""
    graded, centered = ~rewards.isnan(), _centered(rewards)
    up, down = (torch.where(graded, sign * centered, -torch.inf).softmax(1) for sign in (1, -1))
    return torch.where(graded & (centered != 0).any(1, keepdim=True), up - down, 0.0)


def _clipped(ratio: Tensor, advantage: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """Return -min(rho A, clip(rho) A), and a mask of the terms where the clip is active."""
    free, bounded = ratio * advantage, ratio.clamp(1 - clip.low, 1 + clip.high) * advantage
    return -torch.minimum(free, bounded), bounded < free


def grpo(terms: Terms, clip: Clip) -> Loss:
    """Return the sum over terms of w * ( -min(rho A, clip(rho, 1 - low, 1 + high) A) + beta KL ).

    rho = exp(new - old); KL to the reference by the k3 estimator, exp(ref - new) - (ref - new) - 1 >= 0. With high
    above low it is DAPO's asymmetric clip (Yu et al. 2025), which keeps raising rare tokens.
    """
    advantage = terms.advantage[terms.row] if len(terms.advantage) else torch.zeros_like(terms.new)
    losses, clipped = _clipped((terms.new - terms.old).exp(), advantage, clip)
    kl = torch.zeros_like(terms.new)
    if terms.reference is not None:
        gap = terms.reference - terms.new
        kl = gap.exp() - gap - 1
        losses = losses + clip.beta * kl
    return _sums(terms.weight * losses, terms.weight * kl, terms.weight * clipped)


def sequence(terms: Terms, clip: Clip) -> Loss:
    """Return the sum over rows of -min(rho A, clip(rho) A) + beta k2 / n, rho = exp((new - old) / n).

    new and old are log-likelihoods of the whole row, by whatever estimator, and n its scored tokens: ESPO (Ou et al.
    2025, espo_trainer.py; there n also counts padding), GSPO for diffusion models. k2 = (new - ref)^2 / 2.
    """
    losses, clipped = _clipped(_row_ratio(terms), terms.advantage, clip)
    kl = torch.zeros_like(losses)
    if terms.reference is not None:
        kl = terms.rows(terms.new - terms.reference).square() / 2 / terms.tokens
        losses = losses + clip.beta * kl
    return _sums(losses, kl, clipped)


def stable(terms: Terms, clip: Clip) -> Loss:
    """Return the sum over groups of -sum_i w_i A_i log p_i / n_i, w_i = min(rho_i, 1 + high) / sum over its group.

    The ratio is clipped whatever the sign of A, and the weights of a group sum to 1, so that one noisy ratio cannot
    outweigh the rest (StableDRL, Zhong et al. 2026; compute_loss_spg in llada_svpo.py, whose bound is 5). Weights
    have no gradient. The number returned has log p_i - log p_i without gradient in place of log p_i.
    """
    ratio = _row_ratio(terms)
    bounded = ratio.detach().clamp_max(1 + clip.high)
    total = torch.zeros_like(bounded).index_add(0, terms.group, bounded)[terms.group]
    losses = -bounded / total * terms.advantage * ratio / ratio.detach()
    return _sums(losses, torch.zeros_like(losses), ratio > 1 + clip.high)


def weighted(terms: Terms, clip: Clip) -> Loss:
    """Return the sum over rows of -(w+ - w-) log p, w+- = softmax(+-A) over the group: no ratio, no old log q.

    wd1 (Tang et al. 2025, rev_grpo_trainer.py): a weighted log-likelihood; negative weights unlearn bad samples. The
    advantage is `signed_softmax`.
    """
    losses = -terms.advantage[terms.row] * terms.new if len(terms.advantage) else 0 * terms.new
    return _sums(terms.weight * losses, 0 * losses, 0 * losses)


def sandwiched(terms: Terms, clip: Clip) -> Loss:
    """Return the sum over rows of -A B: B is a lower bound of log p for A > 0, and half an upper bound for A < 0.

    Lower: the estimate itself, L = sum w log q. Upper, up to a constant, with the draws d that masked token k,

        U = n / m sum_k 1/beta log sum_d w_d q_d(x^k)^beta,    m of n tokens masked in some draw, beta = 1.5;

    B = U/2 + L/2 for A < 0 (SPG, Wang et al. 2025, spg_trainer.py). Lowering a lower bound need not lower log p. With
    one draw per token U is L up to its weights, so take several draws of `elbo` or `stratified`.
    """
    lower = terms.rows(terms.new)
    place, number = torch.unique(torch.stack([terms.row, terms.column]), dim=1, return_inverse=True)
    powers = SPG_POWER * terms.new
    peak = torch.full_like(place[0], -torch.inf, dtype=powers.dtype).scatter_reduce(
        0, number, powers.detach(), "amax"
    )
    mass = torch.zeros_like(peak).index_add(0, number, terms.weight * (powers - peak[number]).exp())
    logs = (mass.log() + peak) / SPG_POWER
    upper = torch.zeros_like(lower).index_add(0, place[0], logs)
    masked = torch.zeros_like(lower).index_add(0, place[0], torch.ones_like(logs))
    upper = upper * terms.tokens / masked.clamp_min(1)
    bound = torch.where(terms.advantage < 0, SPG_SHARE * upper + (1 - SPG_SHARE) * lower, lower)
    losses = -terms.advantage * bound
    return _sums(losses, 0 * losses, 0 * losses)


def _row_ratio(terms: Terms) -> Tensor:
    """Return exp of the mean over the row's tokens of new - old, [R]."""
    return (terms.rows(terms.new - terms.old) / terms.tokens).exp()


def _sums(losses: Tensor, kl: Tensor, clipped: Tensor) -> Loss:
    return Loss(losses.sum(), kl.sum().detach(), clipped.sum().detach())


@dataclass(frozen=True)
class Objective:
    """An entry of `OBJECTIVES`."""

    loss: Callable[[Terms, Clip], Loss]
    per: Literal["tokens", "rows", "groups"] = "tokens"  # what the sum is divided by
    # The loss of a term depends on it alone; or on differences of log q of whole rows; or on their values.
    needs: Literal["terms", "differences", "values"] = "terms"
    advantages: Callable[[Tensor], Tensor] | None = None  # of the rewards, in place of `advantages`
    normalizes: bool = False  # each group's weights add up to 1
    ratio: bool = True  # uses the ratio to the weights that drew the samples
    kl: bool = False  # supports a KL to the untrained model


OBJECTIVES: dict[str, Objective] = {
    "grpo": Objective(grpo, kl=True),
    "sequence": Objective(sequence, "rows", "differences", kl=True),
    "stable": Objective(stable, "groups", "differences", normalizes=True),
    "wd1": Objective(weighted, "groups", advantages=signed_softmax, ratio=False),
    "spg": Objective(sandwiched, "tokens", "values", ratio=False),
}


def get(name: str) -> Objective:
    """Return the objective of this name, or raise an error that names the nearest one."""
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)
    return OBJECTIVES[name]
