"""Partly masked rows, the positions to read in them, and log q of the tokens that belong there.

A denoiser answers one kind of query: q(x^k | partly masked row). An estimator decides which rows to show it and which
positions to read, and the estimate of a completion's log-likelihood is the weighted sum of the answers,

    log p(x | prompt)  ~  sum over queries of  w * sum over queried k of  log q(x^k | row with some positions masked).

Every number read is one *term*, so a batch of queries may be split between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from twotemp import rng
from twotemp.models.base import Denoiser
from twotemp.records import Policy, Sample, Trace, first_eos

MAX_QUERIES = 4096  # held at once by `estimate`
Forward = Callable[[Tensor, Tensor | None, Tensor], Tensor]  # `Denoiser.logits`


@dataclass(frozen=True)
class Completion:
    """A prompt and the tokens written after it, or into it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    positions: tuple[int, ...]  # column of each token; column 0 is the first prompt token
    key: int = 0  # addresses the row's random masks, and the noise it was sampled with (`rng.row_key`)
    policy: Policy | None = None  # that sampled the tokens; None: unknown
    trace: Trace | None = None  # of the policy's steps
    block: int | None = None  # width of the blocks it was decoded in; None: not known

    @classmethod
    def after(cls, prompt: Sequence[int], tokens: Sequence[int], key: int = 0) -> Completion:
        """Return the completion whose tokens follow the prompt."""
        positions = tuple(range(len(prompt), len(prompt) + len(tokens)))
        return cls(tuple(prompt), tuple(tokens), positions, key)

    @classmethod
    def from_sample(cls, sample: Sample) -> Completion:
        """Return what a sample wrote, with its trace and the key of its noise."""
        key = rng.row_key(sample.seed, sample.request, sample.index)
        written = (sample.prompt, sample.tokens, sample.positions)
        return cls(*written, key, sample.policy, sample.trace, sample.block)

    @property
    def columns(self) -> int:
        """The length of the whole row."""
        return max(len(self.prompt), self.positions[-1] + 1)

    def scored(self, eos_ids: Sequence[int]) -> int:
        """Return the number of tokens up to and including the first EOS; later ones are not part of the answer."""
        return min(first_eos(self.tokens, eos_ids) + 1, len(self.tokens))


@dataclass(frozen=True)
class CompletionBatch:
    """Completions as tensors [B, C], padded on the right."""

    mask_id: int
    policies: tuple[Policy | None, ...]  # [B]
    ids: Tensor
    present: Tensor  # bool: False on padding
    generated: Tensor  # bool: positions of the completion
    scored: Tensor  # bool: those up to and including the first EOS
    steps: Tensor  # int64: the decoding step that wrote the position; -1 where none did or none is known
    confidence: Tensor  # float64: of the token, when it was written
    block: Tensor  # int64: the decoding block of the position
    keys: Tensor  # [B] int64

    @classmethod
    def pad(
        cls,
        completions: Sequence[Completion],
        *,
        eos_ids: Sequence[int],
        mask_id: int,
        device: torch.device | str = "cpu",
        block: int | None = None,
        origin: int | None = None,
    ) -> CompletionBatch:
        """Return the completions as one batch.

        Args:
            completions: At least one.
            eos_ids: Tokens that end a completion.
            mask_id: The token that hides a position.
            device: Of the tensors.
            block: Width of the blocks the completions were decoded in; None: each completion's own, one block where
                that is not known. Only `deferral` and `order` need it: which positions could a step have written?
            origin: Column at which the grid of blocks starts; None: at the first generated position.
        """
        columns = max(completion.columns for completion in completions)
        shape = (len(completions), columns)
        ids, steps = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
        present, generated, scored = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
        confidence = torch.zeros(shape, dtype=torch.float64)
        for row, completion in enumerate(completions):
            positions = torch.tensor(completion.positions)
            ids[row, : len(completion.prompt)] = torch.tensor(completion.prompt)
            ids[row, positions] = torch.tensor(completion.tokens)
            present[row, : completion.columns] = True
            generated[row, positions] = True
            scored[row, positions[: completion.scored(eos_ids)]] = True
            if completion.trace is not None:
                steps[row, positions] = torch.tensor(completion.trace.steps)
                confidence[row, positions] = torch.tensor(completion.trace.confidence, dtype=torch.float64)
        starts = torch.tensor([c.positions[0] if origin is None else origin for c in completions])
        widths = torch.tensor([block or c.block or columns for c in completions])
        blocks = (torch.arange(columns) - starts[:, None]) // widths[:, None]
        keys = torch.tensor([completion.key for completion in completions])
        tensors = (ids, present, generated, scored, steps, confidence, blocks, keys)
        policies = tuple(completion.policy for completion in completions)
        return cls(mask_id, policies, *(tensor.to(device) for tensor in tensors))

    @classmethod
    def for_model(cls, completions: Sequence[Completion], model: Denoiser) -> CompletionBatch:
        """Return the completions as one batch for this model, each in the blocks that it was decoded in."""
        return cls.pad(
            completions,
            eos_ids=model.eos_ids,
            mask_id=model.mask_id,
            device=model.device,
            origin=0 if model.block_size else None,
        )

    def merged(self, size: int) -> CompletionBatch:
        """Return the batch with every `size` steps of a row treated as one: fewer passes of `trajectory`, but biased.

        All tokens of the merged steps are then conditioned on what was written before the first of them (TraceRL's
        shrinkage, Wang et al. 2025; StepMerge in MAP); if all steps are merged, on the prompt alone.
        """
        written = self.steps >= 0
        present = torch.zeros(
            len(self.ids), int(self.steps.max()) + 2, dtype=torch.bool, device=self.ids.device
        )
        present.scatter_(1, self.steps + 1, True)
        number = present[:, 1:].cumsum(1) - 1  # of each step among those that wrote something
        merged = number.gather(1, self.steps.clamp_min(0)) // size if present.shape[1] > 1 else self.steps
        return replace(self, steps=torch.where(written, merged, self.steps))

    def noise(self, draw: int) -> Tensor:
        """Return the uniforms [B, C] of a draw; a row has the same ones in every batch and on every worker."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device).expand_as(self.ids)
        return rng.uniform(self.keys, torch.full_like(self.keys, draw), columns, rng.Stream.TRAIN)

    def mask(
        self,
        hidden: Tensor,
        queried: Tensor,
        row: Tensor | None = None,
        *,
        weight: float | Tensor = 1.0,
        draw: int = 0,
    ) -> MaskedQueries:
        """Return queries about the completions.

        Args:
            hidden: [Q, C] positions to mask.
            queried: [Q, C] positions to read.
            row: [Q] which completion each query is about; None: one query per completion, in their order.
            weight: Of all queries, or of each [Q].
            draw: Index of the draw that the queries belong to.
        """
        row = torch.arange(len(self.ids), device=self.ids.device) if row is None else row
        target = self.ids[row]
        ids, draws = target.masked_fill(hidden, self.mask_id), torch.full_like(row, draw)
        weights = torch.ones(len(row), device=row.device) * weight
        return MaskedQueries(row, draws, ids, self.present[row], queried, target, weights)


@dataclass(frozen=True)
class MaskedQueries:
    """Partly masked rows [Q, C] and the positions to read in them."""

    row: Tensor  # [Q] int64: the completion that the query is about
    draw: Tensor  # [Q] int64: the random draw that the query belongs to, from 0
    ids: Tensor
    present: Tensor  # bool: False on padding
    queried: Tensor  # bool
    target: Tensor  # the row without masks: the tokens whose probabilities are asked for
    weight: Tensor  # [Q] float32

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, part: slice | Tensor) -> Self:
        """Return some of the queries, without the columns that only longer rows have."""
        width = int(self.present[part].any(0).sum())
        values = {field.name: getattr(self, field.name)[part] for field in fields(self)}
        return replace(self, **{name: t if t.dim() == 1 else t[:, :width] for name, t in values.items()})

    def split(self, size: int) -> list[Self]:
        """Return the queries in micro-batches of at most `size`."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def terms(self) -> tuple[Tensor, Tensor]:
        """Return the completion and the weight of every term, in the order of `log_q`."""
        query = self.queried.nonzero()[:, 0]
        return self.row[query], self.weight[query]

    def totals(self, terms: Tensor) -> Tensor:
        """Return the sum of each query's terms, [Q], without its weight."""
        return terms.new_zeros(self.ids.shape).masked_scatter(self.queried, terms).sum(1)

    def read(self, logits: Tensor) -> Tensor:
        """Return the terms [terms] from the logits of every queried position [terms, V]."""
        return logits.log_softmax(-1).gather(1, self.target[self.queried][:, None])[:, 0]


# Builds the queries of a batch from the numbers of the draws to make, e.g. range(4, 8).
BuildQueries = Callable[[CompletionBatch, range], MaskedQueries]


def concatenate(parts: Sequence[MaskedQueries]) -> MaskedQueries:
    """Return the queries of all parts, which have rows of one length."""
    names = [field.name for field in fields(MaskedQueries)]
    return MaskedQueries(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def empty_query(mask_id: int, device: torch.device | str) -> MaskedQueries:
    """Return one query that reads nothing: a worker without rows computes it while the others work."""
    ids = torch.full((1, 1), mask_id, device=device)
    zero, present = torch.zeros_like(ids[0]), torch.ones_like(ids, dtype=torch.bool)
    return MaskedQueries(zero, zero, ids, present, ~present, ids, torch.ones(1, device=device))


def log_q(forward: Forward, queries: MaskedQueries, forbidden: Tensor) -> Tensor:
    """Return log q of every queried token, [terms], row by row; differentiable.

    Args:
        forward: The model's `logits`.
        queries: What to read, small enough for one forward pass.
        forbidden: Token ids that the model never writes; q gives them no mass.
    """
    padded = not bool(queries.present.all())
    logits = forward(queries.ids, queries.present if padded else None, queries.queried)
    return queries.read(logits.index_fill(1, forbidden, -torch.inf))


@torch.inference_mode()
def estimate(
    model: Denoiser,
    completions: Sequence[Completion],
    build: BuildQueries,
    *,
    draws: range = range(1),
    batch_size: int = 32,
) -> Tensor:
    """Estimate the log-likelihood of every completion, by every draw.

    Args:
        model: The denoiser.
        completions: At least one; their order and number do not change the values.
        build: An estimator, or any other function that builds queries.
        draws: Numbers of the random draws.
        batch_size: Rows in a forward pass.

    Returns:
        Values in nats, [draws, completions] float64 on the CPU. The estimate is their mean over draws.
    """
    forbidden = torch.tensor(model.forbidden_ids, device=model.device)
    values = torch.zeros(len(draws), len(completions), dtype=torch.float64)
    order = sorted(range(len(completions)), key=lambda index: completions[index].columns)  # little padding
    size = max(1, MAX_QUERIES // max(len(draws), *(len(completion.tokens) for completion in completions)))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        batch = CompletionBatch.for_model([completions[index] for index in part], model)
        for queries in build(batch, draws).split(batch_size):
            sums = queries.weight * queries.totals(log_q(model.logits, queries, forbidden).double())
            where = (queries.draw.cpu(), torch.tensor(part)[queries.row.cpu()])
            values.index_put_(where, len(draws) * sums.cpu(), accumulate=True)
    return values
