"""The likelihood of an order: tokens and positions, with all that was drawn and not committed integrated out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from twotemp.errors import UserError
from twotemp.likelihood.decisions import IMPOSSIBLE, ROUNDING, decisions, policy_values, refuse_edits
from twotemp.likelihood.queries import CompletionBatch, MaskedQueries
from twotemp.records import Policy, Score


def order(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Query as `trajectory` does, and score the order as well: 1 pass per step, nothing random.

    For budgets (TLC, LC, alg-temp, margin, entropy, TPP, random, AR; any K) and thresholds (CT, TCT). A step that
    commits the tokens x at the positions U has the probability

        prod_{k in U} q_T(x_k)  *  E[ P(U | the scores of x at U and of v ~ q_T at the other positions) ],

    with q_T = softmax(z / T_token). What was drawn and not committed is integrated out, exactly: at a given level
    kappa of the perturbed score s + T_pos noise the positions are independent, so that with F the distribution
    function of the noise and F_j(kappa) = sum_v q_T(v) F((kappa - s(v)) / T_pos),

        budget:     E[P(U | ...)] = int prod_{j not in U} F_j(kappa)  d/dkappa( -prod_{k in U} (1 - F_k(kappa)) ),
        threshold:  prod_{k in U} (1 - F_k(lambda)) prod_{j not in U} F_j(lambda), and where U is one position, which
                    may have been forced, also the integral above over kappa <= lambda.

    F is Gumbel's for budgets, which makes the integral the Plackett-Luce probability of the *set* U (a sum over the
    orders of its members), and Logistic for thresholds. One dimension for any K and block; Gauss-Legendre panels in
    float64 reach 1e-10 (tests compare with enumeration). The sum over all trajectories is 1, and nothing needs to
    be replayed. At T_pos = 0 there is no noise, and F_j is the chance to draw a lower score.

    Terms: log q_T(x) at each committed position; at the step's first deferred one, the order's log-probability.
    Scores that do not look at the draw (TPP, margin, entropy) leave nothing to integrate out but the noise.
    """
    queries, committed, _ = decisions(batch)
    row = queries.row

    def parameter(name: str) -> Tensor:
        return policy_values(batch, row, lambda policy: getattr(policy, name))

    budget = policy_values(batch, row, lambda policy: policy.rule == "budget") > 0
    return OrderQueries(
        **vars(queries),
        committed=committed,
        lowest=torch.where(committed, batch.confidence[row], inf).amin(1),
        score=policy_values(batch, row, lambda policy: list(SCORES).index(policy.score)).long(),
        threshold=torch.where(budget, inf, parameter("threshold")),
        t_token=parameter("t_token"),
        t_pos=parameter("t_pos"),
    )


class ScoreLaw(NamedTuple):
    """A score as a function of log q [N, V] and the column [N]: values by token [N, V], or by position [N, 1]."""

    compute: Callable[[Tensor, Tensor], Tensor]
    by_token: bool = False  # the score depends on the drawn token


def _log_margin(log_q: Tensor, column: Tensor) -> Tensor:
    best = log_q.topk(2, dim=-1).values.exp()
    gap = best[:, :1] - best[:, 1:]
    return gap.clamp_min(torch.finfo(torch.float32).tiny).log()


def _entropy(log_q: Tensor, column: Tensor) -> Tensor:
    return -(log_q.exp() * log_q).sum(-1, keepdim=True)


# What positions are ranked by, differentiable; `policies.positions.SCORES` are the same numbers while sampling.
SCORES: dict[Score, ScoreLaw] = {
    "log_confidence": ScoreLaw(lambda log_q, column: log_q, by_token=True),
    "confidence": ScoreLaw(lambda log_q, column: log_q.exp(), by_token=True),
    "log_top": ScoreLaw(lambda log_q, column: log_q.amax(-1, keepdim=True)),
    "log_margin": ScoreLaw(_log_margin),
    "entropy": ScoreLaw(_entropy),
    "neg_entropy": ScoreLaw(lambda log_q, column: -_entropy(log_q, column)),
    "position": ScoreLaw(lambda log_q, column: -column[:, None].double()),
}


class NoiseLaw(NamedTuple):
    """Logarithms of functions of m = (kappa - s) / T_pos: P(noise <= m), P(noise > m), density / P(noise > m)."""

    log_below: Callable[[Tensor], Tensor]
    log_above: Callable[[Tensor], Tensor]
    log_hazard: Callable[[Tensor], Tensor]


def _gumbel_above(m: Tensor) -> Tensor:
    """Return log(1 - exp(-exp(-m))), which is -m for large m."""
    x = (-m).clamp(-30, 700).exp()
    return torch.where(m > 30, -m, (-torch.expm1(-x)).clamp_min(1e-300).log())


def _gumbel_below(m: Tensor) -> Tensor:
    return -(-m).clamp_max(700).exp()


GUMBEL = NoiseLaw(_gumbel_below, _gumbel_above, lambda m: -m + _gumbel_below(m) - _gumbel_above(m))
LOGISTIC = NoiseLaw(logsigmoid, lambda m: logsigmoid(-m), logsigmoid)

_TAIL = np.polynomial.legendre.leggauss(16)  # of a panel that maps an infinite tail to (0, 1)
_PANEL = np.polynomial.legendre.leggauss(12)  # of a panel of width 2 at most
_END = log(40.0)  # beyond it Gumbel's density is below e^-40
_CHUNK = 1 << 22  # numbers held at once: positions x tokens x nodes


@dataclass(frozen=True)
class OrderQueries(MaskedQueries):
    """Queries about the steps of a budget or a threshold rule; see `order`. Parameters are float64."""

    committed: Tensor  # [Q, C] bool
    lowest: Tensor  # [Q]: the lowest confidence that was committed; decides where T_pos = 0
    score: Tensor  # [Q] int64: place in `SCORES`
    threshold: Tensor  # [Q]: lambda; inf for budgets
    t_token: Tensor  # [Q]
    t_pos: Tensor  # [Q]

    def read(self, logits: Tensor) -> Tensor:
        """Return log q_T of each committed token and, as a further term per step, its order's log-probability."""
        z = logits.double().clamp_min(-1e4)  # finite: gradients of what cannot be drawn are 0, not NaN
        query, column = self.queried.nonzero(as_tuple=True)
        committed, target = self.committed[self.queried], self.target[self.queried][:, None]
        drawn = (z / self.t_token[query, None]).log_softmax(-1)
        log_q = z.log_softmax(-1).clamp_min(-1e3)
        terms = torch.where(committed, drawn.gather(1, target)[:, 0], 0.0)
        # Steps that commit every position a budget could choose have one order.
        open_steps = (self.queried & ~self.committed).any(1) | (self.threshold < inf)
        for place, law in enumerate(SCORES.values()):
            for noise in (GUMBEL, LOGISTIC):
                chosen = (self.score == place) & ((self.threshold < inf) == (noise is LOGISTIC)) & open_steps
                if not chosen.any():
                    continue
                score = law.compute(log_q, column)
                if law.by_token:
                    hard = (chosen & (self.t_pos == 0))[query] & ~committed
                    cut = torch.minimum(self.lowest, self.threshold)[query][hard, None]
                    passes = torch.where(log_q[hard].exp() > cut * (1 + ROUNDING), IMPOSSIBLE, 0.0)
                    terms = terms.index_put((hard.nonzero()[:, 0],), (drawn[hard] + passes).logsumexp(-1))
                soft = (chosen & (self.t_pos > 0))[query].nonzero()[:, 0]
                if not len(soft):
                    continue
                steps, step = torch.unique(query[soft], return_inverse=True)
                scaled = score[soft] / self.t_pos[query[soft], None]
                own = scaled.gather(1, target[soft]) if law.by_token else scaled
                log_p = _log_order(
                    step,
                    committed[soft],
                    drawn[soft],
                    scaled,
                    own,
                    (self.threshold / self.t_pos)[steps],
                    noise,
                )
                terms = terms.index_add(0, soft[_places(step, committed[soft])], log_p)
        return terms.to(torch.promote_types(logits.dtype, torch.float32))


def _places(step: Tensor, committed: Tensor) -> Tensor:
    """Return each step's first position that was not committed, or its first one where all were."""
    rank = torch.arange(len(step), device=step.device) + len(step) * committed
    first = torch.full((int(step[-1]) + 1,), 2 * len(step), device=step.device)
    return first.scatter_reduce(0, step, rank, "amin") % len(step)


def _log_order(
    step: Tensor,
    committed: Tensor,
    drawn: Tensor,
    scaled: Tensor,
    own: Tensor,
    bound: Tensor,
    noise: NoiseLaw,
) -> Tensor:
    """Return the log-probability that each step commits the positions it did, given their tokens, [S].

    Args:
        step: [N] of each position, from 0 to S - 1 in ascending order.
        committed: [N] bool.
        drawn: [N, V], log q_T.
        scaled: [N, V] or, where the score ignores the draw, [N, 1]: s / T_pos.
        own: [N, 1], that of the token written there; means nothing where none was.
        bound: [S], lambda / T_pos; inf for budgets.
        noise: Of the rule.
    """
    steps = len(bound)

    def log_integrand(level: Tensor, chosen: Tensor, density: bool) -> Tensor:
        """Return log prod F prod (1 - F) [sum of hazards] of the chosen steps at levels kappa / T_pos, [S', M]."""
        place = chosen.long().cumsum(0) - 1
        inside = chosen[step]
        up, down = inside & committed, inside & ~committed
        total = torch.zeros(len(level), level.shape[1], dtype=level.dtype, device=level.device)
        above = place[step[up]]
        margin = level[above] - own[up]
        total = total.index_add(0, above, noise.log_above(margin))
        below = place[step[down]]
        total = total.index_add(0, below, _log_below(level[below], drawn[down], scaled[down], noise))
        if density:
            hazard = noise.log_hazard(margin)
            index = above[:, None].expand_as(hazard)
            highest = torch.full_like(total, -inf).scatter_reduce(0, index, hazard.detach(), "amax")
            total = (
                total
                + highest
                + torch.zeros_like(total).index_add(0, above, (hazard - highest[above]).exp()).log()
            )
        return total

    everything = torch.ones(steps, dtype=torch.bool, device=step.device)
    ends = torch.where(committed, own[:, 0], inf).detach()
    if noise is GUMBEL:
        count = torch.zeros_like(bound).index_add(0, step, torch.ones_like(ends))
        highest = torch.where(committed, own[:, 0], scaled.amax(1)).detach()
        top = torch.full_like(bound, -inf).scatter_reduce(0, step, highest, "amax") + count.log()
        bottom = torch.full_like(bound, inf).scatter_reduce(0, step, ends, "amin") - _END
        levels, weights = _nodes(top - bottom, top.detach(), tail_above=True)
        return (log_integrand(levels, everything, density=True) + weights).logsumexp(1)
    log_p = log_integrand(bound[:, None], everything, density=False)[:, 0]
    alone = torch.zeros_like(bound).index_add(0, step, committed.to(bound.dtype)) == 1
    if not alone.any():
        return log_p
    lowest = torch.minimum(scaled.amin(1), own[:, 0]).detach()
    bottom = torch.full_like(bound, inf).scatter_reduce(0, step, lowest, "amin")
    levels, weights = _nodes((bound.detach() - bottom).clamp_min(0)[alone], bound[alone], tail_above=False)
    forced = (log_integrand(levels, alone, density=True) + weights).logsumexp(1)
    return log_p.index_put((alone.nonzero()[:, 0],), torch.logaddexp(log_p[alone], forced))


def _log_below(level: Tensor, drawn: Tensor, scaled: Tensor, noise: NoiseLaw) -> Tensor:
    """Return log sum_v q_T(v) F(level - scaled(v)) of each position and level, [N, M]."""
    if scaled.shape[1] == 1:
        return noise.log_below(level - scaled)

    def part(level: Tensor, drawn: Tensor, scaled: Tensor) -> Tensor:
        return (drawn[:, None] + noise.log_below(level[:, :, None] - scaled[:, None])).logsumexp(-1)

    rows = max(1, _CHUNK // (level.shape[1] * drawn.shape[1]))
    chunks = [slice(at, at + rows) for at in range(0, len(level), rows)]
    # A chunk is computed again for its gradient: kept, it would be V times as large as what it returns.
    sums = [checkpoint(part, level[c], drawn[c], scaled[c], use_reentrant=False) for c in chunks]
    return torch.cat([level[:0], *sums])


def _nodes(length: Tensor, start: Tensor, *, tail_above: bool) -> tuple[Tensor, Tensor]:
    """Return Gauss-Legendre levels and log-weights, [S, M]: panels from `start` down by `length`, and one tail.

    Args:
        length: [S], of the part that panels of width 2 or less divide.
        start: [S], its upper end; the levels are differentiable in it.
        tail_above: Whether the infinite tail is above `start` or below the other end. Tails fall exponentially.
    """
    panels = max(1, int(torch.ceil(length.max() / 2)))
    x, w = (torch.as_tensor(a, dtype=length.dtype, device=length.device) for a in _PANEL)
    inside = torch.arange(panels, device=length.device)[:, None] + (x + 1) / 2
    inside = inside.flatten() / panels  # in (0, 1)
    share = (w / 2).repeat(panels) / panels
    tau, omega = (torch.as_tensor(a, dtype=length.dtype, device=length.device) / 2 for a in _TAIL)
    tau = tau + 0.5
    tail = -tau.log() if tail_above else -length[:, None] + tau.log()
    offsets = torch.cat([-length[:, None] * inside, tail.expand(len(length), len(tau))], 1)
    interior = (length[:, None] * share).clamp_min(1e-300).log()
    outside = (omega / tau).log().expand(len(length), len(tau))
    return start[:, None] + offsets, torch.cat([interior, outside], 1)


def refuse_all_but_orders(policy: Policy) -> None:
    """Raise an error unless `order` knows the law of the policy's steps."""
    refuse_edits(policy)
    free = (
        "t_token",
        "t_pos",
        *(("k", "steps", "schedule") if policy.rule == "budget" else ("threshold", "inclusive")),
    )
    plain = Policy(policy.name, policy.score, policy.rule, **{name: getattr(policy, name) for name in free})
    known = policy.rule == "budget" or (policy.rule, policy.score) == ("threshold", "confidence")
    if policy != plain or not known or policy.t_token == 0:
        raise UserError(
            f"the order likelihood is that of budgets (tlc, lc, alg-temp, margin, entropy, tpp, random, ar), ct and "
            f"tct, with t_token > 0 and no filters, not of {policy.name!r}; use --likelihood trajectory"
        )
