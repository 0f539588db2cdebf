"""Toy denoisers: random with context, context-free, and a table of strings."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from theory.table import TableModel
from twotemp.records import NO_MASK


class ToyModel:
    """A cheap random denoiser whose predictions depend on every visible token and on the position."""

    name = "toy"
    eos_ids: tuple[int, ...] = (1,)
    max_length = 128
    tokenizer = None
    device = torch.device("cpu")

    def __init__(self, vocab: int = 40, sharpness: float = 1.0, seed: int = 0, block_size: int | None = None):
        noise = torch.Generator().manual_seed(seed)
        self.vocab_size, self.block_size = vocab, block_size
        self.mask_id = vocab - 1
        self.forbidden_ids: tuple[int, ...] = (vocab - 1,)
        self.embed = torch.randn(vocab, 16, generator=noise)
        self.position = torch.randn(self.max_length, 16, generator=noise)
        self.head = torch.randn(16, vocab, generator=noise) * sharpness
        self.calls = 0
        self.rows: list[int] = []  # the number of rows of each call

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        self.calls += 1
        self.rows.append(len(ids))
        real = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
        at = (real.cumsum(1) - 1).clamp_min(0)
        # Sums in float64 make the context equal to the last bit for every padding.
        context = (
            (self.embed[ids] * self.position[at])
            .double()
            .masked_fill(~real[..., None], 0)
            .sum(1, keepdim=True)
        )
        hidden = torch.tanh(self.embed[ids] + self.position[at] + context.float())
        return hidden.flatten(0, 1)[want.flatten()] @ self.head


class UniformModel(ToyModel):
    """A random denoiser without a mask: its open positions hold random tokens."""

    def __init__(self, vocab: int = 40, sharpness: float = 1.0, seed: int = 0):
        super().__init__(vocab, sharpness, seed)
        self.mask_id, self.forbidden_ids = NO_MASK, ()


class FixedModel(ToyModel):
    """A denoiser with the same logits [L, V] in every context, so that steps are independent and laws exact."""

    def __init__(self, table: Tensor, mask_id: int, eos_ids: tuple[int, ...] = ()) -> None:
        self.table, self.mask_id, self.eos_ids = table, mask_id, eos_ids
        self.vocab_size, self.forbidden_ids, self.block_size = table.shape[1], (mask_id,), None
        self.calls = 0

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        self.calls += 1
        logits = self.table[: ids.shape[1]].expand(ids.shape[0], -1, -1)
        return logits.flatten(0, 1)[want.flatten()].clone()


def string_table(mask_id: int, end: int) -> TableModel:
    """Return a table of all strings of six letters 0, 1, 2, with random weights that make positions dependent."""
    generator = torch.Generator().manual_seed(0)
    strings = list(product(range(3), repeat=6))
    weights = torch.randn(len(strings), generator=generator).mul(1.5).exp().tolist()
    return TableModel(list(zip(strings, weights)), vocab_size=5, mask_id=mask_id, eos_ids=(end,))
