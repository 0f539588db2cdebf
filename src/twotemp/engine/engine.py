"""The loop: one for every model, policy and cache. Token ids in, samples out, in the order rows finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from time import perf_counter

import torch

from twotemp.engine.ledger import Ledger
from twotemp.engine.rows import Rows, block_of, check
from twotemp.engine.runner import BlockCached, Runner, Uncached
from twotemp.engine.scheduler import Scheduler
from twotemp.errors import UserError
from twotemp.models.base import CachedDenoiser, Denoiser
from twotemp.policies.step import Memory, Noise, PolicyBatch
from twotemp.records import Request, Sample, Trace

DEFAULT_BATCH = 64


def run(
    model: Denoiser,
    requests: Iterable[Request],
    *,
    batch_size: int = DEFAULT_BATCH,
    on_step: Callable[[int], None] | None = None,
    ledger: Ledger | None = None,
) -> Iterator[Sample]:
    """Sample every request. A sample depends on its request alone, not on the batch it was drawn in.

    Requests whose policies differ in structure (say LC and an entropy bound) are batched apart; numbers such as
    T_pos may differ from row to row. Long rows go first, so that a batch holds rows of similar length.
    `on_step(rows)` is called after every step with the number of rows in the batch; a `ledger` keeps time.
    """
    if batch_size < 1:
        raise UserError(f"batch_size must be >= 1, not {batch_size}")
    waiting = list(requests)
    for request in waiting:
        check(request, model)
    waiting.sort(key=lambda r: (r.policy.structure, -len(r.prompt) - r.length))
    return _run_checked(model, waiting, batch_size, on_step, ledger or Ledger())


def _run_checked(model, waiting: list[Request], batch_size: int, on_step, ledger: Ledger) -> Iterator[Sample]:
    for _, group in groupby(waiting, key=lambda r: r.policy.structure):
        yield from _decode(model, list(group), batch_size, on_step, ledger)


@torch.inference_mode()
def _decode(
    model: Denoiser, waiting: list[Request], batch_size: int, on_step, ledger: Ledger
) -> Iterator[Sample]:
    scheduler = Scheduler(waiting, min(batch_size, len(waiting)))
    columns = max(len(r.prompt) + r.length for r in waiting)
    block_width = min(columns, max(block_of(r, model) for r in waiting))
    rows = Rows(scheduler.fill(), model, columns, block_width)
    runner = _runner(model, len(rows.requests), columns)
    policies = PolicyBatch([r.policy for r in rows.requests], model.device)
    forbidden = torch.tensor(model.forbidden_ids, dtype=torch.int64, device=model.device)
    memory: Memory | None = None

    ledger.start()
    while scheduler.running:
        window = rows.window()
        window = replace(window, masked=policies.candidates(window.masked))
        ledger.lap("bookkeeping")
        logits = runner.logits(rows, window)
        logits[:, forbidden] = -torch.inf
        ledger.lap("forward")
        decision = policies.step(
            Noise(rows.key, rows.step, window.positions),
            logits,
            window.masked,
            eos_ids=rows.eos_ids,
            memory=memory,
            want_entropy=rows.traced,
            lap=ledger.lap,
        )
        memory = decision.memory
        rows.commit(window, decision.tokens, decision.commit, decision.confidence, decision.entropy)

        # The step's one round trip to the host: which rows are done, and were all logits numbers.
        done, healthy = rows.finished(), torch.isfinite(decision.log_norm).all()
        *flags, sane = torch.cat([done, healthy[None]]).tolist()
        if not sane:
            raise _not_a_number(rows, window, decision.log_norm)
        ledger.step(len(flags))
        if on_step is not None:
            on_step(len(flags))
        finished = [slot for slot, flag in enumerate(flags) if flag]
        if not finished:
            continue
        ledger.lap("bookkeeping")
        yield from _collect(rows, finished)
        ledger.start()
        _, refilled, dropped = scheduler.finish(finished)
        if refilled:
            rows.replace(refilled)
        if memory is not None:  # what stood in a refilled slot is not about the new row
            memory.positions[finished] = -1
        if dropped:
            kept = [slot for slot in range(len(flags)) if slot not in dropped]
            rows.keep(kept)
            runner.keep(kept)
            memory = memory.rows(torch.tensor(kept, device=model.device)) if memory and kept else None
        if scheduler.running:
            policies = PolicyBatch([r.policy for r in rows.requests], model.device)


def _runner(model: Denoiser, rows: int, columns: int) -> Runner:
    """The fastest exact way to compute this model's logits."""
    if model.block_size is not None and isinstance(model, CachedDenoiser):
        return BlockCached(model, rows, columns)
    return Uncached(model)


def _collect(rows: Rows, slots: Sequence[int]) -> Iterator[Sample]:
    """Samples of the finished rows; what an EOS stop left masked becomes that EOS."""
    now = perf_counter()
    index = torch.tensor(slots, device=rows.ids.device)
    names = ("ids", "generated", "step", "forwards", "processed", "commit_step", "confidence", "entropy")
    host = {name: getattr(rows, name)[index].cpu() for name in names}
    for i, slot in enumerate(slots):
        request = rows.requests[slot]
        positions = host["generated"][i].nonzero()[:, 0]
        tokens = host["ids"][i, positions].tolist()
        mask_id, eos_ids = rows.model.mask_id, set(rows.model.eos_ids)
        written = next((n for n, token in enumerate(tokens) if token in eos_ids), len(tokens))
        if mask_id in tokens:  # only after an EOS stop
            tokens = [tokens[written] if token == mask_id else token for token in tokens]
        steps = int(host["step"][i])
        yield Sample(
            request=request.id,
            index=request.index,
            seed=request.seed,
            policy=request.policy,
            prompt=request.prompt,
            positions=tuple(positions.tolist()),
            tokens=tuple(tokens),
            nfe=_paper_nfe(request, written, steps),
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


def _not_a_number(rows: Rows, window, log_norm) -> UserError:
    bad = int((~torch.isfinite(log_norm)).nonzero()[0, 0])
    row, column = window.masked.nonzero()[bad].tolist()
    request = rows.requests[row]
    return UserError(
        f"the model returned NaN or infinite logits for request {request.id!r}, sample {request.index}, "
        f"row {row}, step {int(rows.step[row]) - 1}, position {int(window.positions[row, column])}; "
        "check the weights and the dtype (try float32)"
    )
