"""Search in a group of rows: what two rivals of independent samples do between steps, as functions of tensors.

- Self-rewarding SMC (Luo et al., arXiv 2602.01849): rows are particles, weighted by the probability of what they
  committed. After a block, if the weights are uneven, rows are drawn in proportion to them and replace the others.
- D5P4 (Lys et al., arXiv 2603.19146): every beam has several candidates; of each beam one survives, so that the
  survivors are good and differ: a greedy maximum of a determinantal point process.

`experiments/search.py` decodes with them and compares them with portfolios at equal NFE.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EPSILON = 1e-10


def resample(log_weight: Tensor, u: Tensor) -> Tensor | None:
    """Return the rows that replace rows 0 to N - 1, or None if the weights are even (effective size >= N / 2).

    Args:
        log_weight: [N], log q of everything a row committed since it was last replaced.
        u: [N] uniforms; row i's replacement is the weights' quantile at u[i].
    """
    weight = log_weight.double().softmax(0)
    if 1 / weight.square().sum() >= len(weight) / 2:
        return None
    return torch.searchsorted(weight.cumsum(0), u.double()).clamp_max(len(weight) - 1)


def certainty(entropy: Tensor) -> Tensor:
    """Return the quality of candidates, from 0 (the least sure of a batch) to 1, [N].

    Args:
        entropy: [N, W], of the prediction at every position of the block.
    """
    sure = -entropy.mean(1)
    return (sure - sure.min()) / (sure.max() - sure.min() + _EPSILON)


def survivors(features: Tensor, quality: Tensor, beams: int, diversity: float) -> Tensor:
    """Return one candidate of each beam, [beams] in the order of the beams.

    With S the cosine similarity, no greedy search from any candidate finds a set with a larger determinant of
    diversity S + diag(quality). Each search keeps, for every candidate, what the chosen ones leave of its variance
    (a Cholesky factorization, one row per choice; Chen et al., arXiv 1709.05135).

    Args:
        features: [N, D] of the candidates, those of a beam side by side.
        quality: [N].
        beams: How many beams there are.
        diversity: The weight of the similarity; 0 leaves quality alone.
    """
    count = len(features)
    unit = torch.nn.functional.normalize(features.double(), dim=-1)
    kernel = diversity * unit @ unit.T + torch.diag(quality.double() + _EPSILON)
    beam = torch.arange(count) // (count // beams)
    left = kernel.diagonal().expand(count, -1).clone()  # [search, candidate]
    chosen = torch.arange(count)  # search i begins with candidate i
    factors = kernel.new_zeros(count, beams, count)  # [search, choice, candidate]
    found, log_det = torch.empty(count, beams, dtype=torch.int64), kernel.new_zeros(count)
    searches = torch.arange(count)
    for number in range(beams):
        if number:
            chosen = left.argmax(1)
        variance = left[searches, chosen].clamp_min(_EPSILON)
        log_det += variance.log()
        found[searches, beam[chosen]] = chosen
        known = factors[searches, :, chosen]  # of the new candidate, [search, choice]
        explained = torch.einsum("sk,skn->sn", known, factors)
        factors[:, number] = (kernel[chosen] - explained) / variance.sqrt()[:, None]
        left -= factors[:, number].square()
        left.masked_fill_(beam == beam[chosen][:, None], -torch.inf)
    return found[log_det.argmax()]
