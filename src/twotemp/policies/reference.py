"""The paper's samplers for one row, slow and plain: start reading here.

One function per algorithm of "A Tale of Two Temperatures" and the loop around them. The engine does the same for
batches of rows, and for every policy, model and cache. `tests/policies/test_reference.py` holds it to this file token
for token, since both use the same addressed noise (`twotemp.rng`).

`c` and `log_c` map every masked position of the active block to the (log) probability of the token drawn there; `u`
maps it to a uniform number in (0, 1). Each algorithm returns the positions to commit.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import Any

import torch

from twotemp import rng
from twotemp.records import Policy, Request

Numbers = dict[int, float]  # by position


def lc(log_c: Numbers, k: int) -> list[int]:
    """Low confidence, algorithm 1: the K highest c."""
    return sorted(log_c, key=lambda i: -log_c[i])[:k]


def tlc(log_c: Numbers, u: Numbers, k: int, t_pos: float) -> list[int]:
    """Tempered low confidence, algorithm 2: K draws without replacement from Cat(c^(1/T_pos)).

    By the Gumbel-max trick these are the K highest log c + T_pos Gumbel.
    """
    return lc(tempered(log_c, t_pos, {i: -log(-log(u[i])) for i in u}), k)


def ct(c: Numbers, threshold: float) -> list[int]:
    """Confidence thresholding, algorithm 3: all c > lambda; if there is none, the highest."""
    return [i for i in c if c[i] > threshold] or lc(c, 1)


def tct(c: Numbers, u: Numbers, threshold: float, t_pos: float) -> list[int]:
    """Tempered confidence thresholding, algorithm 4: each with probability sigma((c - lambda) / T_pos).

    These are the positions with c + T_pos Logistic > lambda; if there is none, the highest.
    """
    return ct(tempered(c, t_pos, {i: log(u[i]) - log(1 - u[i]) for i in u}), threshold)


def tempered(score: Numbers, t_pos: float, noise: Numbers) -> Numbers:
    """Return the score + T_pos noise; at T_pos = inf (or 2^1000) the noise alone decides."""
    return {i: score[i] + min(t_pos, 2.0**1000) * noise[i] for i in score}


def choose(policy: Policy, log_c: Numbers, u: Numbers) -> list[int]:
    """Return the positions that the policy commits (*where* to write)."""
    c = {i: exp(log_c[i]) for i in log_c}
    match policy.name:
        case "ar":
            return sorted(c)[: policy.k]
        case "lc":
            return lc(log_c, policy.k)
        case "tlc" | "random":
            return tlc(log_c, u, policy.k, policy.t_pos)
        case "ct":
            return ct(c, policy.threshold)
        case "tct":
            return tct(c, u, policy.threshold, policy.t_pos)
    raise NotImplementedError(f"the reference does not cover {policy.name}")


def draw(model: Any, row: list[int], masked: list[int], u: list[float], t_token: float) -> tuple[Any, Any]:
    """Return x ~ softmax(z / T_token) at the masked positions and its untempered log c (*what* to write)."""
    z = model.logits(torch.tensor([row]), None, torch.tensor(masked))
    z[:, [*model.forbidden_ids, model.mask_id]] = -inf
    z = z - z.amax(-1, keepdim=True)
    cdf = (z / (t_token or 1.0)).exp().double().cumsum(-1)
    x = (
        torch.searchsorted(cdf, torch.tensor(u)[:, None] * cdf[:, -1:], right=True)
        if t_token
        else z.argmax(-1)
    )
    log_c = z.gather(1, x.view(-1, 1))[:, 0] - z.exp().sum(-1).log()
    return x.flatten().tolist(), log_c.tolist()


@torch.inference_mode()
def sample(model: Any, request: Request) -> list[int]:
    """Return the tokens that the request's policy writes with a bidirectional model."""
    row = [*request.prompt] + [model.mask_id] * request.length
    width, start, step = request.block or 32, len(request.prompt), 0
    key = torch.tensor([rng.row_key(request.seed, request.id, request.index)])
    for first in range(start, len(row), width):
        while masked := [i for i in range(first, first + width) if row[i : i + 1] == [model.mask_id]]:
            address = key, torch.tensor([step]), torch.tensor([masked])
            u_token, u_pos = (
                rng.uniform(*address, s)[0].tolist() for s in (rng.Stream.TOKEN, rng.Stream.POSITION)
            )
            x, log_c = draw(model, row, masked, u_token, request.policy.t_token)
            written = dict(zip(masked, x))
            for i in choose(request.policy, dict(zip(masked, log_c)), dict(zip(masked, u_pos))):
                row[i] = written[i]
            step += 1
    return row[start:]
