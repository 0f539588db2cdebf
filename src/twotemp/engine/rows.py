"""The state of the rows in a batch, as tensors. Column = position in the row; rows are padded on the right.

What can be derived is derived: a row's block is the one that holds its leftmost mask, so there is no block
pointer to keep in step, and infilling is generation whose masks lie elsewhere. Policies that edit need one thing
more: a block without masks is `settled` only by a step that rewrites nothing.

The host knows the shape of what comes next (where each row's block is, how many masks are open in it) from one
small transfer per step, `look`; nothing else waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from twotemp import rng
from twotemp.errors import UserError
from twotemp.models.base import Denoiser, LanguageModel
from twotemp.policies.positions import Text
from twotemp.policies.repulsion import Crowd, Groups
from twotemp.policies.step import Decision
from twotemp.records import Request, Sample

DEFAULT_BLOCK = 32


@dataclass(frozen=True)
class Window:
    """The active block of each row: [B, W] positions, and which of them may be committed now."""

    positions: Tensor
    masked: Tensor
    asked: Tensor  # what is predicted: `masked` and, where policies edit, what stands beside it
    text: Text | None  # where policies edit
    index: Tensor  # [N]: the True entries of `asked.flatten()`
    row: Tensor  # [N]: of these entries
    at: Tensor  # [N]: their positions in the row
    # [B], on the host:
    count: Tensor  # asked.sum(1)
    start: Tensor  # first position of the block
    end: Tensor  # one past its last position


def compact(flags: Tensor, count: int) -> Tensor:
    """The indices of the True entries of `flags.flatten()`, where their number is known.

    `nonzero` would ask the device for it; prefix sums need not.
    """
    flags = flags.flatten()
    place = torch.where(flags, flags.cumsum(0) - 1, count)  # all others share a last entry, which is cut off
    found = torch.empty(count + 1, dtype=torch.int64, device=flags.device)
    return found.scatter_(0, place, torch.arange(len(flags), device=flags.device))[:count]


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
    lookback = model.lookback if isinstance(model, LanguageModel) else 0
    if model.mask_id in request.prompt[:lookback] or len(request.prompt) < lookback:
        raise UserError(
            f"{where}: {model.name} predicts a token from the one before it, so the first position of a row cannot "
            "be predicted; start the text with a given token"
        )
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


def span_of(request: Request, model: Denoiser) -> int:
    """How many columns the row has. A block-causal model knows whole blocks only, so the last one is completed with
    masks, as SDAR and LLaDA-2 do; what is written beyond `length` is no part of the sample."""
    asked = len(request.prompt) + request.length
    if model.block_size is None or not request.length:
        return asked
    whole = -(-asked // model.block_size) * model.block_size
    return whole if model.max_length is None else min(whole, model.max_length)


def widths(requests: Iterable[Request], model: Denoiser) -> tuple[int, int]:
    """The columns and the widest block that these rows need."""
    needed = [(span_of(r, model), block_of(r, model)) for r in requests]
    columns = max(span for span, _ in needed)
    return columns, min(columns, max(block for _, block in needed))


class Rows:
    """Tensors [B] and [B, C] of the rows being decoded."""

    def __init__(self, requests: Sequence[Request], model: Denoiser, columns: int, block_width: int) -> None:
        self.model = model
        self.columns = columns
        self.block_width = block_width
        self.requests: list[Request] = []
        self.entered: list[float] = []
        # Of traced rows that edit: (step, position, token) of what was written and later rewritten.
        self.rewritten: list[list[tuple[int, int, int]]] = []
        # Rows that are over before the others of their group stay, at rest, and the samples that they are.
        self.over: list[Sample | None] = []
        self.edited = any(r.policy.edit != "never" for r in requests)  # one structure: all of them or none
        device = model.device
        self.ids = torch.empty(0, columns, dtype=torch.int64, device=device)
        self.length = torch.empty(0, dtype=torch.int64, device=device)  # tokens of the row
        self.asked = torch.empty(0, dtype=torch.int64, device=device)  # those the request is about
        self.origin = torch.empty(0, dtype=torch.int64, device=device)  # where the block grid starts
        self.block = torch.empty(0, dtype=torch.int64, device=device)
        self.key = torch.empty(0, dtype=torch.int64, device=device)
        self.step = torch.empty(0, dtype=torch.int64, device=device)
        self.eos_stop = torch.empty(0, dtype=torch.bool, device=device)
        self.generated = torch.empty(0, columns, dtype=torch.bool, device=device)  # masked at the start
        self.commit_step = torch.empty(0, columns, dtype=torch.int32, device=device)
        self.confidence = torch.empty(0, columns, device=device)
        self.entropy = torch.empty(0, columns, device=device)
        # On the host.
        self.tokens = torch.empty(0, dtype=torch.int64)  # `length` again
        self.start = torch.empty(0, dtype=torch.int64)  # of the active block
        self.end = torch.empty(0, dtype=torch.int64)
        self.open = torch.empty(0, dtype=torch.int64)  # unsettled in the active block; 0: the row is finished
        self.begun = torch.empty(0, dtype=torch.int64)  # steps taken before the active block
        self.cached = torch.empty(0, dtype=torch.int64)  # start of the block the cache is about, -1: none
        self.forwards = torch.empty(0, dtype=torch.int64)
        self.processed = torch.empty(0, dtype=torch.int64)
        self.eos_ids = torch.tensor(model.eos_ids, dtype=torch.int64, device=device)
        if self.edited:
            self.settled = torch.empty(0, columns, dtype=torch.bool, device=device)  # never to change again
            self.edits = torch.empty(0, columns, dtype=torch.int64, device=device)  # how often rewritten
        self.append(requests)

    _ON_DEVICE = (
        "ids length asked origin block key step eos_stop generated commit_step confidence entropy".split()
    )
    _ON_HOST = "tokens start end open begun cached forwards processed".split()
    _OF_EDITS = ("settled", "edits")

    def append(self, requests: Sequence[Request]) -> None:
        fresh = self._fresh(requests)
        for name, values in fresh.items():
            setattr(self, name, torch.cat([getattr(self, name), values]))
        self.requests += requests
        self.entered += [perf_counter()] * len(requests)
        self.rewritten += [[] for _ in requests]
        self.over += [None] * len(requests)
        self._know_the_batch()

    def widen(self, columns: int, block_width: int) -> None:
        """Room for longer rows and wider blocks."""
        wide = ("ids", "generated", "commit_step", "confidence", "entropy")
        for name in (*wide, *self._OF_EDITS) if self.edited else wide:
            tensor = getattr(self, name)
            setattr(self, name, torch.nn.functional.pad(tensor, (0, columns - self.columns)))
        self.columns, self.block_width = columns, block_width

    def replace(self, slots: Mapping[int, Request]) -> None:
        """Put new rows where finished ones stood."""
        index = torch.tensor(list(slots))
        for name, values in self._fresh(list(slots.values())).items():
            getattr(self, name)[index.to(values.device)] = values
        for slot, request in slots.items():
            self.requests[slot], self.entered[slot], self.rewritten[slot] = request, perf_counter(), []
            self.over[slot] = None
        self._know_the_batch()

    def keep(self, slots: Sequence[int]) -> None:
        index = torch.tensor(slots, dtype=torch.int64)
        for name in (*self._ON_DEVICE, *self._ON_HOST, *(self._OF_EDITS if self.edited else ())):
            tensor = getattr(self, name)
            setattr(self, name, tensor[index.to(tensor.device)])
        self.requests = [self.requests[s] for s in slots]
        self.entered = [self.entered[s] for s in slots]
        self.rewritten = [self.rewritten[s] for s in slots]
        self.over = [self.over[s] for s in slots]
        self._know_the_batch()

    def _know_the_batch(self) -> None:
        """Facts of the batch kept on the host, so that a step needs no round trip for them."""
        lengths = [span_of(r, self.model) for r in self.requests]
        self.width = max(lengths, default=0)
        self.padded = any(n != self.width for n in lengths)
        self.completed = any(n != len(r.prompt) + r.length for n, r in zip(lengths, self.requests))
        self.traced = any(r.trace for r in self.requests)
        self.stops_at_eos = any(r.eos_stop for r in self.requests)
        # Rows can only ever be in the same state if they started from the same prompt.
        self.twins = len({r.prompt for r in self.requests}) < len(self.requests)
        repel = any(r.policy.repel for r in self.requests)
        self.groups = Groups.of(self.requests, self.ids.device) if repel else None

    def _fresh(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        mask = self.model.mask_id
        texts = [list(r.prompt) + [mask] * (span_of(r, self.model) - len(r.prompt)) for r in requests]
        ids = torch.zeros(len(texts), self.columns, dtype=torch.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
        length = torch.tensor([len(text) for text in texts])
        generated = (ids == mask) & (torch.arange(self.columns) < length[:, None])
        # Block-causal models share one grid for prompt and answer; else blocks start at the first mask.
        origin = torch.zeros_like(length) if self.model.block_size else generated.int().argmax(1)
        block = torch.tensor([block_of(r, self.model) for r in requests])
        start, end, open_ = _active(generated, origin, block, length)
        shape = (len(texts), self.columns)
        none = torch.zeros(len(texts), dtype=torch.int64)
        values = {
            "ids": ids,
            "length": length,
            "asked": torch.tensor([len(r.prompt) + r.length for r in requests]),
            "origin": origin,
            "block": block,
            "key": torch.tensor([rng.row_key(r.seed, r.id, r.index) for r in requests]),
            "step": none,
            "eos_stop": torch.tensor([r.eos_stop for r in requests], dtype=torch.bool),
            "generated": generated,
            "commit_step": torch.full(shape, -1, dtype=torch.int32),
            "confidence": torch.zeros(shape),
            "entropy": torch.zeros(shape),
        }
        if self.edited:
            values |= {"settled": torch.zeros(shape, dtype=torch.bool)}
            values |= {"edits": torch.zeros(shape, dtype=torch.int64)}
        on_host = {
            "tokens": length,
            "start": start,
            "end": end,
            "open": open_,
            "begun": none,
            "cached": none - 1,
        }
        on_host |= {"forwards": none, "processed": none}
        return {name: value.to(self.ids.device) for name, value in values.items()} | on_host

    def masked(self) -> Tensor:
        """[B, C]: what is still to be written."""
        return (self.ids == self.model.mask_id) & self.generated

    def unsettled(self) -> Tensor:
        """[B, C]: what may still change. Masks; where policies edit, all of a block until a step leaves it alone."""
        return self.generated & ~self.settled if self.edited else self.masked()

    def crowd(self, groups: Groups) -> Crowd:
        """What samples that repel each other know of each other: what they have written, and how far they are."""
        open_, mask = self.masked(), self.model.mask_id
        said = torch.where(self.generated & ~open_, self.ids, mask)
        written = torch.zeros(len(said), self.model.vocab_size, dtype=torch.bool, device=said.device)
        written = written.scatter_(1, said, True)
        written[:, mask] = False
        return Crowd(groups, written, open_.sum(1) / self.generated.sum(1))

    def window(self, candidates: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Window:
        """The block of each row that is not settled yet; `candidates`: see `PolicyBatch.candidates`."""
        start, end = torch.stack([self.start, self.end]).to(self.ids.device, non_blocking=True)
        at = start[:, None] + torch.arange(self.block_width, device=self.ids.device)
        inside = at < end[:, None]
        at = torch.where(inside, at, self.columns - 1)
        if self.groups is not None:
            inside = inside & (self.open > 0).to(inside.device, non_blocking=True)[:, None]
        asked, count = candidates(inside & self.unsettled().gather(1, at), self.open)
        masked, text = asked, None
        if self.edited:
            text = Text(self.ids.gather(1, at), asked, self.edits.gather(1, at))
            masked = asked & (text.tokens == self.model.mask_id)
        index = compact(asked, int(count.sum()))
        row, column = index // self.block_width, at.flatten()[index]
        return Window(at, masked, asked, text, index, row, column, count, self.start, self.end)

    def commit(self, window: Window, made: Decision) -> None:
        """Write what is committed. The other candidates stay what they are: masks."""
        row, at = window.row, window.at
        chosen = made.commit.flatten()[window.index]
        if made.edit is not None:
            self._edit(window, made, chosen)

        def write(into: Tensor, values: Tensor) -> None:
            into[row, at] = torch.where(chosen, values, into[row, at])

        write(self.ids, made.tokens.flatten()[window.index])
        if self.traced:
            assert made.entropy is not None
            write(self.commit_step, self.step[row].int())
            write(self.confidence, made.confidence.flatten()[window.index])
            write(self.entropy, made.entropy.flatten()[window.index])
        self.step = self.step + 1  # not in place: an observer may still hold the old one

    def _edit(self, window: Window, made: Decision, chosen: Tensor) -> None:
        """Before what is committed overwrites it: note what stood there, and which blocks have come to rest."""
        assert made.edit is not None
        row, at = window.row, window.at
        if self.traced:
            when = self.commit_step[row, at]
            lost = torch.stack([row, when, at, self.ids[row, at]])[:, chosen & (when >= 0)]
            for slot, *write in lost.T.tolist():
                self.rewritten[slot].append((write[0], write[1], write[2]))
        self.edits[row, at] += made.edit.flatten()[window.index]
        self.settled[row, at] |= ~made.commit.any(1)[row]

    def look(self, healthy: Tensor) -> bool:
        """Tell the host where every row stands now, and whether all is well: the round trip of a step."""
        unsettled = self.unsettled()
        start, end, open_ = _active(unsettled, self.origin, self.block, self.length)
        if self.completed:  # the rest of the last block is nobody's
            wanted = torch.arange(self.columns, device=unsettled.device) < self.asked[:, None]
            open_ = open_.masked_fill(~(unsettled & wanted).any(1), 0)
        if self.stops_at_eos:  # nothing left to write before the first EOS
            ended = torch.isin(self.ids, self.eos_ids) & self.generated
            first_eos = torch.where(ended.any(1), ended.int().argmax(1), self.columns)
            open_ = open_.masked_fill(self.eos_stop & (first_eos < unsettled.int().argmax(1)), 0)
        told = torch.cat([start, end, open_, healthy[None].long()]).cpu()
        start, end, self.open = told[:-1].view(3, -1)
        if self.groups is not None:
            start, end = (torch.where(self.open > 0, a, b) for a, b in ((start, self.start), (end, self.end)))
        self.begun = torch.where(start == self.start, self.begun, self.forwards)
        self.start, self.end = start, end
        return bool(told[-1])


def _active(
    unsettled: Tensor, origin: Tensor, block: Tensor, length: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[B] each: where the first block that is not settled starts and ends, and how much of it is not."""
    first = torch.where(unsettled.any(1), unsettled.int().argmax(1), origin)
    start = origin + (first - origin) // block * block
    end = torch.minimum(start + block, length)
    inside = torch.arange(unsettled.shape[1], device=unsettled.device) < end[:, None]
    return start, end, (unsettled & inside).sum(1)
