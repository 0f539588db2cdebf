"""The likelihood of decisions: which positions a step committed, and which it left masked.

A step draws a token at every masked position of the block and commits some of them because of what was drawn.
`trajectory` (in `estimators`) takes the order as given; `deferral` here and `order` (in `orders`) do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from twotemp import rng
from twotemp.errors import UserError
from twotemp.likelihood.queries import CompletionBatch, MaskedQueries
from twotemp.records import Policy

ROUNDING = 1e-6  # relative: two computations of one confidence may differ by this much
IMPOSSIBLE = -100.0  # stands for log 0, whose gradient would not be finite


def deferral(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Query as `trajectory` does, and score deferred positions as well (CT, TCT): 1 pass per step, nothing random.

    Every masked position of the block draws v ~ q_T = softmax(z / T_token) and is committed if c(v) + T L > lambda,
    where c = softmax(z), T = T_pos and L is Logistic. So a step has the probability, as a product over positions,

        committed x:  q_T(x) sigma((c(x) - lambda) / T)        deferred:  sum_v q_T(v) sigma((lambda - c(v)) / T).

    Where none passes, the highest score is committed. Given that score, kappa, the step is a product again:

        committed x:  q_T(x) sigma'((kappa - c(x)) / T) / T    deferred:  sum_v q_T(v) sigma((kappa - c(v)) / T),

    a density in kappa <= lambda. Noise is addressed, so kappa is known: this is exactly the likelihood of the
    trajectory with its kappas, and summed and integrated over all of them it is 1. At T = 0 sigma is a step and
    kappa = c(x): no density. Positions after EOS count as well: they were decisions like the others.
    """
    queries, committed, step = decisions(batch)
    row = queries.row

    def parameter(name: str) -> Tensor:
        return policy_values(batch, row, lambda policy: getattr(policy, name))

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
    cut: Tensor  # [Q] float32: the bound that a perturbed confidence had to exceed
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


def steps_of(batch: CompletionBatch, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and the number of every decoding step that wrote one of the positions."""
    if bool((batch.scored & (batch.steps < 0)).any()):
        raise UserError("this likelihood needs each token's step; sample with trace=True")
    row, column = (positions & (batch.steps >= 0)).nonzero(as_tuple=True)
    row, step = torch.unique(torch.stack([row, batch.steps[row, column]]), dim=1)
    return row, step


def masked_at(batch: CompletionBatch, row: Tensor, step: Tensor) -> Tensor:
    """Return the positions that were masked when a step began, [Q, C]."""
    written = batch.steps[row]
    return batch.generated[row] & ((written >= step[:, None]) | (written < 0))


def decisions(batch: CompletionBatch) -> tuple[MaskedQueries, Tensor, Tensor]:
    """Return a query per step about all masked positions of its block, what the step committed, and its number."""
    row, step = steps_of(batch, batch.generated)
    masked = masked_at(batch, row, step)
    committed = batch.steps[row] == step[:, None]
    block = torch.where(committed, batch.block[row], 0).amax(1, keepdim=True)
    return batch.mask(masked, masked & (batch.block[row] == block), row), committed, step


def policy_values(batch: CompletionBatch, row: Tensor, number: Callable[[Policy], float]) -> Tensor:
    """Return a number of each row's policy, [Q] float64."""
    values = [0.0 if policy is None else float(number(policy)) for policy in batch.policies]
    return torch.tensor(values, dtype=torch.float64, device=row.device)[row]


def refuse_edits(policy: Policy) -> None:
    if policy.edit != "never":
        raise UserError(
            f"policy {policy.name!r} rewrites tokens, so a sample does not show all the steps that produced it; "
            "use a likelihood that looks only at the finished text: --likelihood d1, ar, elbo or stratified"
        )


def refuse_all_but_thresholds(policy: Policy) -> None:
    refuse_edits(policy)
    parameters = {name: getattr(policy, name) for name in ("t_token", "t_pos", "threshold", "inclusive")}
    plain = Policy(policy.name, "confidence", "threshold", **parameters)
    if policy != plain or policy.t_token == 0 or policy.t_pos == inf:
        raise UserError(
            f"the deferral likelihood is that of ct and tct with t_token > 0, a finite t_pos and no filters, not of "
            f"{policy.name!r}; use --likelihood trajectory"
        )
