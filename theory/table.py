"""A denoiser whose predictions are the exact conditionals of an explicit distribution over sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.models.transformer import positions_of


class TableModel(LanguageModel):
    """A `LanguageModel` built from weighted sequences of one length N, for theory and tests.

    q^k(v | x_t) = sum of w_s over the s that agree with x_t and have s_k = v, normalised over v.

    Several positions committed at once can contradict every sequence; then the sequences with the fewest
    disagreements are used instead. In rows shorter than N the rest counts as masked.
    """

    def __init__(
        self,
        sequences: Sequence[tuple[Sequence[int], float]],
        vocab_size: int,
        mask_id: int,
        eos_ids: Sequence[int] = (),
        *,
        tokenizer: Any | None = None,
        name: str = "table",
    ) -> None:
        if not sequences:
            raise UserError("a table needs at least one (sequence, weight) pair")
        lengths = {len(ids) for ids, _ in sequences}
        if len(lengths) != 1 or 0 in lengths:
            raise UserError(
                f"all sequences of a table must have the same length > 0, not {sorted(lengths)}; pad with EOS"
            )
        if not all(0 < weight < float("inf") for _, weight in sequences):
            raise UserError("every weight of a table must be positive and finite")
        if not 0 <= mask_id < vocab_size:
            raise UserError(f"mask_id={mask_id} must be one of the {vocab_size} token ids")
        if any(not 0 <= i < vocab_size or i == mask_id for ids, _ in sequences for i in ids):
            raise UserError(
                f"the tokens of a table must be in [0, {vocab_size}) and not the mask ({mask_id})"
            )
        self.name = name
        self.vocab_size = vocab_size
        self.mask_id = mask_id
        self.eos_ids = tuple(eos_ids)
        self.forbidden_ids = (mask_id,)
        self.tokenizer = tokenizer
        self.device = torch.device("cpu")
        self.config = {"model_type": "table", "vocab_size": vocab_size}
        self.sequences = torch.tensor([list(ids) for ids, _ in sequences])  # [S, N]
        self.weights = torch.tensor([weight for _, weight in sequences], dtype=torch.float64)
        self.max_length = self.sequences.shape[1]

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """Return log q^k(v | x_t), -inf where the probability is 0; see `Denoiser.logits`."""
        real = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        positions = positions_of(real)
        if bool((real.sum(1) > self.sequences.shape[1]).any()):
            raise UserError(f"a row is longer than the table's sequences ({self.sequences.shape[1]} tokens)")
        row, column = (real & (ids != self.mask_id)).nonzero(as_tuple=True)
        seen = torch.full((ids.shape[0], self.sequences.shape[1]), self.mask_id)
        seen[row, positions[row, column]] = ids[row, column]

        # A mask disagrees with every sequence, so only revealed tokens decide which sequences disagree least.
        count = (seen[:, None] != self.sequences).sum(2)  # [B, S]
        weights = self.weights * (count == count.amin(1, keepdim=True))  # [B, S]

        row = torch.arange(ids.shape[0]).repeat_interleave(ids.shape[1])[want.flatten()]
        tokens = self.sequences.T[positions.flatten()[want.flatten()]]  # [n, S]: what each sequence has there
        q = torch.zeros(len(row), self.vocab_size, dtype=torch.float64)
        q.scatter_add_(1, tokens, weights[row])
        return (q / q.sum(1, keepdim=True)).log().float()

    def tensors(self) -> dict[str, Tensor]:
        """Return the sequences and their weights."""
        return {"sequences": self.sequences, "weights": self.weights}
