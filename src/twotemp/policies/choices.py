"""The two choices of a decoding step, *what* to write and *where*.

What: `predict` makes one draw per position from softmax(z / T_token) and says how sure the model was of it.

Where: a tempered rule is the plain rule applied to scores perturbed by T_pos-scaled noise. A score says what
positions are ranked by (`SCORES`): how sure the model is of the token it drew there, or of its prediction before the
draw. A rule says which positions are ready to be committed, and which noise tempers it (`RULES`). If a rule finds
fewer than k positions, the fallback adds the missing ones. A new score or rule is one entry.

Shapes: B rows, N positions of them, V vocabulary entries, W positions of the active block; `masked` says which of
these may be committed. Parameters are [B] tensors, so rows of a batch may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from twotemp import records, rng

_CHUNK = 512  # entries summed in float32 before float64 takes over; divides LLaDA's 126,464
_TILE = 1 << 19  # logits worked on at once on a CPU: several passes over what stays in its cache
# Stands for T_pos = inf. A power of two scales noise exactly; this one makes every score negligible without overflow.
_HOTTEST = 2.0**1000
_DREAM_EPS = 1e-3  # where Dream's time grid ends
_DTYPES = {float: torch.float64, int: torch.int64}

# What a score or a rule may ask for beyond the token and its confidence.
Need = Literal["entropy", "likeliest", "margin", "probabilities", "top"]


@dataclass(frozen=True)
class TokenRules:
    """How tokens are drawn: the policies' parameters by row, [B], and flags to skip work that no row needs."""

    t_token: Tensor  # float32, 0: greedy
    top_k: Tensor  # 0: no filter
    top_p: Tensor  # float32, 1: no filter
    never: Tensor | None  # bool: EOS is forbidden
    forbidden: Tensor  # [F]: ids that no row may write
    eos: Tensor  # [E]: ids
    any_greedy: bool
    any_drawn: bool
    most_top_k: int  # the largest top_k of any row; 0: no row filters
    any_top_p: bool
    of_drawn: bool  # confidence, margin and entropy of the tempered and filtered distribution


@dataclass(frozen=True)
class Prediction:
    """The tokens drawn at N positions, and what the scores need to know about the distributions q behind them.

    Scores and rules work on `DrawnTokens`, which holds the same in the shape of the active blocks, [B, W].
    """

    tokens: Tensor  # [N] int64
    log_confidence: Tensor  # [N] float32: log q(token)
    log_norm: Tensor  # [N] float32: log sum exp z; not finite where the logits are not
    entropy: Tensor | None  # [N]: H(q) = -sum_v q_v log q_v, in nats
    log_margin: Tensor | None  # [N]: log(q_(1) - q_(2)) of the two likeliest tokens
    probabilities: Tensor | None  # [N, V]: q itself
    log_top: Tensor | None  # [N]: log max_v q_v, whatever was drawn
    log_own: Tensor | None  # [N]: log q(the token that is written there), q untempered
    likeliest: Tensor | None  # [N] int64: the argmax
    soft: Tensor | None  # [N, D]: what `embed` makes of the distribution that the token was drawn from


Embed = Callable[[Tensor], Tensor]  # [N, V] probabilities -> [N, D]


def predict(
    logits: Tensor,
    u: Tensor,
    row: Tensor,
    rules: TokenRules,
    needs: Set[Need],
    own: Tensor | None = None,
    embed: Embed | None = None,
) -> Prediction:
    """Draw x ~ softmax(z / T_token) and report c = softmax(z)[x], the *untempered* probability of the token.

    At T_token = 0 the token is the argmax and c its probability. With `of_drawn`, c is taken from the tempered and
    filtered distribution instead, as in Dream and LLaDA-2.

    Args:
        logits: [N, V], not modified.
        u: [N] uniforms in float64.
        row: [N], the row whose rules apply.
        rules: How tokens are drawn, by row.
        needs: What to compute beyond the token and its confidence.
        own: [N], the tokens already written there, if their probability is needed.
        embed: What to make of the distributions, for models that are conditioned on their own predictions. That of a
            greedy draw is the untempered one.
    """
    tile = max(1, _TILE // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    if len(logits) <= tile:
        return _predict(logits, u, row, rules, needs, own, embed)
    tiles = [slice(at, at + tile) for at in range(0, len(logits), tile)]
    parts = [
        _predict(logits[part], u[part], row[part], rules, needs, None if own is None else own[part], embed)
        for part in tiles
    ]
    columns = zip(*([getattr(part, f.name) for f in fields(Prediction)] for part in parts))
    return Prediction(*(None if c[0] is None else torch.cat(c) for c in columns))  # type: ignore[arg-type]


def _predict(
    logits: Tensor,
    u: Tensor,
    row: Tensor,
    rules: TokenRules,
    needs: Set[Need],
    own: Tensor | None,
    embed: Embed | None,
) -> Prediction:
    if logits.dtype.itemsize < 4:  # sums over a vocabulary need more than half precision
        logits = logits.float()
    z = allowed(logits, row, rules)
    t_token = rules.t_token[row]
    peak = z.amax(-1, keepdim=True)
    likeliest = z.argmax(-1) if rules.any_greedy or "likeliest" in needs else None
    shifted = z.sub_(peak)
    weights = torch.exp(shifted)
    total = weights.sum(-1)
    log_total = total.log()

    drawn = weights
    if rules.any_drawn:
        temperature = torch.where(t_token > 0, t_token, 1.0)
        drawn = shifted.div_(temperature[:, None]).exp_()
    if rules.most_top_k:
        drawn = keep_top_k(drawn, rules.top_k[row], rules.most_top_k)
    if rules.any_top_p:
        drawn = keep_top_p(drawn, rules.top_p[row])

    if likeliest is None or not rules.any_greedy:
        tokens = draw(drawn, u)
    else:
        tokens = torch.where(t_token > 0, draw(drawn, u), likeliest) if rules.any_drawn else likeliest

    if rules.of_drawn:
        weights, total = drawn, drawn.sum(-1)
        log_confidence = weights.gather(1, tokens[:, None])[:, 0].log() - total.log()
        log_top = weights.amax(-1).log() - total.log() if "top" in needs else None
    else:  # subtract the peak before adding log c, which would otherwise lose its digits
        log_confidence = (logits.gather(1, tokens[:, None]) - peak)[:, 0] - log_total
        log_top = -log_total if "top" in needs else None

    q = weights / total[:, None] if {"entropy", "probabilities"} & needs else None
    return Prediction(
        tokens,
        log_confidence,
        log_total + peak[:, 0],
        torch.special.entr(q).sum(-1) if q is not None and "entropy" in needs else None,
        _log_margin(weights, total) if "margin" in needs else None,
        q if "probabilities" in needs else None,
        log_top,
        None if own is None else (logits.gather(1, own[:, None]) - peak)[:, 0] - log_total,
        likeliest if "likeliest" in needs else None,
        None if embed is None else embed(drawn / drawn.sum(-1, keepdim=True)),
    )


def allowed(logits: Tensor, row: Tensor, rules: TokenRules) -> Tensor:
    """Return a copy of the logits with -inf for tokens that may not be written."""
    z = logits.index_fill(1, rules.forbidden, -torch.inf)
    if rules.never is not None:
        z[:, rules.eos] = z[:, rules.eos].masked_fill(rules.never[row, None], -torch.inf)
    return z


def _log_margin(weights: Tensor, total: Tensor) -> Tensor:
    best = weights.topk(2, dim=-1).values
    gap = (best[:, 0] - best[:, 1]) / total
    return gap.clamp_min(torch.finfo(gap.dtype).tiny).log()


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Return inverse-CDF draws from unnormalized weights [N, V] with one uniform u [N] (float64) per position.

    Two levels: chunk sums in float32, then a float64 CDF over the chunks and one inside the chunk that was hit.
    Float64 touches about sqrt(V) numbers, never the whole vocabulary, and tail tokens keep their probability.
    """
    n, vocab = weights.shape
    width = min(_CHUNK, vocab)  # a small vocabulary is one chunk
    chunks = -(-vocab // width)
    if vocab % width:
        weights = torch.nn.functional.pad(weights, (0, chunks * width - vocab))
    grid = weights.view(n, chunks, width)
    sums = grid.sum(-1).double()
    chunk, cdf, target = _invert(sums, u)
    size = sums.gather(1, chunk)
    below = cdf.gather(1, chunk) - size
    rest = ((target - below) / size).clamp_(0, 1)[:, 0]  # where u lies inside its chunk, again in [0, 1)
    chunk = chunk[:, 0]
    inside = grid[torch.arange(n, device=weights.device), chunk].double()
    token = chunk * width + _invert(inside, rest)[0][:, 0]
    return token.clamp_max(vocab - 1)  # only NaN weights get past the end; the engine reports them by name


def _invert(mass: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the entry of `mass` [N, M] that u hits [N, 1], the CDF, and u scaled to its total."""
    cdf = mass.cumsum(-1)
    total = cdf[:, -1:]
    # Strictly below the total, so that the entry hit has positive mass whatever the rounding.
    target = torch.minimum(u[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    hit = torch.searchsorted(cdf, target, right=True).clamp_max_(mass.shape[1] - 1)
    return hit, cdf, target


def keep_top_k(weights: Tensor, top_k: Tensor, most: int) -> Tensor:
    """Zero all but the top_k [N] largest weights (ties with the last one stay); 0 keeps all. `most` is max(top_k)."""
    largest = weights.topk(min(most, weights.shape[1]), dim=-1).values
    least = largest.gather(1, (top_k - 1).clamp(0, largest.shape[1] - 1)[:, None])
    return torch.where((weights >= least) | (top_k == 0)[:, None], weights, 0.0)


def keep_top_p(weights: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the smallest set of likeliest tokens whose probability reaches top_p (the nucleus)."""
    ordered, index = weights.sort(dim=-1, descending=True)
    p = ordered / ordered.sum(-1, keepdim=True)
    before = p.cumsum(-1) - p
    keep = (before < top_p[:, None]) | (top_p >= 1)[:, None]
    keep[:, 0] = True  # the smallest set is never empty, however small top_p is
    return torch.zeros_like(weights).scatter(1, index, torch.where(keep, ordered, 0.0))


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
    "log_top": ScoreFunction(lambda drawn: listed(drawn.log_top).double(), ("top",)),
    "log_margin": ScoreFunction(lambda drawn: listed(drawn.log_margin).double(), ("margin",)),
    "entropy": ScoreFunction(lambda drawn: listed(drawn.entropy).double(), ("entropy",)),
    "neg_entropy": ScoreFunction(lambda drawn: -listed(drawn.entropy).double(), ("entropy",)),
    "position": ScoreFunction(lambda drawn: -drawn.positions.double()),
}


def perturb(score: Tensor, t_pos: Tensor, noise: Tensor) -> Tensor:
    """Return s + T_pos * noise: the score itself at T_pos = 0; at T_pos = inf the noise alone decides.

    With Gumbel noise on log c, the K highest are K draws without replacement from Cat(c^(1/T_pos)) (TLC);
    with Logistic noise on c, P(above lambda) = sigma((c - lambda) / T_pos) (TCT).
    """
    return score + t_pos.clamp_max(_HOTTEST)[:, None] * noise


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
    return above(ranked) & (listed(ranked.stable) >= ranked.parameters.kl_steps[:, None])


def within_entropy(ranked: Ranked) -> Tensor:
    """Find the longest prefix U ready, best score first, with sum_U H - max_U H <= gamma.

    The left side bounds the joint dependence that committing U in parallel ignores (Ben-Hamu et al., 2025).
    """
    entropy = listed(ranked.entropy).double().masked_fill(~ranked.masked, torch.inf)
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


def listed(value: Tensor | None) -> Tensor:
    """Return a value that the score or rule listed in its `needs`, so that it was computed."""
    assert value is not None, "an entry of SCORES or RULES reads what it does not list in `needs`"
    return value
