"""The rows of a batch: their tensors, and how steps change them. A column is a position in the row.

**What is stored.** `RowState` is a plain record of tensors, one entry per row, which batches `take`, `append` and
`pad` as rows leave, join and grow; rows are padded on the right. What follows from it is computed: a row's active
block is the one that holds its leftmost mask, so there is no block pointer to keep consistent, and infilling is
generation whose masks lie elsewhere.

**Why two devices.** A step on a GPU is a queue of kernels. The host may run ahead of it as long as it never asks for
a value, and asking costs a full wait. The shapes of the next step (where the active block is, how many positions are
predicted) are host decisions, though. So the host keeps its own copy of those few numbers and refreshes all of them
in one transfer per step, `Rows.sync`, together with the check that the logits were finite. Nothing else waits for the
device: facts that only change when rows join or leave are computed from the requests (`Rows._summarize`), and the
number of entries that `nonzero` would ask for is known in advance (`compact`).

**Why a block can be without masks and yet be active.** Policies that edit (`twotemp.experimental.editing`) may
rewrite a token until a step leaves the whole block unchanged. For them a position is pending until it is `final`; for
all other policies it is pending while it is a mask. Without a mask (`policies.decision.Renoising`) there is a canvas
of random tokens, which is pending until it ends.

**Why finished rows may stay.** Samples that repel each other (`twotemp.experimental.repulsion`) are compared at every
step, also with those that have finished. These keep their slot and their last window, predict nothing, and their
sample is set aside (`RowInfo.sample`) until the whole group has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from twotemp import rng
from twotemp.engine.scheduler import block_of, final_length_of, has_canvases, length_of
from twotemp.experimental.editing import BlockText
from twotemp.experimental.repulsion import Repulsion, SampleGroups
from twotemp.models.base import Denoiser
from twotemp.policies.decision import Canvas, Decision, Renoising
from twotemp.records import NO_MASK, Request, Sample


@dataclass(frozen=True)
class Window:
    """The active block of each row: [B, W] positions, and which of them may be committed now."""

    positions: Tensor
    masked: Tensor
    predicted: Tensor  # `masked` and, where policies edit, the tokens already written in the block
    text: BlockText | None  # where policies edit
    index: Tensor  # [N]: the True entries of `predicted.flatten()`
    row: Tensor  # [N]: the row of each of these entries
    column: Tensor  # [N]: its position in the row
    # [B], on the host:
    count: Tensor  # predicted.sum(1)
    start: Tensor  # first position of the block
    end: Tensor  # one past its last position


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


@dataclass
class RowInfo:
    """What the host remembers about a row in addition to its tensors."""

    request: Request
    entered: float = field(default_factory=perf_counter)
    # Of a traced row that is edited: (step, position, token) of what was written and later rewritten.
    rewritten: list[tuple[int, int, int]] = field(default_factory=list)
    sample: Sample | None = None  # set aside while the rest of its group runs


class Rows:
    """The rows being decoded: their tensors (`state`) and what the host knows of them (`info`)."""

    def __init__(self, requests: Sequence[Request], model: Denoiser, columns: int, block_width: int) -> None:
        self.model, self.columns, self.block_width = model, columns, block_width
        self.renoising = Renoising(model.vocab_size) if model.mask_id == NO_MASK else None
        self.editing = any(r.policy.edit != "never" for r in requests)  # one structure: all of them or none
        self.eos_ids = torch.tensor(model.eos_ids, dtype=torch.int64, device=model.device)
        self.info = [RowInfo(request) for request in requests]
        self.state = self._initial(requests)
        self._summarize()

    def append(self, requests: Sequence[Request]) -> None:
        """Add new rows after the last one."""
        self.state = self.state.append(self._initial(requests))
        self.info += [RowInfo(request) for request in requests]
        self._summarize()

    def replace(self, requests: Mapping[int, Request]) -> None:
        """Put new rows into the slots of finished ones."""
        self.state.write(list(requests), self._initial(list(requests.values())))
        for slot, request in requests.items():
            self.info[slot] = RowInfo(request)
        self._summarize()

    def keep(self, slots: Sequence[int]) -> None:
        """Drop all other rows."""
        self.state = self.state.take(slots)
        self.info = [self.info[slot] for slot in slots]
        self._summarize()

    def widen(self, columns: int, block_width: int) -> None:
        """Make room for longer rows and wider blocks."""
        self.state = self.state.pad(columns - self.columns)
        self.columns, self.block_width = columns, block_width

    def _initial(self, requests: Sequence[Request]) -> RowState:
        return RowState.initial(requests, self.model, self.columns, self.renoising, self.editing)

    def _summarize(self) -> None:
        """Compute from the requests what a step would otherwise have to ask the device for."""
        self.requests = requests = [info.request for info in self.info]
        self._measure()
        final = [final_length_of(r, self.model) for r in requests]
        self.completed = any(n != len(r.prompt) + r.length for n, r in zip(final, requests))
        self.extended = any(r.extend for r in requests) and not has_canvases(self.model)
        self.traced = any(r.trace for r in requests)
        self.stops_at_eos = has_canvases(self.model) or any(r.eos_stop for r in requests)
        # Rows can only ever be in the same state if they started from the same prompt.
        self.shared_prompts = len({r.prompt for r in requests}) < len(requests)
        repel = any(r.policy.repel for r in requests)
        self.groups = SampleGroups.from_requests(requests, self.model.device) if repel else None

    def _measure(self) -> None:
        lengths = self.state.host_length.tolist()
        self.width = max(lengths, default=0)
        self.padded = any(length != self.width for length in lengths)

    def masked(self) -> Tensor:
        """Return [B, C] bool: what is still to be written."""
        return (self.state.ids == self.model.mask_id) & self.state.generated

    def pending(self) -> Tensor:
        """Return [B, C] bool: what may still change."""
        return self.masked() if self.state.final is None else self.state.generated & ~self.state.final

    def repulsion(self) -> Repulsion | None:
        """Return what samples that repel each other know of each other, if there are any."""
        if self.groups is None:
            return None
        state, masked = self.state, self.masked()
        return Repulsion.from_rows(self.groups, state.ids, state.generated, masked, self.model)

    def window(self, candidates: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Window:
        """Return the active block of each row; `candidates` is `PolicyBatch.candidates`."""
        state = self.state
        start, end = torch.stack([state.start, state.end]).to(state.ids.device, non_blocking=True)
        positions = start[:, None] + torch.arange(self.block_width, device=state.ids.device)
        inside = positions < end[:, None]
        positions = torch.where(inside, positions, self.columns - 1)
        if self.groups is not None:  # finished rows are still here
            inside = inside & (state.pending > 0).to(inside.device, non_blocking=True)[:, None]
        predicted, count = candidates(inside & self.pending().gather(1, positions), state.pending)
        masked, text = predicted, None
        if state.edits is not None:
            text = BlockText(state.ids.gather(1, positions), predicted, state.edits.gather(1, positions))
            masked = predicted & (text.tokens == self.model.mask_id)
        index = compact(predicted, int(count.sum()))
        row, column = index // self.block_width, positions.flatten()[index]
        return Window(positions, masked, predicted, text, index, row, column, count, state.start, state.end)

    def commit(self, window: Window, decision: Decision) -> None:
        """Write the committed tokens. The other candidates stay masked or, without a mask, become random tokens."""
        state, row, column = self.state, window.row, window.column
        if decision.canvas is not None:
            self._write_canvas(window, decision, decision.canvas)
            state.step = state.step + 1
            return
        committed = decision.commit.flatten()[window.index]
        if decision.edit is not None:
            self._record_edits(window, decision, committed)

        tokens = decision.tokens.flatten()[window.index]
        state.ids[row, column] = torch.where(committed, tokens, state.ids[row, column])
        if self.traced:
            self._record(window, committed, decision.confidence, decision.entropy)
        state.step = state.step + 1  # not in place: an observer may still hold the old one

    def _record(self, window: Window, written: Tensor, confidence: Tensor, entropy: Tensor | None) -> None:
        """Note step, confidence and entropy where `written` [N] is True; the others keep theirs."""
        state, row, column = self.state, window.row, window.column
        assert entropy is not None
        for into, values in (
            (state.commit_step, state.step[row].int()),
            (state.confidence, confidence.flatten()[window.index]),
            (state.entropy, entropy.flatten()[window.index]),
        ):
            into[row, column] = torch.where(written, values, into[row, column])

    def _write_canvas(self, window: Window, decision: Decision, canvas: Canvas) -> None:
        """Write the canvas that the step left; note changes of its likeliest tokens and accepted positions."""
        state, row, column = self.state, window.row, window.column
        assert state.final is not None
        assert state.accepted is not None
        state.ids[row, column] = canvas.tokens.flatten()[window.index]
        state.final[row, column] = canvas.ends[row]
        if self.traced:
            changed = canvas.changed.flatten()[window.index]
            self._record(window, changed, canvas.confidence, decision.entropy)
            since = state.accepted[row, column]
            kept = torch.where(since < 0, state.step[row].int(), since)
            state.accepted[row, column] = torch.where(decision.commit.flatten()[window.index], kept, -1)

    def _record_edits(self, window: Window, decision: Decision, committed: Tensor) -> None:
        """Note what is about to be overwritten, and make blocks final that this step leaves unchanged."""
        state, row, column = self.state, window.row, window.column
        assert decision.edit is not None
        assert state.edits is not None
        assert state.final is not None
        if self.traced:
            step = state.commit_step[row, column]
            lost = torch.stack([row, step, column, state.ids[row, column]])[:, committed & (step >= 0)]
            for slot, *write in lost.T.tolist():
                self.info[slot].rewritten.append((write[0], write[1], write[2]))
        state.edits[row, column] += decision.edit.flatten()[window.index]
        state.final[row, column] |= ~decision.commit.any(1)[row]

    def sync(self, healthy: Tensor) -> bool:
        """Copy the state of every row to the host. This is the only time that a step waits for the device.

        Args:
            healthy: A scalar on the device, carried along in the same transfer.

        Returns:
            The value of `healthy`.
        """
        state = self.state
        if self.extended:
            self._extend()
        pending = self.pending()
        start, end, count = active_block(pending, state.origin, state.block, state.length)
        if self.completed:  # what completes the last block need not be written
            requested = torch.arange(self.columns, device=pending.device) < state.requested[:, None]
            count = count.masked_fill(~(pending & requested).any(1), 0)
        if self.stops_at_eos:  # nothing left to write before the first EOS
            ended = torch.isin(state.ids, self.eos_ids) & state.generated
            first_eos = torch.where(ended.any(1), ended.int().argmax(1), self.columns)
            count = count.masked_fill(state.eos_stop & (first_eos < pending.int().argmax(1)), 0)
        transferred = [start, end, count, state.length]
        if self.shared_prompts:
            transferred.append(hash_rows(state.ids, pending, state.length))
        host = torch.cat([*transferred, healthy[None].long()]).cpu()
        start, end, state.pending, state.host_length, *hashed = host[:-1].view(len(transferred), -1)
        state.hashed = hashed[0] if hashed else -1 - torch.arange(len(start))
        if self.extended:
            self._measure()
        if self.groups is not None:  # finished rows keep their last window
            running = state.pending > 0
            start, end = torch.where(running, start, state.start), torch.where(running, end, state.end)
        state.steps_before = torch.where(start == state.start, state.steps_before, state.forwards)
        state.start, state.end = start, end
        return bool(host[-1])

    def _extend(self) -> None:
        """Add a block of masks to rows that are fully written, have no EOS and are below their final length."""
        state = self.state
        ended = (torch.isin(state.ids, self.eos_ids) & state.generated).any(1)
        due = ~self.pending().any(1) & ~ended
        longer = torch.where(due, torch.minimum(state.length + state.block, state.final_length), state.length)
        columns = torch.arange(self.columns, device=state.ids.device)
        new = (columns >= state.length[:, None]) & (columns < longer[:, None])
        state.ids = torch.where(new, self.model.mask_id, state.ids)
        state.generated, state.length = state.generated | new, longer


def compact(flags: Tensor, count: int) -> Tensor:
    """Return the indices of the True entries of `flags.flatten()`, of which there are `count`.

    `nonzero` would have to ask the device for that number; prefix sums do not.
    """
    flags = flags.flatten()
    # All False entries share a last slot, which is cut off.
    target = torch.where(flags, flags.cumsum(0) - 1, count)
    indices = torch.empty(count + 1, dtype=torch.int64, device=flags.device)
    return indices.scatter_(0, target, torch.arange(len(flags), device=flags.device))[:count]


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
