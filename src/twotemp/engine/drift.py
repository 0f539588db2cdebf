"""How far an approximate cache strays: at every state a cached run visits, its logits against the exact ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twotemp.engine.batch import Batch
from twotemp.engine.ledger import Ledger
from twotemp.engine.memory import fit_batch
from twotemp.engine.rows import Window, check
from twotemp.engine.runner import Uncached, check_cache
from twotemp.engine.scheduler import Scheduler
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.policies.step import Decision
from twotemp.records import Request


@dataclass(frozen=True)
class Drift:
    """KL(exact || cached) over the predictions that read the cache, and the decisions it changed in the whole run."""

    predictions: int  # those of steps that read the cache: at the first step of a block it is computed afresh
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_max: float
    steps: int  # row-steps
    changed_steps: float  # share of row-steps that commit something else (other positions or other tokens)
    changed_tokens: float  # share of committed tokens that the exact logits would have drawn otherwise


def drift(
    model: Denoiser,
    requests: Sequence[Request],
    cache: str,
    *,
    batch_size: int | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Drift:
    """Sample with the cache, and at every step ask the uncached model too. Costs both, in memory too: unset,
    batch_size is half of what would fit without the comparison."""
    if not requests:
        raise UserError("nothing to compare: give at least one request")
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size must be >= 1, not {batch_size}")
    for request in requests:
        check(request, model)
    check_cache(model, cache)
    if batch_size is None:
        batch_size = max(1, fit_batch(model, requests, cache)[0] // 2)
    scheduler = Scheduler(requests, min(batch_size, len(requests)))
    batch = _Compared(model, scheduler.fill(), requests, cache)
    ledger = Ledger()
    with torch.inference_mode():
        while scheduler.running:
            finished = batch.step(ledger)
            if on_step is not None:
                on_step(len(finished))
            _, refilled, dropped = scheduler.finish(finished)
            batch.refill(refilled)
            batch.drop(dropped)
    read = torch.cat(batch.kl)
    kl = read if len(read) else torch.zeros(1)  # a cache that is never read changes nothing
    return Drift(
        predictions=len(read),
        kl_mean=float(kl.mean()),
        kl_median=float(kl.median()),
        kl_p99=float(kl.kthvalue(max(1, round(0.99 * len(kl)))).values),
        kl_max=float(kl.max()),
        steps=batch.row_steps,
        changed_steps=batch.changed_steps / batch.row_steps,
        changed_tokens=batch.changed_tokens / batch.committed,
    )


class _Compared(Batch):
    """A batch that decides by the cached logits and notes what the exact ones would have done."""

    def __init__(self, model: Denoiser, requests, everything, cache: str) -> None:
        super().__init__(model, requests, everything, cache)
        self.exact = Uncached(model)
        self.kl: list[Tensor] = []
        self.row_steps = self.changed_steps = self.committed = self.changed_tokens = 0

    def decide(self, window: Window, logits: Tensor, ledger: Ledger) -> Decision:
        truth = self.exact.logits(self.rows, window)  # not booked: the sample does not pay for the comparison
        ours, theirs = super().decide(window, logits, ledger), super().decide(window, truth, ledger)
        read = (self.rows.cached == window.start).to(logits.device)[window.row]
        p, q = torch.log_softmax(truth[read], -1), torch.log_softmax(logits[read], -1)
        self.kl.append((p.exp() * (p - q)).nan_to_num(0.0).sum(-1).cpu())  # forbidden ids: 0 * nan
        other = ours.tokens != theirs.tokens
        changed = (ours.commit != theirs.commit) | (ours.commit & other)
        self.row_steps += len(changed)
        self.changed_steps += int(changed.any(1).sum())
        self.committed += int(ours.commit.sum())
        self.changed_tokens += int((ours.commit & other).sum())
        return ours
