"""A batch: the rows that are decoded together, the steps they take, and how to observe them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from twotemp.engine.rows import Rows, Window
from twotemp.engine.runner import Runner, runner_for
from twotemp.engine.scheduler import BLOCKS_AHEAD, block_of, extended_length
from twotemp.errors import UserError
from twotemp.experimental.repulsion import Repulsion
from twotemp.models.base import Denoiser
from twotemp.policies.decision import Decision, Memory
from twotemp.policies.step import PolicyBatch
from twotemp.records import NO_MASK, Policy, Request, Sample, Trace, first_eos
from twotemp.rng import Noise


class RowStep(NamedTuple):
    """What one step wrote into a row."""

    step: int  # of this row, from 0
    # Position, token (the mask if it was masked or renoised), confidence.
    commits: list[tuple[int, int, float]]
    final: int | None = None  # columns before this one will not change again; None: what is written stays
    noise: Sequence[tuple[int, int]] = ()  # position, random token: what stands where a position was renoised


@dataclass(frozen=True)
class StepView:
    """A step that was just taken, row by row. Read it during the call: the next step overwrites the rows.

    Tensors are the engine's own, on the model's device; nothing is copied before a property or method is used.
    """

    rows: Rows
    window: Window
    logits: Tensor  # [N, V]: at the candidates, as the model gave them
    decision: Decision
    memory: Memory | None  # what the policies carry into the next step
    step: Tensor  # [B]: the index of the step in its row, from 0
    block_step: Tensor  # [B], on the host: its index in the active block
    decide: Callable[[Tensor], tuple[Decision, Memory | None]]  # the decision that other logits would lead to

    @property
    def requests(self) -> Sequence[Request]:
        """The requests of the rows."""
        return self.rows.requests

    @property
    def canvas(self) -> Tensor:
        """[B, C]: token ids after the step, with masks or random tokens in between; shorter rows are padded."""
        return self.rows.state.ids

    @property
    def before(self) -> Tensor:
        """[B, C]: the canvas before the step, of models with a mask."""
        ids, window = self.rows.state.ids.clone(), self.window
        text = self.rows.model.mask_id if window.text is None else window.text.tokens.flatten()[window.index]
        ids[window.row, window.column] = text
        return ids

    def committed(self, row: int) -> list[tuple[int, int, float]]:
        """Return (position, token, confidence) of what the step wrote into this row."""
        return self.row_steps([row])[0].commits

    def row_steps(self, rows: Sequence[int]) -> list[RowStep]:
        """Return what the step wrote into these rows, with one transfer for all of them."""
        decision, canvas = self.decision, self.decision.canvas
        commit, tokens, confidence = decision.commit, decision.tokens, decision.confidence
        ends, noise = torch.zeros_like(self.step), torch.zeros_like(commit)
        if canvas is not None:  # everything was written: tokens, or noise
            ends = canvas.ends.long()
            text = canvas.ends[:, None]
            tokens, noise = canvas.tokens, ~(text | commit)
            confidence = torch.where(text, canvas.confidence, confidence)
            commit = self.window.predicted
        # Confidences are sent as their bits, so that integers and floats share the transfer.
        bits = confidence.float().view(torch.int32).long()
        facts = [each[:, None].expand_as(bits) for each in (self.step, ends)]
        parts = torch.stack([commit.long(), noise.long(), self.window.positions, tokens, bits, *facts])
        parts = parts[:, torch.tensor(rows, device=parts.device)].cpu()
        commit, noise, positions, tokens, bits, step, ends = parts
        confidence = bits.int().view(torch.float32)
        shown = torch.where(noise.bool(), NO_MASK, tokens)
        row_steps = []
        for i, (slot, chosen, random) in enumerate(zip(rows, commit.bool(), (commit * noise).bool())):
            commits = list(zip(*(v[i][chosen].tolist() for v in (positions, shown, confidence))))
            reach = self.window.end if int(ends[i, 0]) else self.window.start
            final = None if canvas is None else int(reach[slot])
            renoised = list(zip(positions[i][random].tolist(), tokens[i][random].tolist()))
            row_steps.append(RowStep(int(step[i, 0]), commits, final, renoised))
        return row_steps


class Observer:
    """Observes a run. Does nothing by default; override the methods you need."""

    def turn(self) -> AbstractContextManager[None]:
        """Return a context that surrounds every turn of the loop; the time between two turns is the caller's."""
        return nullcontext()

    def lap(self, part: str) -> None:
        """Note that a part of the turn has ended: bookkeeping, forward, draw or select."""

    def step(self, view: StepView) -> None:
        """Note a step that was taken."""


class Batch:
    """Rows of one policy structure, stepped together: `run` decides, `commit` writes."""

    def __init__(
        self,
        model: Denoiser,
        requests: Sequence[Request],
        columns: int,
        block_width: int,
        runner: Runner | None = None,
    ) -> None:
        """Start the requests.

        Args:
            model: The model.
            requests: One per row.
            columns: Room for rows of this length.
            block_width: Room for blocks of this width.
            runner: Computes the logits; None for the fastest exact one.
        """
        self.model = model
        self.rows = Rows(requests, model, columns, block_width)
        self.runner = runner or runner_for(model, len(requests), columns)
        self.memory: Memory | None = None
        self._stacked: list[Policy] = []

    def _stack_policies(self) -> None:
        """Stack the rows' policies, unless they are those of the step before."""
        policies = [r.policy for r in self.rows.requests]
        if policies != self._stacked:
            self._stacked = policies
            self.policies = PolicyBatch(
                policies,
                self.model.device,
                eos_ids=self.model.eos_ids,
                # The mask is forbidden whatever a model says: a row that writes masks would never end.
                forbidden_ids=sorted({*self.model.forbidden_ids, self.model.mask_id} - {NO_MASK}),
                mask_id=self.model.mask_id,
                renoising=self.rows.renoising,
                embed=self.runner.embed,
            )

    def run(self, observer: Observer) -> StepView:
        """Run a forward pass and let the policies decide. Nothing is written: the step may be repeated."""
        self._stack_policies()
        rows, state = self.rows, self.rows.state
        window = rows.window(self.policies.candidates)
        observer.lap("bookkeeping")
        logits = self.runner.logits(rows, window)
        observer.lap("forward")
        noise = Noise(state.key, state.step, window.positions)
        block_step = state.forwards - state.steps_before
        decide = partial(self._decide, window, noise, block_step, self.memory, rows.repulsion())
        decision, memory = decide(logits, observer)
        return StepView(rows, window, logits, decision, memory, noise.step, block_step, decide)

    def _decide(
        self,
        window: Window,
        noise: Noise,
        block_step: Tensor,
        memory: Memory | None,
        repulsion: Repulsion | None,
        logits: Tensor,
        observer: Observer | None = None,
    ) -> tuple[Decision, Memory | None]:
        lap = (observer or Observer()).lap
        policies = self.policies
        if repulsion is not None:
            logits = policies.repel(logits, window.masked, window.index, repulsion)
        taken = block_step.to(self.model.device, non_blocking=True) if policies.counts_steps else None
        drawn = policies.draw(
            noise,
            logits,
            window.predicted,
            window.index,
            entropy=self.rows.traced,
            block_step=taken,
            text=window.text,
        )
        lap("draw")
        decision = policies.choose(
            noise,
            drawn,
            window.masked,
            memory=memory,
            block_step=taken,
            text=window.text,
        )
        lap("select")
        return decision

    def commit(self, view: StepView) -> tuple[list[int], dict[int, UserError]]:
        """Write what was decided.

        Returns:
            The slots that have finished now, and by slot the errors of rows that failed.
        """
        rows, decision = self.rows, view.decision
        self.memory = view.memory
        self.runner.record_step(rows, view.window, decision)
        rows.commit(view.window, decision)
        healthy = torch.isfinite(decision.log_norm)
        failed = {} if rows.sync(healthy.all()) else _broken_rows(view, healthy)
        if rows.extended:
            self._make_room()
        pending = rows.state.pending.tolist()
        finished = [slot for slot, count in enumerate(pending) if not count and slot not in failed]
        if rows.groups is not None:
            return self._whole_groups(rows.groups.slots, finished, failed)
        return finished, failed

    def _make_room(self) -> None:
        """Widen the batch where the next step could extend a row beyond it."""
        rows = self.rows

        def columns(blocks: int) -> int:
            lengths = rows.state.host_length.tolist()
            return max(extended_length(n, r, self.model, blocks) for n, r in zip(lengths, rows.requests))

        if columns(1) > rows.columns:
            self.widen(columns(BLOCKS_AHEAD), rows.block_width)

    def _whole_groups(
        self, groups: list[list[int]], finished: list[int], failed: dict[int, UserError]
    ) -> tuple[list[int], dict[int, UserError]]:
        """Let groups of samples that repel each other finish, or fail, as a whole.

        A finished sample keeps its slot until its group has finished: the others are still pushed away from it.
        """
        for group in groups:
            if errors := [failed[slot] for slot in group if slot in failed]:
                failed = failed | dict.fromkeys(group, errors[0])
        new = [slot for slot in finished if self.rows.info[slot].sample is None]
        for slot, sample in zip(new, list(self.samples(new)) if new else ()):
            self.rows.info[slot].sample = sample
        whole = [group for group in groups if {*finished, *failed}.issuperset(group)]
        return [slot for group in whole for slot in group if slot not in failed], failed

    def refill(self, requests: Mapping[int, Request]) -> None:
        """Put new rows into the slots of finished ones."""
        if requests:
            self.rows.replace(requests)
            if self.memory is not None:  # it describes the old rows
                self.memory.positions[list(requests)] = -1

    def drop(self, slots: Sequence[int]) -> None:
        """Remove these slots."""
        if slots:
            kept = [slot for slot in range(len(self.rows.requests)) if slot not in set(slots)]
            self.rows.keep(kept)
            self.runner.keep(kept)
            if self.memory is not None:
                self.memory = self.memory.take(
                    torch.tensor(kept, dtype=torch.int64, device=self.model.device)
                )

    def widen(self, columns: int, block_width: int) -> None:
        """Make room for rows of this many columns and blocks of this width, if there is not enough."""
        if columns > self.rows.columns or block_width > self.rows.block_width:
            self.rows.widen(max(columns, self.rows.columns), max(block_width, self.rows.block_width))
            self._grow()

    def append(self, requests: Sequence[Request]) -> None:
        """Add rows after the last one."""
        if requests:
            self.rows.append(requests)
            self._grow()

    def _grow(self) -> None:
        self.runner.grow(len(self.rows.requests), self.rows.columns)
        if self.memory is not None:
            self.memory = self.memory.grow(len(self.rows.requests), self.rows.block_width)

    def samples(self, slots: Sequence[int]) -> Iterator[Sample]:
        """Yield the samples of finished rows. Positions that an EOS stop left masked are filled with that EOS."""
        now, state = perf_counter(), self.rows.state
        index = torch.tensor(slots, dtype=torch.int64)
        on_device = index.to(state.ids.device)
        # As arrays: row by row, numpy is several times faster than torch.
        traced = (state.commit_step, state.confidence, state.entropy, state.accepted)
        ids, generated, pending, origin, steps, *traces = (
            tensor[on_device].cpu().numpy()
            for tensor in (
                *(state.ids, state.generated, self.rows.pending(), state.origin, state.step),
                *(tensor for tensor in traced if tensor is not None),
            )
        )
        forwards = (state.forwards + state.encoded)[index].tolist()
        processed = state.processed[index].tolist()
        eos_ids = set(self.model.eos_ids)
        for i, slot in enumerate(slots):
            info = self.rows.info[slot]
            if info.sample is not None:
                yield info.sample
                continue
            request = info.request
            block = block_of(request, self.model)
            # Columns beyond what was requested complete the last block of a block-causal model.
            (positions,) = generated[i, : len(request.prompt) + request.length].nonzero()
            left = pending[i, positions]  # only after an EOS stop
            tokens = ids[i, positions].tolist()
            written = first_eos(tokens, eos_ids)
            if left.any():
                tokens = [tokens[written] if open_ else token for token, open_ in zip(tokens, left)]
            trace = None
            if request.trace:
                when, confidence, entropy, *held = (tuple(values[i, positions].tolist()) for values in traces)
                edits = _by_index(info.rewritten, positions.tolist())
                trace = Trace(when, confidence, entropy, edits, *held)
            yield Sample(
                *request.key,
                request.policy,
                request.prompt,
                tuple(positions.tolist()),
                tuple(tokens),
                nfe=int(steps[i])
                if self.rows.renoising is not None
                else paper_nfe(request, (positions[:written] - origin[i]).tolist(), block, int(steps[i])),
                forwards=forwards[i],
                processed=processed[i],
                seconds=now - info.entered,
                finish="eos" if written < len(tokens) else "length",
                trace=trace,
                block=block,
            )


def _by_index(
    rewritten: Sequence[tuple[int, int, int]], positions: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """Return edits by step, with positions replaced by indices into the sample; others are left out."""
    if not rewritten:
        return ()
    index = {position: n for n, position in enumerate(positions)}
    return tuple(
        sorted((step, index[position], token) for step, position, token in rewritten if position in index)
    )


def paper_nfe(request: Request, positions: Sequence[int], block: int, steps: int) -> int:
    """Return the number of function evaluations as the paper counts them.

    For AR, the passes that write the tokens before EOS, K tokens of a block per pass. For all others, every step.

    Args:
        request: What was sampled.
        positions: What comes before EOS, counted from the start of the block grid.
        block: Width of a block.
        steps: Steps that were run.
    """
    policy = request.policy
    if policy.left_to_right:
        blocks = Counter(position // block for position in positions)
        return sum(-(-count // policy.k) for count in blocks.values())
    return steps


def _broken_rows(view: StepView, healthy: Tensor) -> dict[int, UserError]:
    """Return an error for each row with NaN or infinite logits, by its first broken position."""
    broken = (~healthy).nonzero()[:, 0]
    rows, positions = view.window.row[broken].tolist(), view.window.column[broken].tolist()
    steps = view.step.tolist()
    errors: dict[int, UserError] = {}
    for row, position in zip(rows, positions):
        request = view.requests[row]
        errors.setdefault(
            row,
            UserError(
                f"the model returned NaN or infinite logits for {request.name}, sample {request.index}, "
                f"row {row}, step {steps[row]}, position {position}; check the weights and the dtype (try float32)"
            ),
        )
    return errors
