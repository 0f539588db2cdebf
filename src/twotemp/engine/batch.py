"""The rows that are decoded together: their state, how their logits are computed, their policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter

import torch

from twotemp.engine.ledger import Ledger
from twotemp.engine.rows import Rows, Window, block_of
from twotemp.engine.runner import runner_for
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.policies.step import Decision, Memory, Noise, PolicyBatch
from twotemp.records import Request, Sample, Trace


class Batch:
    """Rows of one policy structure, stepped together."""

    def __init__(
        self, model: Denoiser, requests: Sequence[Request], everything: Sequence[Request], cache: str | None
    ) -> None:
        """`everything`: all requests that may ever stand in this batch; they fix its widths."""
        self.model = model
        columns = max(len(r.prompt) + r.length for r in everything)
        block_width = min(columns, max(block_of(r, model) for r in everything))
        self.rows = Rows(requests, model, columns, block_width)
        self.runner = runner_for(model, len(requests), columns, cache)
        self.forbidden = torch.tensor(model.forbidden_ids, dtype=torch.int64, device=model.device)
        self.memory: Memory | None = None
        self._stack_policies()

    def _stack_policies(self) -> None:
        if self.rows.requests:
            self.policies = PolicyBatch([r.policy for r in self.rows.requests], self.model.device)

    def step(self, ledger: Ledger) -> list[int]:
        """One step of every row; the slots that are finished now."""
        rows, window = self.rows, self.rows.window(self.policies.candidates)
        ledger.lap("bookkeeping")
        logits = self.runner.logits(rows, window)
        ledger.lap("bookkeeping" if ledger.watched else "forward")
        decision = self.decide(window, logits, ledger)
        # Nothing that counts was changed so far: a step that runs out of memory is taken again.
        self.memory = decision.memory
        self.runner.book(rows, window)
        rows.commit(window, decision.tokens, decision.commit, decision.confidence, decision.entropy)
        if not rows.look(healthy=torch.isfinite(decision.log_norm).all()):
            raise _not_a_number(rows, window, decision.log_norm)
        ledger.lap("bookkeeping")
        return (rows.open == 0).nonzero()[:, 0].tolist()

    def decide(self, window: Window, logits: torch.Tensor, ledger: Ledger) -> Decision:
        """What the policies make of these logits."""
        logits[:, self.forbidden] = -torch.inf
        return self.policies.step(
            Noise(self.rows.key, self.rows.step, window.positions),
            logits,
            window.masked,
            index=window.index,
            eos_ids=self.rows.eos_ids,
            memory=self.memory,
            want_entropy=self.rows.traced,
            lap=ledger.lap,
        )

    def refill(self, requests: Mapping[int, Request]) -> None:
        """Put new rows where finished ones stood."""
        if requests:
            self.rows.replace(requests)
            if self.memory is not None:  # it is not about the new rows
                self.memory.positions[list(requests)] = -1
            self._stack_policies()

    def drop(self, slots: Sequence[int]) -> None:
        if slots:
            kept = [slot for slot in range(len(self.rows.requests)) if slot not in set(slots)]
            self.rows.keep(kept)
            self.runner.keep(kept)
            if self.memory is not None:
                self.memory = self.memory.rows(
                    torch.tensor(kept, dtype=torch.int64, device=self.model.device)
                )
            self._stack_policies()

    def samples(self, slots: Sequence[int]) -> Iterator[Sample]:
        """Samples of finished rows; what an EOS stop left masked becomes that EOS."""
        now, rows = perf_counter(), self.rows
        index = torch.tensor(slots, dtype=torch.int64, device=rows.ids.device)
        names = ("ids", "generated", "step", "commit_step", "confidence", "entropy")
        host = {name: getattr(rows, name)[index].cpu() for name in names}
        host |= {name: getattr(rows, name)[list(slots)] for name in ("forwards", "processed")}
        mask_id, eos_ids = self.model.mask_id, set(self.model.eos_ids)
        for i, slot in enumerate(slots):
            request = rows.requests[slot]
            positions = host["generated"][i].nonzero()[:, 0]
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
                nfe=_paper_nfe(request, written, int(host["step"][i])),
                forwards=int(host["forwards"][i]),
                processed=int(host["processed"][i]),
                seconds=now - rows.entered[slot],
                finish="eos" if written < len(tokens) else "length",
                trace=Trace(
                    steps=tuple(host["commit_step"][i, positions].tolist()),
                    confidence=tuple(host["confidence"][i, positions].tolist()),
                    entropy=tuple(host["entropy"][i, positions].tolist()),
                )
                if request.trace
                else None,
            )


def _paper_nfe(request: Request, written: int, steps: int) -> int:
    """The paper's accounting: AR costs a pass for each token before EOS, the others every step run."""
    policy = request.policy
    if policy.score == "position" and policy.rule == "budget" and policy.t_pos == 0:
        return -(-written // policy.k)
    return steps


def _not_a_number(rows: Rows, window: Window, log_norm: torch.Tensor) -> UserError:
    bad = int((~torch.isfinite(log_norm)).nonzero()[0, 0])
    row, at = int(window.row[bad]), int(window.at[bad])
    request = rows.requests[row]
    return UserError(
        f"the model returned NaN or infinite logits for request {request.id!r}, sample {request.index}, "
        f"row {row}, step {int(rows.step[row]) - 1}, position {at}; "
        "check the weights and the dtype (try float32)"
    )
