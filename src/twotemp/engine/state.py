"""The tensors of the rows in a batch. A column is a position in the row; rows are padded on the right.

`RowState` is a plain record of tensors, one entry per row, which batches `take`, `append` and `pad` as rows leave,
join and grow. What follows from it is computed: a row's active block is the one that holds its leftmost mask
(`active_block`), so there is no block pointer to keep consistent, and infilling is generation whose masks lie
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twotemp import rng
from twotemp.engine.scheduler import block_of, final_length_of, has_canvases, length_of
from twotemp.models.base import Denoiser
from twotemp.policies.decision import Renoising
from twotemp.records import Request


@dataclass
class RowState:
    """The tensors of B rows with C columns; the first dimension of each is the row."""

    # On the model's device.
    ids: Tensor  # [B, C] int64: tokens; the mask, or a random token, at positions that are not written yet
    length: Tensor  # [B] int64: columns of the row
    final_length: Tensor  # [B] int64: `length` after the last extension
    requested: Tensor  # [B] int64: columns of prompt and answer; completing the last block adds more
    origin: Tensor  # [B] int64: where the block grid starts
    block: Tensor  # [B] int64: width of its blocks
    key: Tensor  # [B] int64: address of the row's noise
    step: Tensor  # [B] int64: steps taken
    eos_stop: Tensor  # [B] bool: ends once everything up to its first EOS is committed
    generated: Tensor  # [B, C] bool: masked at the start
    commit_step: Tensor  # [B, C] int32: when it was last written, -1: never
    confidence: Tensor  # [B, C] float32: of what was written
    entropy: Tensor  # [B, C] float32: of the prediction it was drawn from
    # On the host, [B] int64.
    host_length: Tensor  # a copy of `length`
    start: Tensor  # first column of the active block
    end: Tensor  # one past its last column
    pending: Tensor  # positions of the active block that may still change; 0: the row has finished
    steps_before: Tensor  # steps taken before the active block
    cached: Tensor  # start of the block whose first step the cache has seen, -1: none
    forwards: Tensor  # forward passes so far
    encoded: Tensor  # further passes, of an encoder
    processed: Tensor  # positions computed so far
    # A hash of the tokens and of the positions that may change: rows with equal hashes share a forward pass. If no
    # two rows have the same prompt, nothing is hashed, and each row gets another number, -1 - row.
    hashed: Tensor
    # On the model's device, where policies edit or the model has no mask.
    final: Tensor | None = None  # [B, C] bool: never to change again
    edits: Tensor | None = None  # [B, C] int64: how often it was rewritten, where policies edit
    accepted: Tensor | None = None  # [B, C] int32, on a canvas: step since which it is kept; -1: not kept

    @classmethod
    def initial(
        cls,
        requests: Sequence[Request],
        model: Denoiser,
        columns: int,
        renoising: Renoising | None,
        editing: bool,
    ) -> RowState:
        """Return the state before the first step of these requests."""
        texts = [list(r.prompt) + [model.mask_id] * (length_of(r, model) - len(r.prompt)) for r in requests]
        rows, shape = len(texts), (len(texts), columns)
        ids = torch.zeros(shape, dtype=torch.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
        length = torch.tensor([len(text) for text in texts])
        generated = (ids == model.mask_id) & (torch.arange(columns) < length[:, None])
        key = torch.tensor([rng.row_key(r.seed, r.id, r.index) for r in requests])
        if renoising is not None:
            ids = renoising.begin(ids, generated, key)
        # Block-causal models share one grid for prompt and answer; else blocks start at the first mask.
        shared = model.block_size and not has_canvases(model)
        origin = torch.zeros_like(length) if shared else generated.int().argmax(1)
        block = torch.tensor([block_of(r, model) for r in requests])
        start, end, pending = active_block(generated, origin, block, length)

        def counter(value: int = 0) -> Tensor:
            return torch.full((rows,), value, dtype=torch.int64)

        def put(tensor: Tensor) -> Tensor:
            return tensor.to(model.device)

        return cls(
            ids=put(ids),
            length=put(length),
            final_length=put(torch.tensor([final_length_of(r, model) for r in requests])),
            requested=put(torch.tensor([len(r.prompt) + r.length for r in requests])),
            origin=put(origin),
            block=put(block),
            key=put(key),
            step=put(counter()),
            # A canvas after the one with the end of the text would change nothing before it.
            eos_stop=put(torch.tensor([r.eos_stop or has_canvases(model) for r in requests])),
            generated=put(generated),
            commit_step=put(torch.full(shape, -1, dtype=torch.int32)),
            confidence=put(torch.zeros(shape)),
            entropy=put(torch.zeros(shape)),
            host_length=length.clone(),
            start=start,
            end=end,
            pending=pending,
            steps_before=counter(),
            cached=counter(-1),
            forwards=counter(),
            encoded=counter(),
            processed=counter(),
            hashed=hash_rows(ids, generated, length),
            final=put(torch.zeros(shape, dtype=torch.bool)) if editing or renoising else None,
            edits=put(torch.zeros(shape, dtype=torch.int64)) if editing else None,
            accepted=put(torch.full(shape, -1, dtype=torch.int32)) if renoising else None,
        )

    def take(self, slots: Sequence[int]) -> RowState:
        """Return the state of these rows, in this order."""
        index = torch.tensor(slots, dtype=torch.int64)
        return self._each(lambda name, tensor: tensor[index.to(tensor.device)])

    def append(self, other: RowState) -> RowState:
        """Return the state of these rows and the others after them."""
        return self._each(lambda name, tensor: torch.cat([tensor, getattr(other, name)]))

    def pad(self, columns: int) -> RowState:
        """Return the state with this many further columns, which belong to no row yet."""
        pad = torch.nn.functional.pad
        return self._each(lambda name, tensor: pad(tensor, (0, columns)) if tensor.dim() > 1 else tensor)

    def write(self, slots: Sequence[int], other: RowState) -> None:
        """Overwrite these rows, in place, with the others."""
        index = torch.tensor(slots, dtype=torch.int64)
        for name, tensor in self._tensors():
            tensor[index.to(tensor.device)] = getattr(other, name)

    def _each(self, change: Callable[[str, Tensor], Tensor]) -> RowState:
        return RowState(**{name: change(name, tensor) for name, tensor in self._tensors()})

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return [(name, tensor) for name, tensor in vars(self).items() if tensor is not None]


def hash_rows(ids: Tensor, pending: Tensor, length: Tensor) -> Tensor:
    """Return a hash of everything that the logits of a row depend on, [B]."""
    return rng.row_hash(2 * ids + pending, length)


def active_block(
    pending: Tensor, origin: Tensor, block: Tensor, length: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return [B] each: start and end of the first block with pending positions, and their number."""
    first = torch.where(pending.any(1), pending.int().argmax(1), origin)
    start = origin + (first - origin) // block * block
    end = torch.minimum(start + block, length)
    inside = torch.arange(pending.shape[1], device=pending.device) < end[:, None]
    return start, end, (pending & inside).sum(1)
