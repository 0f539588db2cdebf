r"""The estimators of log p(completion | prompt), each one entry of `ESTIMATORS` and one function.

An estimator never sees the model: it is a pure function from completions to the queries that are put to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from twotemp import rng
from twotemp.errors import UserError, unknown
from twotemp.likelihood.queries import BuildQueries, CompletionBatch, MaskedQueries, concatenate
from twotemp.records import Policy

PROMPT_MASKING = 0.15  # d1's probability of hiding a prompt token
ROUNDING = 1e-6  # relative: two computations of one confidence may differ by this much
IMPOSSIBLE = -100.0  # stands for log 0, whose gradient would not be finite


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
    """Ask again about the states the sampler went through: 1 pass per step, nothing random.

    log p = sum_s sum_{k in U_s} log q(x^k | x_s). This is the likelihood of the tokens *given the order*, and of the
    whole trajectory only where the order does not depend on the tokens drawn (AR, random). LC, CT and TCT commit a
    token because of what it is and defer others because of what they were; this leaves both out (see `deferral`).
    """
    row, step = _steps(batch, batch.scored)
    written = batch.steps[row] == step[:, None]
    return batch.mask(_masked_at(batch, row, step), batch.scored[row] & written, row)


def fork(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Ask as `trajectory`, but only about steps that committed one position (ForkGRPO, Frković et al. 2026).

    For policies whose fallback does not look at tokens (the leftmost mask) these are the forks.
    """
    row, step = _steps(batch, batch.scored)
    single = (batch.steps[row] == step[:, None]).sum(1) == 1
    return trajectory(batch, draws)[single]


def deferral(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Ask as `trajectory`, for CT and TCT, with what it leaves out: 1 pass per step, nothing random.

    Every masked position of the block draws v ~ q_T = softmax(z / T_token) and is committed if c(v) + T L > lambda,
    where c = softmax(z), T = T_pos and L is Logistic. So a step has the probability, as a product over positions,

        committed x:  q_T(x) sigma((c(x) - lambda) / T)        deferred:  sum_v q_T(v) sigma((lambda - c(v)) / T).

    Where none passes, the highest score is committed. Given that score, kappa, the step is a product again:

        committed x:  q_T(x) sigma'((kappa - c(x)) / T) / T    deferred:  sum_v q_T(v) sigma((kappa - c(v)) / T),

    a density in kappa <= lambda. Noise is addressed, so kappa is known: this is exactly the likelihood of the
    trajectory with its kappas, and summed and integrated over all of them it is 1. At T = 0 sigma is a step and
    kappa = c(x): no density. Positions after EOS count as well: they were decisions like the others.
    """
    row, step = _steps(batch, batch.generated)
    masked = _masked_at(batch, row, step)
    committed = batch.steps[row] == step[:, None]
    block = torch.where(committed, batch.block[row], 0).amax(1, keepdim=True)
    queries = batch.mask(masked, masked & (batch.block[row] == block), row)

    def parameter(name: str) -> Tensor:
        values = [getattr(policy, name) for policy in batch.policies]
        return torch.tensor(values, dtype=torch.float64, device=row.device)[row]

    columns = torch.arange(committed.shape[1], device=row.device).expand_as(committed)
    noise = rng.logistic(rng.uniform(batch.keys[row], step, columns, rng.Stream.POSITION))
    threshold, t_pos = parameter("threshold"), parameter("t_pos")
    score = batch.confidence[row] + t_pos[:, None] * noise
    highest = torch.where(committed, score, -inf).amax(1)
    return CommitQueries(
        **vars(queries),
        committed=committed,
        cut=torch.minimum(highest, threshold).float(),
        forced=highest <= threshold,
        t_token=parameter("t_token").float(),
        t_pos=t_pos.float(),
    )


@dataclass(frozen=True)
class CommitQueries(MaskedQueries):
    """Queries about the decisions of a threshold rule: to commit the drawn token at a position, or to defer it."""

    committed: Tensor  # [Q, C] bool
    cut: Tensor  # [Q] float32: what a perturbed confidence had to exceed to be committed
    forced: Tensor  # [Q] bool: nothing exceeded lambda; the cut is the highest perturbed confidence itself
    t_token: Tensor  # [Q] float32
    t_pos: Tensor  # [Q] float32

    def read(self, logits: Tensor) -> Tensor:
        """Return the log-probability of each decision; see `deferral`."""
        query = self.queried.nonzero()[:, 0]
        cut, forced, t_token, t_pos = (
            tensor[query, None] for tensor in (self.cut, self.forced, self.t_token, self.t_pos)
        )
        c, drawn = logits.float().softmax(-1), (logits.float() / t_token).log_softmax(-1)
        hard = t_pos == 0
        margin = (cut - c) / torch.where(hard, 1.0, t_pos)
        passes = torch.where(c > cut * (1 + ROUNDING), IMPOSSIBLE, 0.0)
        deferred = (drawn + torch.where(hard, passes, logsigmoid(margin))).logsumexp(-1)
        # The density of the highest score where it was forced, else the chance to be above the cut.
        soft = logsigmoid(-margin) + torch.where(forced, logsigmoid(margin) - t_pos.log(), 0.0)
        target = self.target[self.queried][:, None]
        written = (drawn + torch.where(hard, 0.0, soft)).gather(1, target)[:, 0]
        return torch.where(self.committed[self.queried], written, deferred)


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
        # Uniforms of positions decide S; that of column -1, which no position has in any batch, decides l.
        outside = torch.full_like(batch.keys[:, None], -1)
        step = torch.full_like(batch.keys, draw)
        level = rng.uniform(batch.keys, step, outside, rng.Stream.TRAIN)[:, 0]
        size = 1 + ((index % strata + level) / strata * count).long()
        rank = batch.noise(draw).masked_fill(~batch.scored, 2.0).argsort(1).argsort(1)
        chosen = batch.scored & (rank < size[:, None])
        hidden = chosen | (batch.generated & ~batch.scored)
        parts.append(batch.mask(hidden, chosen, weight=count / size / len(draws), draw=index))
    return concatenate(parts)


def _paired_strata(draws: int) -> int:
    """Return the number of strata: each gets two draws, whose difference gives the error; one if `draws` is odd."""
    return draws // 2 if draws % 2 == 0 else draws


def _steps(batch: CompletionBatch, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and the number of every decoding step that wrote one of the positions."""
    if bool((batch.scored & (batch.steps < 0)).any()):
        raise UserError("this likelihood needs each token's step; sample with trace=True")
    row, column = (positions & (batch.steps >= 0)).nonzero(as_tuple=True)
    row, step = torch.unique(torch.stack([row, batch.steps[row, column]]), dim=1)
    return row, step


def _masked_at(batch: CompletionBatch, row: Tensor, step: Tensor) -> Tensor:
    """Return the positions that were masked when a step began, [Q, C]."""
    written = batch.steps[row]
    return batch.generated[row] & ((written >= step[:, None]) | (written < 0))


def _refuse_edits(policy: Policy) -> None:
    if policy.edit != "never":
        raise UserError(
            f"policy {policy.name!r} rewrites tokens, so that a sample's last writes are not the way it came "
            "about; use a likelihood that asks about the finished text: --likelihood d1, ar, elbo or stratified"
        )


def _refuse_all_but_thresholds(policy: Policy) -> None:
    _refuse_edits(policy)
    parameters = {name: getattr(policy, name) for name in ("t_token", "t_pos", "threshold", "inclusive")}
    plain = Policy(policy.name, "confidence", "threshold", **parameters)
    if policy != plain or policy.t_token == 0 or policy.t_pos == inf:
        raise UserError(
            f"the deferral likelihood is that of ct and tct with t_token > 0, a finite t_pos and no filters, not of "
            f"{policy.name!r}; use --likelihood trajectory"
        )


@dataclass(frozen=True)
class Estimator:
    """An entry of `ESTIMATORS`."""

    build: BuildQueries
    random: bool = False  # other draws ask other queries
    strata: Callable[[int], int] = lambda draws: (
        1
    )  # number of strata for this many draws; draw i is in i mod strata
    check: Callable[[Policy], None] = lambda policy: None  # refuses policies whose samples it cannot score
    by_block: bool = False  # needs to know the blocks that a sample was decoded in

    def __call__(self, batch: CompletionBatch, draws: range = range(1)) -> MaskedQueries:
        """Return the queries of a batch for these draws; the weights include the mean over draws."""
        for policy in batch.policies:
            if policy is not None:
                self.check(policy)
        return self.build(batch, draws)


ESTIMATORS: dict[str, Estimator] = {
    "d1": Estimator(d1, random=True),
    "trajectory": Estimator(trajectory, check=_refuse_edits),
    "deferral": Estimator(deferral, check=_refuse_all_but_thresholds, by_block=True),
    "fork": Estimator(fork, check=_refuse_edits),
    "ar": Estimator(autoregressive),
    "elbo": Estimator(elbo, random=True),
    "stratified": Estimator(stratified, random=True, strata=_paired_strata),
    "pll": Estimator(pseudo),
    "thirds": Estimator(thirds),
}


def get(name: str) -> Estimator:
    """Return the estimator of this name, or raise an error that names the nearest one."""
    if name not in ESTIMATORS:
        raise unknown("likelihood estimator", name, ESTIMATORS)
    return ESTIMATORS[name]
