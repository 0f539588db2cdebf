"""The state of the rows in a batch, as tensors. Column = position in the row; rows are padded on the right.

What can be derived is derived: a row's block is the one that holds its leftmost mask, so there is no block
pointer to keep in step, and infilling is generation whose masks lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from twotemp import rng
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.records import Request

DEFAULT_BLOCK = 32


@dataclass(frozen=True)
class Window:
    """The active block of each row: [B, W] positions, and which of them are masked."""

    positions: Tensor
    masked: Tensor
    start: Tensor  # [B]: first position of the block
    end: Tensor  # [B]: one past its last position


def check(request: Request, model: Denoiser) -> None:
    """Refuse what cannot be sampled, before anything runs."""
    where = f"request {request.id!r}"
    masks = request.prompt.count(model.mask_id)
    bad = [t for t in request.prompt if not 0 <= t < model.vocab_size]
    if bad:
        raise UserError(f"{where}: token id {bad[0]} is outside the vocabulary of {model.vocab_size}")
    if request.length and masks:
        raise UserError(
            f"{where}: the prompt contains {masks} mask token(s); to fill masks inside a text, use "
            "`infill` (length=0), else remove them"
        )
    if not request.length and not masks:
        raise UserError(f"{where}: nothing to do: length is 0 and the text has no mask token to fill")
    total = len(request.prompt) + request.length
    if model.max_length is not None and total > model.max_length:
        raise UserError(
            f"{where}: {len(request.prompt)} prompt tokens + length {request.length} = {total} exceed the "
            f"context of {model.max_length}; shorten the prompt or lower length"
        )
    if model.block_size is not None and request.block not in (None, model.block_size):
        raise UserError(
            f"{where}: {model.name} decodes in blocks of {model.block_size} (its attention is block-causal); "
            f"leave block unset instead of {request.block}, or load with block_size={request.block}"
        )


def block_of(request: Request, model: Denoiser) -> int:
    return model.block_size or request.block or DEFAULT_BLOCK


class Rows:
    """Tensors [B] and [B, C] of the rows being decoded."""

    def __init__(self, requests: Sequence[Request], model: Denoiser, columns: int, block_width: int) -> None:
        self.model = model
        self.columns = columns
        self.block_width = block_width
        self.requests: list[Request] = []
        self.entered: list[float] = []
        device = model.device
        self.ids = torch.empty(0, columns, dtype=torch.int64, device=device)
        self.length = torch.empty(0, dtype=torch.int64, device=device)  # tokens of the row
        self.origin = torch.empty(0, dtype=torch.int64, device=device)  # where the block grid starts
        self.block = torch.empty(0, dtype=torch.int64, device=device)
        self.key = torch.empty(0, dtype=torch.int64, device=device)
        self.step = torch.empty(0, dtype=torch.int64, device=device)
        self.forwards = torch.empty(0, dtype=torch.int64, device=device)
        self.processed = torch.empty(0, dtype=torch.int64, device=device)
        self.cached = torch.empty(
            0, dtype=torch.int64, device=device
        )  # start of the block the cache is about
        self.eos_stop = torch.empty(0, dtype=torch.bool, device=device)
        self.generated = torch.empty(0, columns, dtype=torch.bool, device=device)  # masked at the start
        self.commit_step = torch.empty(0, columns, dtype=torch.int32, device=device)
        self.confidence = torch.empty(0, columns, device=device)
        self.entropy = torch.empty(0, columns, device=device)
        self.eos_ids = torch.tensor(model.eos_ids, dtype=torch.int64, device=device)
        self.append(requests)

    _TENSORS = (
        "ids length origin block key step forwards processed cached eos_stop "
        "generated commit_step confidence entropy"
    ).split()

    def append(self, requests: Sequence[Request]) -> None:
        fresh = self._fresh(requests)
        for name in self._TENSORS:
            setattr(self, name, torch.cat([getattr(self, name), fresh[name]]))
        self.requests += requests
        self.entered += [perf_counter()] * len(requests)
        self._know_the_batch()

    def replace(self, slots: Mapping[int, Request]) -> None:
        """Put new rows where finished ones stood."""
        index = torch.tensor(list(slots), device=self.ids.device)
        for name, values in self._fresh(list(slots.values())).items():
            getattr(self, name)[index] = values
        for slot, request in slots.items():
            self.requests[slot], self.entered[slot] = request, perf_counter()
        self._know_the_batch()

    def keep(self, slots: Sequence[int]) -> None:
        index = torch.tensor(slots, dtype=torch.int64, device=self.ids.device)
        for name in self._TENSORS:
            setattr(self, name, getattr(self, name)[index])
        self.requests = [self.requests[s] for s in slots]
        self.entered = [self.entered[s] for s in slots]
        self._know_the_batch()

    def _know_the_batch(self) -> None:
        """Facts of the batch kept on the host, so that a step needs no round trip for them."""
        lengths = [len(r.prompt) + r.length for r in self.requests]
        self.width = max(lengths, default=0)
        self.padded = any(n != self.width for n in lengths)
        self.traced = any(r.trace for r in self.requests)
        self.stops_at_eos = any(r.eos_stop for r in self.requests)
        # Rows can only ever be in the same state if they started from the same prompt.
        self.twins = len({r.prompt for r in self.requests}) < len(self.requests)

    def _fresh(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        mask = self.model.mask_id
        texts = [list(r.prompt) + [mask] * r.length for r in requests]
        ids = torch.zeros(len(texts), self.columns, dtype=torch.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
        length = torch.tensor([len(text) for text in texts])
        generated = (ids == mask) & (torch.arange(self.columns) < length[:, None])
        # Block-causal models share one grid for prompt and answer; else blocks start at the first mask.
        origin = torch.zeros_like(length) if self.model.block_size else generated.int().argmax(1)
        shape = (len(texts), self.columns)
        values = {
            "ids": ids,
            "length": length,
            "origin": origin,
            "block": torch.tensor([block_of(r, self.model) for r in requests]),
            "key": torch.tensor([rng.row_key(r.seed, r.id, r.index) for r in requests]),
            **{n: torch.zeros(len(texts), dtype=torch.int64) for n in ("step", "forwards", "processed")},
            "cached": torch.full((len(texts),), -1),
            "eos_stop": torch.tensor([r.eos_stop for r in requests], dtype=torch.bool),
            "generated": generated,
            "commit_step": torch.full(shape, -1, dtype=torch.int32),
            "confidence": torch.zeros(shape),
            "entropy": torch.zeros(shape),
        }
        return {name: value.to(self.ids.device) for name, value in values.items()}

    def masked(self) -> Tensor:
        """[B, C]: what is still to be written."""
        return (self.ids == self.model.mask_id) & self.generated

    def window(self) -> Window:
        """The block of each row that holds its leftmost mask."""
        masked = self.masked()
        first = masked.int().argmax(1)
        start = self.origin + (first - self.origin) // self.block * self.block
        end = torch.minimum(start + self.block, self.length)
        at = start[:, None] + torch.arange(self.block_width, device=self.ids.device)
        inside = at < end[:, None]
        at = torch.where(inside, at, self.columns - 1)
        return Window(at, inside & masked.gather(1, at), start, end)

    def commit(self, window: Window, tokens: Tensor, commit: Tensor, confidence: Tensor, entropy) -> None:
        row, column = commit.nonzero(as_tuple=True)
        at = window.positions[row, column]
        self.ids[row, at] = tokens[row, column]
        if self.traced:
            self.commit_step[row, at] = self.step[row].int()
            self.confidence[row, at] = confidence[row, column]
            self.entropy[row, at] = entropy[row, column]
        self.step += 1

    def finished(self) -> Tensor:
        """[B] bool: nothing left to write, or (eos_stop) nothing left to write before the first EOS."""
        masked = self.masked()
        done = ~masked.any(1)
        if self.stops_at_eos:
            ended = torch.isin(self.ids, self.eos_ids) & self.generated
            first_mask = torch.where(done, self.columns, masked.int().argmax(1))
            first_eos = torch.where(ended.any(1), ended.int().argmax(1), self.columns)
            done = done | (self.eos_stop & (first_eos < first_mask))
        return done
