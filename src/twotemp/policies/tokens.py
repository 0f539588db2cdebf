"""The choice of *what* to write: a token for each position, drawn from softmax(z / T_token).

`predict` draws, and says how sure the model was of each token. `positions` chooses among the drawn tokens.

Shapes: B rows, N positions of them, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

_CHUNK = 512  # entries summed in float32 before float64 takes over; divides LLaDA's 126,464
_TILE = 1 << 19  # logits worked on at once on a CPU: several passes over what stays in its cache

# What a score or a rule may ask for beyond the token and its confidence.
Need = Literal["entropy", "likeliest", "margin", "probabilities", "top"]


@dataclass(frozen=True)
class DrawParameters:
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
    tempered_confidence: bool  # confidence, margin and entropy of the tempered and filtered distribution


@dataclass(frozen=True)
class Prediction:
    """The tokens drawn at N positions, and what the scores need to know about the distributions q behind them.

    Scores and parameters work on `DrawnTokens`, which holds the same in the shape of the active blocks, [B, W].
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
    parameters: DrawParameters,
    needs: Set[Need],
    own: Tensor | None = None,
    embed: Embed | None = None,
) -> Prediction:
    """Draw x ~ softmax(z / T_token) and report c = softmax(z)[x], the *untempered* probability of the token.

    At T_token = 0 the token is the argmax and c its probability. With `tempered_confidence`, c is taken from the
    tempered and filtered distribution instead, as in Dream and LLaDA-2.

    Args:
        logits: [N, V], not modified.
        u: [N] uniforms in float64.
        row: [N], the row of each position.
        parameters: How tokens are drawn, by row.
        needs: What to compute beyond the token and its confidence.
        own: [N], the tokens already written there, if their probability is needed.
        embed: What to make of the distributions, for models that are conditioned on their own predictions. That of a
            greedy draw is the untempered one.
    """
    tile = max(1, _TILE // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    if len(logits) <= tile:
        return _predict(logits, u, row, parameters, needs, own, embed)
    tiles = [slice(start, start + tile) for start in range(0, len(logits), tile)]
    parts = [
        _predict(
            logits[part], u[part], row[part], parameters, needs, None if own is None else own[part], embed
        )
        for part in tiles
    ]
    columns = zip(*([getattr(part, f.name) for f in fields(Prediction)] for part in parts))
    return Prediction(*(None if c[0] is None else torch.cat(c) for c in columns))  # type: ignore[arg-type]


def _predict(
    logits: Tensor,
    u: Tensor,
    row: Tensor,
    parameters: DrawParameters,
    needs: Set[Need],
    own: Tensor | None,
    embed: Embed | None,
) -> Prediction:
    if logits.dtype.itemsize < 4:  # sums over a vocabulary need more than half precision
        logits = logits.float()
    z = allowed(logits, row, parameters)
    t_token = parameters.t_token[row]
    peak = z.amax(-1, keepdim=True)
    likeliest = z.argmax(-1) if parameters.any_greedy or "likeliest" in needs else None
    shifted = z.sub_(peak)
    weights = torch.exp(shifted)
    total = weights.sum(-1)
    log_total = total.log()

    drawn = weights
    if parameters.any_drawn:
        temperature = torch.where(t_token > 0, t_token, 1.0)
        drawn = shifted.div_(temperature[:, None]).exp_()
    if parameters.most_top_k:
        drawn = keep_top_k(drawn, parameters.top_k[row], parameters.most_top_k)
    if parameters.any_top_p:
        drawn = keep_top_p(drawn, parameters.top_p[row])

    if likeliest is None or not parameters.any_greedy:
        tokens = draw(drawn, u)
    else:
        tokens = torch.where(t_token > 0, draw(drawn, u), likeliest) if parameters.any_drawn else likeliest

    if parameters.tempered_confidence:
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


def allowed(logits: Tensor, row: Tensor, parameters: DrawParameters) -> Tensor:
    """Return a copy of the logits with -inf for tokens that may not be written."""
    z = logits.index_fill(1, parameters.forbidden, -torch.inf)
    if parameters.never is not None:
        z[:, parameters.eos] = z[:, parameters.eos].masked_fill(parameters.never[row, None], -torch.inf)
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
