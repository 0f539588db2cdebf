r"""The estimators of log p(completion | prompt), each one entry of `ESTIMATORS` and one function.

An estimator never sees the model: it is a pure function from completions to the queries that are put to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twotemp import rng
from twotemp.errors import unknown
from twotemp.likelihood.decisions import (
    deferral,
    masked_at,
    refuse_all_but_thresholds,
    refuse_edits,
    steps_of,
)
from twotemp.likelihood.orders import order, refuse_all_but_orders
from twotemp.likelihood.queries import BuildQueries, CompletionBatch, MaskedQueries, concatenate
from twotemp.records import Policy

PROMPT_MASKING = 0.15  # d1's probability of hiding a prompt token
COUPLED_RATIOS = (0.2, 0.8)  # between which coupled-GRPO draws the share of masked tokens


def d1(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Mask the whole completion, and prompt tokens with p = 0.15 (d1, Zhao et al. 2025): 1 pass per draw.

    log p(x) ~ sum_k log q(x^k | masked prompt, all masks). Biased: tokens count as independent of each other.
    More than one draw averages over prompt masks.
    """
    parts = []
    for index, draw in enumerate(draws):
        hidden_prompt = ~batch.generated & batch.present & (batch.noise(draw) < PROMPT_MASKING)
        hidden = batch.generated | hidden_prompt
        parts.append(batch.mask(hidden, batch.scored, weight=1 / len(draws), draw=index))
    return concatenate(parts)


def trajectory(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Query the states that the sampler went through: 1 pass per step, nothing random.

    log p = sum_s sum_{k in U_s} log q(x^k | x_s). This is the likelihood of the tokens *given the order*, and of the
    whole trajectory only where the order does not depend on the tokens drawn (AR, random). LC, CT and TCT commit a
    token because of what it is and defer others because of what they were; this leaves both out (see `deferral`).
    """
    row, step = steps_of(batch, batch.scored)
    written = batch.steps[row] == step[:, None]
    return batch.mask(masked_at(batch, row, step), batch.scored[row] & written, row)


def fork(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Query as `trajectory` does, but only steps that committed one position (ForkGRPO, Frković et al. 2026).

    For policies whose fallback does not look at tokens (the leftmost mask) these are the forks.
    """
    row, step = steps_of(batch, batch.scored)
    single = (batch.steps[row] == step[:, None]).sum(1) == 1
    return trajectory(batch, draws)[single]


def autoregressive(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Reveal tokens from left to right: 1 pass per token, nothing random (JustGRPO, Ni et al. 2026).

    log p(x) = sum_k log q(x^k | x^<k, masks): the exact likelihood of the model read as an AR model.
    """
    row, column = batch.scored.nonzero(as_tuple=True)
    columns = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    later = batch.generated[row] & (columns >= column[:, None])
    return batch.mask(later, columns == column[:, None], row)


def elbo(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Estimate the evidence lower bound by Monte Carlo (Nie et al. 2025, eq. 6): 1 pass per draw.

    With n scored tokens, l uniform on 1..n and S a uniform set of l of them, the expectation of
    (n / l) sum_{k in S} log q(x^k | S and all after EOS masked) is the mean over all orders of
    log p(x | order) <= log p(x), with equality for a consistent q.
    """
    return _random_masks(batch, draws, strata=1)


def stratified(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Estimate as `elbo`, with l spread evenly over the draws: the same expectation, less noise."""
    return _random_masks(batch, draws, _paired_strata(len(draws)))


def coupled(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Mask a random part of the scored tokens, then the others, then all: 3 passes per draw (Gong et al. 2025).

    With t uniform on (0.2, 0.8) and each token in the part M with probability t, the estimate of a draw is

        1/2 sum_k [ log q(x^k | all masked) + log q(x^k | M masked) / t          if k in M
                                            + log q(x^k | the rest masked) / (1 - t)   otherwise ],

    as in the code of coupled-GRPO (ml-diffucoder, coupled_grpo.py), so that every token is read in every draw. Each
    of the two parts alone estimates a bound of log p at t, so the whole is 3/2 of the scale of one.
    """
    parts = []
    after = batch.generated & ~batch.scored
    for index, draw in enumerate(draws):
        low, high = COUPLED_RATIOS
        ratio = (low + (high - low) * _level(batch, draw))[:, None]
        part = batch.scored & (batch.noise(draw) < ratio)
        rest = batch.scored & ~part
        for chosen, share in ((batch.scored, torch.ones_like(ratio)), (part, ratio), (rest, 1 - ratio)):
            weight = (0.5 / share[:, 0] / len(draws)).float()
            parts.append(batch.mask(chosen | after, chosen, weight=weight, draw=index))
    return concatenate(parts)


def quadrature(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Estimate the bound of `elbo` at Gauss-Legendre nodes t of the mask ratio (GDPO, Rojas et al. 2025).

    sum over nodes of  w * 1/t sum_{k in M} log q(x^k | M masked), each scored token in M with probability t: 1 pass
    per draw. An odd number of draws is that many nodes, an even one half as many with two masks each. In t the
    expectation is a polynomial of degree n - 1 for n scored tokens, so N nodes integrate it exactly if n <= 2N; for
    longer completions the error is that of the quadrature.
    """
    nodes = _paired_strata(len(draws))
    x, w = np.polynomial.legendre.leggauss(nodes)
    parts = []
    for index, draw in enumerate(draws):
        ratio, weight = (x[index % nodes] + 1) / 2, w[index % nodes] / 2
        chosen = batch.scored & (batch.noise(draw) < ratio)
        share = weight / ratio * nodes / len(draws)
        parts.append(batch.mask(chosen | (batch.generated & ~batch.scored), chosen, weight=share, draw=index))
    return concatenate(parts)


def pseudo(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Mask every scored token alone: 1 pass per token, nothing random.

    The pseudo-log-likelihood sum_k log q(x^k | all other tokens) (Wang and Cho 2019; Salazar et al. 2020). It is no
    log-likelihood of the completion: it counts what any two tokens say about each other twice.
    """
    row, column = batch.scored.nonzero(as_tuple=True)
    alone = torch.arange(batch.ids.shape[1], device=batch.ids.device) == column[:, None]
    return batch.mask(alone, alone, row)


def thirds(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Mask the whole completion, then every third token of it: 4 passes, nothing random.

    1/2 sum_k log q(x^k | prompt) + 1/2 sum_k log q(x^k | prompt, tokens whose number differs from k's modulo 3).
    A wrong answer that goes on consistently is unlikely by the first sum, one that contradicts itself by the second.
    Every generated position counts, as those after EOS are filled with EOS. Used by reward models.
    """
    number = batch.generated.cumsum(1) - 1
    sets = [batch.generated, *(batch.generated & (number % 3 == third) for third in range(3))]
    return concatenate([batch.mask(hidden, hidden, weight=0.5) for hidden in sets])


def _random_masks(batch: CompletionBatch, draws: range, strata: int) -> MaskedQueries:
    """Return the queries of the ELBO; draw i takes l from stratum i mod `strata`."""
    count = batch.scored.sum(1)
    parts = []
    for index, draw in enumerate(draws):
        size = 1 + ((index % strata + _level(batch, draw)) / strata * count).long()
        rank = batch.noise(draw).masked_fill(~batch.scored, 2.0).argsort(1).argsort(1)
        chosen = batch.scored & (rank < size[:, None])
        hidden = chosen | (batch.generated & ~batch.scored)
        parts.append(batch.mask(hidden, chosen, weight=count / size / len(draws), draw=index))
    return concatenate(parts)


def _level(batch: CompletionBatch, draw: int) -> Tensor:
    """Return a uniform for the mask ratio of each row, [B].

    It has column -1, which no position has: the uniforms of the other columns decide what is masked.
    """
    outside = torch.full_like(batch.keys[:, None], -1)
    return rng.uniform(batch.keys, torch.full_like(batch.keys, draw), outside, rng.Stream.TRAIN)[:, 0]


def _paired_strata(draws: int) -> int:
    """Return the number of strata. Each has two draws, whose difference gives the error; with an odd number, one."""
    return draws // 2 if draws % 2 == 0 else draws


@dataclass(frozen=True)
class Estimator:
    """An entry of `ESTIMATORS`."""

    build: BuildQueries
    random: bool = False  # each draw asks different queries
    # Number of strata for this many draws; draw i is in i mod strata.
    strata: Callable[[int], int] = lambda draws: 1
    check: Callable[[Policy], None] = lambda policy: None  # refuses policies whose samples it cannot score
    by_block: bool = False  # needs to know the blocks that a sample was decoded in
    merges: bool = False  # may treat several steps of a rollout as one (`CompletionBatch.merged`)

    def __call__(self, batch: CompletionBatch, draws: range = range(1)) -> MaskedQueries:
        """Return the queries of a batch for these draws; the weights include the mean over draws."""
        for policy in batch.policies:
            if policy is not None:
                self.check(policy)
        return self.build(batch, draws)


ESTIMATORS: dict[str, Estimator] = {
    "d1": Estimator(d1, random=True),
    "trajectory": Estimator(trajectory, check=refuse_edits, merges=True),
    "deferral": Estimator(deferral, check=refuse_all_but_thresholds, by_block=True),
    "order": Estimator(order, check=refuse_all_but_orders, by_block=True),
    "fork": Estimator(fork, check=refuse_edits),
    "ar": Estimator(autoregressive),
    "elbo": Estimator(elbo, random=True),
    "stratified": Estimator(stratified, random=True, strata=_paired_strata),
    "coupled": Estimator(coupled, random=True),
    "quadrature": Estimator(quadrature, random=True, strata=_paired_strata),
    "pll": Estimator(pseudo),
    "thirds": Estimator(thirds),
}


def get(name: str) -> Estimator:
    """Return the estimator of this name, or raise an error that names the nearest one."""
    if name not in ESTIMATORS:
        raise unknown("likelihood estimator", name, ESTIMATORS)
    return ESTIMATORS[name]
