"""The rows of a batch as steps see and change them; `state.RowState` has their tensors.

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

from twotemp.engine.scheduler import final_length_of, has_canvases
from twotemp.engine.state import RowState, active_block, hash_rows
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

        def write(into: Tensor, values: Tensor) -> None:
            into[row, column] = torch.where(committed, values, into[row, column])

        write(state.ids, decision.tokens.flatten()[window.index])
        if self.traced:
            assert decision.entropy is not None
            write(state.commit_step, state.step[row].int())
            write(state.confidence, decision.confidence.flatten()[window.index])
            write(state.entropy, decision.entropy.flatten()[window.index])
        state.step = state.step + 1  # not in place: an observer may still hold the old one

    def _write_canvas(self, window: Window, decision: Decision, canvas: Canvas) -> None:
        """Write the canvas that the step left; note changes of its likeliest tokens and accepted positions."""
        state, row, column = self.state, window.row, window.column
        assert state.final is not None
        assert state.accepted is not None
        assert decision.entropy is not None
        state.ids[row, column] = canvas.tokens.flatten()[window.index]
        state.final[row, column] = canvas.ends[row]
        if self.traced:
            step = state.step[row].int()
            changed = canvas.changed.flatten()[window.index]
            for into, values in (
                (state.commit_step, step),
                (state.confidence, canvas.confidence.flatten()[window.index]),
                (state.entropy, decision.entropy.flatten()[window.index]),
            ):
                into[row, column] = torch.where(changed, values, into[row, column])
            since = state.accepted[row, column]
            kept = torch.where(since < 0, step, since)
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
