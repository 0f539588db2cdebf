"""The rows that are decoded together: their state, how their logits are computed, their policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from twotemp.engine.observer import Observer, StepView
from twotemp.engine.rows import Rows, Window, block_of
from twotemp.engine.runner import runner_for
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.policies.repulsion import Crowd
from twotemp.policies.step import Decision, Memory, Noise, PolicyBatch
from twotemp.records import Policy, Request, Sample, Trace


class Batch:
    """Rows of one policy structure, stepped together: `run` decides, `commit` writes."""

    def __init__(
        self,
        model: Denoiser,
        requests: Sequence[Request],
        columns: int,
        block_width: int,
        cache: str | None = None,
        fixed_rows: int | None = None,
    ) -> None:
        """fixed_rows: every forward pass computes so many, whatever the number of requests."""
        self.model = model
        self.rows = Rows(requests, model, columns, block_width)
        self.runner = runner_for(model, len(requests), columns, cache, fixed_rows)
        self.memory: Memory | None = None
        self._stacked: list[Policy] = []

    def _stack_policies(self) -> None:
        """Anew only where the rows' policies are not those of the step before: rows come and go all the time."""
        wanted = [r.policy for r in self.rows.requests]
        if wanted != self._stacked:
            self._stacked = wanted
            self.policies = PolicyBatch(
                wanted,
                self.model.device,
                eos_ids=self.model.eos_ids,
                # Whatever a model says: a row that writes masks would never end.
                forbidden_ids=sorted({*self.model.forbidden_ids, self.model.mask_id}),
                mask_id=self.model.mask_id,
            )

    def run(self, observer: Observer) -> StepView:
        """A forward pass and what the policies make of it. Changes nothing that counts: it may be taken again."""
        self._stack_policies()
        rows, window = self.rows, self.rows.window(self.policies.candidates)
        observer.lap("bookkeeping")
        logits = self.runner.logits(rows, window)
        observer.lap("forward")
        noise = Noise(rows.key, rows.step, window.positions)
        since = rows.forwards - rows.begun
        crowd = None if rows.groups is None else rows.crowd(rows.groups)
        decide = partial(self._decide, window, noise, since, self.memory, crowd)
        decision, memory = decide(logits, observer)
        return StepView(rows, window, logits, decision, memory, noise.step, since, decide)

    def _decide(
        self,
        window: Window,
        noise: Noise,
        since: Tensor,
        memory: Memory | None,
        crowd: Crowd | None,
        logits: Tensor,
        observer: Observer | None = None,
    ) -> tuple[Decision, Memory | None]:
        lap = (observer or Observer()).lap
        if crowd is not None:
            logits = self.policies.repel(logits, window.masked, window.index, crowd)
        drawn = self.policies.draw(
            noise, logits, window.asked, window.index, entropy=self.rows.traced, text=window.text
        )
        lap("draw")
        when = since.to(self.model.device, non_blocking=True) if self.policies.even is not None else None
        chosen = self.policies.choose(
            noise, drawn, window.masked, memory=memory, since=when, text=window.text
        )
        lap("select")
        return chosen

    def commit(self, view: StepView) -> tuple[list[int], dict[int, UserError]]:
        """Write what was decided; the slots that are finished now, and what is wrong with those that failed."""
        rows, window, decision = self.rows, view.window, view.decision
        self.memory = view.memory
        self.runner.book(rows, window)
        rows.commit(window, decision)
        healthy = torch.isfinite(decision.log_norm)
        failed = {} if rows.look(healthy.all()) else _not_numbers(view, healthy)
        if failed and rows.groups is not None:  # without it the others of its group would be other samples
            for some in rows.groups.slots:
                if errors := [failed[slot] for slot in some if slot in failed]:
                    failed |= dict.fromkeys(some, errors[0])
        over = [slot for slot, left in enumerate(rows.open.tolist()) if not left and slot not in failed]
        if rows.groups is not None:  # those that are over rest until their group is, and still count in it
            new = [slot for slot in over if rows.over[slot] is None]
            for slot, sample in zip(new, list(self.samples(new)) if new else ()):
                rows.over[slot] = sample
            whole = [some for some in rows.groups.slots if {*over, *failed}.issuperset(some)]
            over = [slot for some in whole for slot in some if slot not in failed]
        return over, failed

    def refill(self, requests: Mapping[int, Request]) -> None:
        """Put new rows where finished ones stood."""
        if requests:
            self.rows.replace(requests)
            if self.memory is not None:  # it is not about the new rows
                self.memory.positions[list(requests)] = -1

    def drop(self, slots: Sequence[int]) -> None:
        if slots:
            kept = [slot for slot in range(len(self.rows.requests)) if slot not in set(slots)]
            self.rows.keep(kept)
            self.runner.keep(kept)
            if self.memory is not None:
                self.memory = self.memory.rows(
                    torch.tensor(kept, dtype=torch.int64, device=self.model.device)
                )

    def widen(self, columns: int, block_width: int) -> None:
        """Room for rows of so many columns, where there is not enough."""
        if columns > self.rows.columns or block_width > self.rows.block_width:
            self.rows.widen(max(columns, self.rows.columns), max(block_width, self.rows.block_width))
            self._make_room()

    def append(self, requests: Sequence[Request]) -> None:
        """Rows behind the last one."""
        if requests:
            self.rows.append(requests)
            self._make_room()

    def _make_room(self) -> None:
        self.runner.grow(len(self.rows.requests), self.rows.columns)
        if self.memory is not None:
            self.memory = self.memory.grow(len(self.rows.requests), self.rows.block_width)

    def samples(self, slots: Sequence[int]) -> Iterator[Sample]:
        """Samples of finished rows; what an EOS stop left masked becomes that EOS."""
        now, rows = perf_counter(), self.rows
        index = torch.tensor(slots, dtype=torch.int64, device=rows.ids.device)
        names = ("ids", "generated", "origin", "step", "commit_step", "confidence", "entropy")
        # As arrays: a row at a time, numpy is several times faster than torch.
        host = {name: getattr(rows, name)[index].cpu().numpy() for name in names}
        host |= {name: getattr(rows, name)[list(slots)].numpy() for name in ("forwards", "processed")}
        mask_id, eos_ids = self.model.mask_id, set(self.model.eos_ids)
        for i, slot in enumerate(slots):
            if (rested := rows.over[slot]) is not None:
                yield rested
                continue
            request = rows.requests[slot]
            # Beyond what was asked for lies at most the rest of a block-causal model's last block.
            asked = host["generated"][i, : len(request.prompt) + request.length]
            (positions,) = asked.nonzero()
            tokens = host["ids"][i, positions].tolist()
            written = next((n for n, token in enumerate(tokens) if token in eos_ids), len(tokens))
            if mask_id in tokens:  # only after an EOS stop
                tokens = [tokens[written] if token == mask_id else token for token in tokens]
            yield Sample(
                request=request.id,
                index=request.index,
                seed=request.seed,
                policy=request.policy,
                prompt=request.prompt,
                positions=tuple(positions.tolist()),
                tokens=tuple(tokens),
                nfe=paper_nfe(
                    request,
                    (positions[:written] - host["origin"][i]).tolist(),
                    block_of(request, self.model),
                    int(host["step"][i]),
                ),
                forwards=int(host["forwards"][i]),
                processed=int(host["processed"][i]),
                seconds=now - rows.entered[slot],
                finish="eos" if written < len(tokens) else "length",
                trace=Trace(
                    steps=tuple(host["commit_step"][i, positions].tolist()),
                    confidence=tuple(host["confidence"][i, positions].tolist()),
                    entropy=tuple(host["entropy"][i, positions].tolist()),
                    edits=_placed(rows.rewritten[slot], positions.tolist()),
                )
                if request.trace
                else None,
            )


def _placed(
    rewritten: Sequence[tuple[int, int, int]], positions: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """By step, and by place in the sample instead of the position; what is no part of it is left out."""
    if not rewritten:
        return ()
    place = {position: n for n, position in enumerate(positions)}
    return tuple(sorted((step, place[at], token) for step, at, token in rewritten if at in place))


def paper_nfe(request: Request, positions: Sequence[int], block: int, steps: int) -> int:
    """The paper's accounting: AR costs the passes that write what comes before EOS (positions), K tokens of a block
    at a time; the others every step run."""
    policy = request.policy
    if policy.left_to_right:
        blocks = Counter(at // block for at in positions)
        return sum(-(-count // policy.k) for count in blocks.values())
    return steps


def _not_numbers(view: StepView, healthy: Tensor) -> dict[int, UserError]:
    """What to say about each row whose logits are broken, by its first broken position."""
    broken = (~healthy).nonzero()[:, 0]
    rows, places = view.window.row[broken].tolist(), view.window.at[broken].tolist()
    steps = view.step.tolist()
    found: dict[int, UserError] = {}
    for row, at in zip(rows, places):
        request = view.requests[row]
        found.setdefault(
            row,
            UserError(
                f"the model returned NaN or infinite logits for request {request.id!r}, sample {request.index}, "
                f"row {row}, step {steps[row]}, position {at}; check the weights and the dtype (try float32)"
            ),
        )
    return found
