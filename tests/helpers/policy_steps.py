"""Run single steps of a policy on given logits, and test the counts against a law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from scipy import stats

from twotemp import rng
from twotemp.policies.step import PolicyBatch
from twotemp.records import Policy
from twotemp.rng import Noise

DRAWS = 20_000


@cache
def keys_of(rows: int) -> torch.Tensor:
    """Return the noise keys of `rows` rows."""
    return torch.tensor([rng.row_key(7, "q", i) for i in range(rows)])


def noise(rows: int, width: int, step: int = 0) -> Noise:
    """Return the noise of one step."""
    return Noise(keys_of(rows), torch.full((rows,), step), torch.arange(width).expand(rows, -1))


def decide(chosen: Policy, logits: torch.Tensor, rows: int, eos: Sequence[int] = (), **more):
    """Run one step of `rows` independent rows that all have the logits [W, V]."""
    width = logits.shape[0]
    masked = torch.ones(rows, width, dtype=torch.bool)
    batch = PolicyBatch([chosen] * rows, eos_ids=eos)
    return step(batch, noise(rows, width), logits.repeat(rows, 1), masked, **more)[0]


def step(batch: PolicyBatch, at: Noise, logits: torch.Tensor, masked: torch.Tensor, **more):
    """Draw tokens, then choose the positions to commit."""
    drawn = batch.draw(at, logits, masked, masked.flatten().nonzero()[:, 0], entropy=True)
    return batch.choose(at, drawn, masked, **more)


def logits_with_confidence(c: list[float], vocab: int = 5) -> torch.Tensor:
    """Return logits whose greedy confidence at each position is c: that of token 0; the others share the rest."""
    table = torch.empty(len(c), vocab)
    for i, p in enumerate(c):
        table[i] = math.log((1 - p) / (vocab - 1))
        table[i, 0] = math.log(p)
    return table


def chi_square(counts: list[int], expected: list[float]) -> float:
    """Return the p-value of the counts under the expected probabilities."""
    total = sum(counts)
    return stats.chisquare(counts, [e * total for e in expected]).pvalue
