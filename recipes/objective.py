"""The losses that a recipe can use. They are means per answer token in nats; prompts are never predicted."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Logits = Callable[[Tensor, Tensor], Tensor]  # (ids, want) -> logits at the wanted positions, row-major


def stratified_times(rows: int, least: float, generator: torch.Generator) -> Tensor:
    """Draw t ~ U(least, 1) for each row, evenly spaced from one random offset, so that a batch covers all levels."""
    offset = torch.rand(1, generator=generator, dtype=torch.float64)
    return least + (1 - least) * (torch.arange(rows) + offset) / rows


def diffusion_loss(
    logits: Logits,
    ids: Tensor,
    prompt: int,
    mask_id: int,
    generator: torch.Generator,
    *,
    least_time: float = 0.0,
    largest_weight: float = math.inf,
) -> Tensor:
    """Return the loss of the paper's equation (3) with the schedule alpha(t) = t, so that alpha'(t)/alpha(t) = 1/t:

        -L = E_{t ~ U[0,1], x_0, x_t} [ alpha'(t)/alpha(t) sum_k 1[x_t^k = mask] log q^k(x_0^k | x_t) ]

    Each of the L answer tokens is masked with probability alpha(t); the sum is divided by B * L. The two options
    leave out the smallest t and bound the weight 1/t: at small t a row has one masked token or none, so that a few
    rows with large weights would dominate the step. The optimal q does not depend on the weights.

    Args:
        logits: The network, as a function of ids and wanted positions.
        ids: Prompts and answers, [B, P + L].
        prompt: P, the tokens of a prompt.
        mask_id: The id of the mask.
        generator: Draws the times and the masks.
        least_time: The smallest t.
        largest_weight: The upper bound of 1/t.
    """
    rows, length = ids.shape[0], ids.shape[1] - prompt
    times = stratified_times(rows, least_time, generator)
    uniform = torch.rand(rows, length, generator=generator, dtype=torch.float64)
    masked = torch.zeros_like(ids, dtype=torch.bool)
    masked[:, prompt:] = uniform < times[:, None]
    losses = cross_entropy(logits(ids.masked_fill(masked, mask_id), masked), ids[masked], reduction="none")
    weight = (1 / times).clamp(max=largest_weight).to(losses.dtype)[:, None].expand(ids.shape)[masked]
    return (losses * weight).sum() / (rows * length)


def uniform_loss(
    logits: Logits,
    ids: Tensor,
    prompt: int,
    vocab_size: int,
    generator: torch.Generator,
    *,
    least_time: float = 0.0,
) -> Tensor:
    """Return the mean of -log q(x_0^k | x_t) over all answer tokens, where x_t has random tokens instead of masks.

    Each answer token is replaced with probability t ~ U(least_time, 1) by one of the vocabulary. The network does
    not know which were replaced, nor t, so every position is predicted, as in DiffusionGemma.

    Args:
        logits: The network, as a function of ids and wanted positions.
        ids: Prompts and answers, [B, P + L].
        prompt: P, the tokens of a prompt.
        vocab_size: The number of tokens that noise is drawn from.
        generator: Draws the times and the noise.
        least_time: The smallest t.
    """
    rows, length = ids.shape[0], ids.shape[1] - prompt
    times = stratified_times(rows, least_time, generator)
    replaced = torch.rand(rows, length, generator=generator, dtype=torch.float64) < times[:, None]
    random = torch.randint(vocab_size, (rows, length), generator=generator)
    answers = ids[:, prompt:]
    noisy = torch.cat([ids[:, :prompt], torch.where(replaced, random, answers)], 1)
    want = torch.zeros_like(ids, dtype=torch.bool)
    want[:, prompt:] = True
    return cross_entropy(logits(noisy, want), answers.reshape(-1))


def next_token_loss(logits: Logits, ids: Tensor, prompt: int) -> Tensor:
    """Return the mean of -log q(x^k | x^<k) over the answer tokens, predicted from the position before (causal)."""
    before = torch.zeros_like(ids, dtype=torch.bool)
    before[:, prompt - 1 : -1] = True
    return cross_entropy(logits(ids, before), ids[:, prompt:].reshape(-1))
