"""The choice of *where* to write: which of the drawn tokens a step commits.

A tempered rule is the plain rule applied to scores perturbed by T_pos-scaled noise. A score says what positions are
ranked by (`SCORES`): how sure the model is of the token it drew there, or of its prediction before the draw. A rule
says which positions are ready to be committed, and which noise tempers it (`RULES`). If a rule finds fewer than k
positions, the fallback adds the missing ones. A new score or rule is one entry, and its name in `records`.

Shapes: B rows, N positions of them, V vocabulary entries, W positions of the active block; `masked` says which of
these may be committed. Parameters are [B] tensors, so rows of a batch may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from twotemp import records, rng
from twotemp.policies.tokens import Need

# Stands for T_pos = inf. A power of two scales noise exactly; this one makes every score negligible without overflow.
_MAX_T_POS = 2.0**1000
_DREAM_EPS = 1e-3  # where Dream's time grid ends
_DTYPES = {float: torch.float64, int: torch.int64}


class StackedParameters:
    """The policies' parameters by name, [B] each, e.g. `parameters.t_pos`; a tensor is made when it is first used."""

    def __init__(self, policies: Sequence[records.Policy], device: torch.device | str) -> None:
        self._policies, self._device = policies, device

    def __getattr__(self, name: str) -> Tensor:
        if name not in records.PARAMETERS:
            raise AttributeError(name)
        dtype = _DTYPES[records.PARAMETERS[name].kind]
        values = torch.tensor([getattr(p, name) for p in self._policies], dtype=dtype, device=self._device)
        setattr(self, name, values)
        return values

    @cached_property
    def exclusive_threshold(self) -> Tensor:
        """[B]: what a score must exceed; x >= lambda is x > the number before lambda."""
        thresholds = [
            math.nextafter(p.threshold, -math.inf) if p.inclusive else p.threshold for p in self._policies
        ]
        return torch.tensor(thresholds, dtype=torch.float64, device=self._device)


@dataclass(frozen=True)
class DrawnTokens:
    """A `Prediction` in the shape of the active blocks, [B, W]; only predicted positions have meaningful values."""

    tokens: Tensor  # [B, W] int64
    log_confidence: Tensor  # [B, W] float32: log q(token)
    confidence: Tensor  # [B, W] float32: q(token)
    positions: Tensor  # [B, W] int64: in the row
    log_norm: Tensor  # [N] float32: log sum exp z of the candidates; not finite where the logits are not
    entropy: Tensor | None = None  # [B, W]: H(q), in nats
    log_margin: Tensor | None = None  # [B, W]: log(q_(1) - q_(2))
    probabilities: Tensor | None = None  # [B, W, V]: q itself
    log_top: Tensor | None = None  # [B, W]: log max_v q_v, whatever was drawn
    log_own: Tensor | None = None  # [B, W]: log q(the token that is written there)
    likeliest: Tensor | None = None  # [B, W] int64: argmax_v q_v
    soft: Tensor | None = None  # [B, W, D]: what the model is conditioned on at the next step


@dataclass(frozen=True)
class Ranked:
    """Candidates in order: all that a rule may look at."""

    score: Tensor  # [B, W] float64, perturbed
    order: Tensor  # [B, W] int64: from the highest score to the lowest; unmasked positions last
    masked: Tensor  # [B, W] bool
    late: Tensor | None  # [B, W] bool: comes after all the others whatever its score
    entropy: Tensor | None  # [B, W]
    stable: Tensor | None  # [B, W] int64: for how many steps in a row the prediction has been stable
    parameters: StackedParameters


class ScoreFunction(NamedTuple):
    """What a plain rule ranks positions by: `compute` returns [B, W] float64; higher is committed earlier."""

    compute: Callable[[DrawnTokens], Tensor]
    needs: tuple[Need, ...] = ()


class CommitRule(NamedTuple):
    """Which positions are ready, [B, W] bool (None: none), and the noise that tempers the rule, made of uniforms."""

    noise: Callable[[Tensor], Tensor]
    ready: Callable[[Ranked], Tensor | None]
    needs: tuple[Need, ...] = ()
    takes_the_best: bool = True  # what is ready has higher scores than what is not


SCORES: dict[records.Score, ScoreFunction] = {
    "log_confidence": ScoreFunction(lambda drawn: drawn.log_confidence.double()),
    "confidence": ScoreFunction(lambda drawn: drawn.confidence.double()),
    "log_top": ScoreFunction(lambda drawn: required(drawn.log_top).double(), ("top",)),
    "log_margin": ScoreFunction(lambda drawn: required(drawn.log_margin).double(), ("margin",)),
    "entropy": ScoreFunction(lambda drawn: required(drawn.entropy).double(), ("entropy",)),
    "neg_entropy": ScoreFunction(lambda drawn: -required(drawn.entropy).double(), ("entropy",)),
    "position": ScoreFunction(lambda drawn: -drawn.positions.double()),
}


def perturb(score: Tensor, t_pos: Tensor, noise: Tensor) -> Tensor:
    """Return s + T_pos * noise: the score itself at T_pos = 0; at T_pos = inf the noise alone decides.

    With Gumbel noise on log c, the K highest are K draws without replacement from Cat(c^(1/T_pos)) (TLC);
    with Logistic noise on c, P(above lambda) = sigma((c - lambda) / T_pos) (TCT).
    """
    return score + t_pos.clamp_max(_MAX_T_POS)[:, None] * noise


def rank(score: Tensor, masked: Tensor, late: Tensor | None) -> Tensor:
    """Return positions from the highest score to the lowest, ties left first; then late ones, then unmasked ones."""
    order = score.masked_fill(~masked, -torch.inf).argsort(dim=1, descending=True, stable=True)
    if late is None:
        return order
    return move_first(masked, move_first(masked & ~late, order))


def none_ready(ranked: Ranked) -> None:
    """Budget (LC: U = argmax over |I| = K of sum c): find nothing ready, so that the fallback takes the K best."""


def above(ranked: Ranked) -> Tensor:
    """Threshold (CT): find U = {c > lambda} ready."""
    free = ranked.masked if ranked.late is None else ranked.masked & ~ranked.late
    return free & (ranked.score > ranked.parameters.exclusive_threshold[:, None])


def stable(ranked: Ranked) -> Tensor:
    """KLASS: find ready what is above the threshold and has been stable for the last n steps."""
    return above(ranked) & (required(ranked.stable) >= ranked.parameters.kl_steps[:, None])


def within_entropy(ranked: Ranked) -> Tensor:
    """Find the longest prefix U ready, best score first, with sum_U H - max_U H <= gamma.

    The left side bounds the joint dependence that committing U in parallel ignores (Ben-Hamu et al., 2025).
    """
    entropy = required(ranked.entropy).double().masked_fill(~ranked.masked, torch.inf)
    h = entropy.gather(1, ranked.order)
    # Where nothing is masked inf - inf is NaN, which never fits.
    fits = h.cumsum(1) - h.cummax(1).values <= ranked.parameters.entropy_bound[:, None]
    return torch.zeros_like(fits).scatter(1, ranked.order, fits.cumprod(1).bool())


RULES: dict[records.Rule, CommitRule] = {
    "budget": CommitRule(rng.gumbel, none_ready),
    "threshold": CommitRule(rng.logistic, above),
    "entropy_bound": CommitRule(rng.gumbel, within_entropy, ("entropy",)),
    "stable": CommitRule(rng.logistic, stable, ("probabilities",), takes_the_best=False),
}


def move_first(chosen: Tensor, order: Tensor) -> Tensor:
    """Return the same order, but with all chosen positions first."""
    return order.gather(1, chosen.gather(1, order).argsort(dim=1, descending=True, stable=True))


def commit(ready: Tensor | None, masked: Tensor, order: Tensor, k: Tensor) -> Tensor:
    """Return the positions to commit, [B, W] bool: the ready ones, then the next in `order` until there are k.

    `order` must begin with the ready positions.
    """
    count = k if ready is None else torch.maximum(k, ready.sum(1))
    taken = torch.arange(masked.shape[1], device=masked.device) < count[:, None]
    return masked & torch.zeros_like(masked).scatter(1, order, taken)


def even(remaining: Tensor, steps: Tensor, taken: Tensor) -> Tensor:
    """Return how many masks the next step of LLaDA's even split commits; larger shares come first (2, 2, 2, 1, 1).

    That is the number of remaining masks over the number of remaining steps (`steps - taken`), rounded up.
    """
    left = (steps - taken).clamp_min(1)
    return (remaining + left - 1) // left


def dream(remaining: Tensor, steps: Tensor, step: Tensor) -> Tensor:
    """Return the next share of Dream's schedule: int(n (1 - s/t)) on a time grid from 1 to eps, then all.

    Upstream's (`dream_exact`) can round to 0, which wastes a forward pass; this one commits at least one position.
    """
    total = steps.clamp_min(1)
    now = step.clamp_max(total - 1)
    t = 1 - (1 - _DREAM_EPS) * now.double() / total
    s = 1 - (1 - _DREAM_EPS) * (now + 1).double() / total
    planned = (remaining * (1 - s / t)).long().clamp_min(1)
    return torch.where(now == total - 1, remaining, planned)


def dream_exact(remaining: Tensor, steps: Tensor, step: Tensor) -> Tensor:
    """Return the next share of Dream's schedule as published, which may be 0.

    Upstream computes in float32, whose rounding decides what int() cuts off, so this does the same.
    """
    total = steps.clamp_min(1)
    now = step.clamp_max(total - 1)
    planned = (remaining * (1 - _linspace(now + 1, total) / _linspace(now, total))).long()
    return torch.where(now == total - 1, remaining, planned)


def _linspace(index: Tensor, steps: Tensor) -> Tensor:
    """Return `torch.linspace(1, eps, steps + 1)[index]`, which counts its second half from the end in fused sums."""
    end = torch.tensor(_DREAM_EPS, dtype=torch.float32).item()
    spacing = ((end - 1) / steps).float().double()
    return torch.where(index < (steps + 1) // 2, 1 + spacing * index, end - spacing * (steps - index)).float()


def required(value: Tensor | None) -> Tensor:
    """Return a value that the score or rule listed in its `needs`, so that it was computed."""
    assert value is not None, "an entry of SCORES or RULES reads what it does not list in `needs`"
    return value
