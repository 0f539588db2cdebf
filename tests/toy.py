"""Small stand-ins that tests share: a random denoiser with context-dependent predictions, in closed form."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from theory.table import TableModel


class ToyModel:
    """Predictions that depend on every visible token and on the position, cheap enough for thousands of runs."""

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
        self.place = torch.randn(self.max_length, 16, generator=noise)
        self.head = torch.randn(16, vocab, generator=noise) * sharpness
        self.calls = 0
        self.rows: list[int] = []  # how many rows each call computed

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        self.calls += 1
        self.rows.append(len(ids))
        real = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
        at = (real.cumsum(1) - 1).clamp_min(0)
        # float64 sums: the context is the same to the last bit whatever padding stands beside it.
        context = (
            (self.embed[ids] * self.place[at]).double().masked_fill(~real[..., None], 0).sum(1, keepdim=True)
        )
        hidden = torch.tanh(self.embed[ids] + self.place[at] + context.float())
        return hidden.flatten(0, 1)[want.flatten()] @ self.head


class FixedModel(ToyModel):
    """The same logits [L, V] whatever the context: steps become independent and laws exact."""

    def __init__(self, table: Tensor, mask_id: int, eos_ids: tuple[int, ...] = ()) -> None:
        self.table, self.mask_id, self.eos_ids = table, mask_id, eos_ids
        self.vocab_size, self.forbidden_ids, self.block_size = table.shape[1], (mask_id,), None
        self.calls = 0

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        self.calls += 1
        logits = self.table[: ids.shape[1]].expand(ids.shape[0], -1, -1)
        return logits.flatten(0, 1)[want.flatten()].clone()


def string_table(mask_id: int, end: int) -> TableModel:
    """All strings of 6 of the letters 0, 1, 2, with weights that tie the positions together."""
    generator = torch.Generator().manual_seed(0)
    strings = list(product(range(3), repeat=6))
    weights = torch.randn(len(strings), generator=generator).mul(1.5).exp().tolist()
    return TableModel(list(zip(strings, weights)), vocab_size=5, mask_id=mask_id, eos_ids=(end,))
