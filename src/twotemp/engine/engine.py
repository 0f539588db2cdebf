"""The loop: one for every model, policy and cache. Token ids in, samples out, in the order rows finish."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import torch

from twotemp.engine.batch import Batch
from twotemp.engine.ledger import Ledger
from twotemp.engine.memory import fit_batch, out_of_memory
from twotemp.engine.rows import check
from twotemp.engine.runner import check_cache
from twotemp.engine.scheduler import Scheduler
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.records import Request, Sample

log = logging.getLogger("twotemp")


def run(
    model: Denoiser,
    requests: Iterable[Request],
    *,
    batch_size: int | None = None,
    cache: str | None = None,
    on_step: Callable[[int], None] | None = None,
    ledger: Ledger | None = None,
) -> Iterator[Sample]:
    """Sample every request. A sample depends on its request alone, not on the batch it was drawn in.

    Requests whose policies differ in structure (say LC and an entropy bound) are batched apart; numbers such as
    T_pos may differ from row to row. Long rows go first, so that a batch holds rows of similar length.
    batch_size: None takes what should fit into memory; if it does not, the batch is halved and goes on.
    cache: None is exact; "prefix" and "dual" are Fast-dLLM's approximations for bidirectional models.
    `on_step(rows)` is called after every step with the number of rows in the batch; a `ledger` keeps time.
    """
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size must be >= 1, not {batch_size}")
    waiting = list(requests)
    for request in waiting:
        check(request, model)
    check_cache(model, cache)
    if not waiting:
        return iter(())
    if batch_size is None:
        batch_size, why = fit_batch(model, waiting, cache)
        log.info("batch size %d: %s (set batch_size to change it)", batch_size, why)
    waiting.sort(key=lambda r: (r.policy.structure, -len(r.prompt) - r.length))
    groups = [list(group) for _, group in groupby(waiting, key=lambda r: r.policy.structure)]
    clock = ledger or Ledger()
    return (s for group in groups for s in _decode(model, group, batch_size, cache, on_step, clock))


@torch.inference_mode()
def _decode(
    model: Denoiser, waiting: list[Request], slots: int, cache: str | None, on_step, ledger: Ledger
) -> Iterator[Sample]:
    scheduler = Scheduler(waiting, min(slots, len(waiting)))
    scheduler.fill()
    batch: Batch | None = None
    with ledger.watching():
        while scheduler.running:
            ledger.start()
            rows = len(scheduler.running)
            finished: list[int] | None = None
            try:
                batch = batch or Batch(model, scheduler.running, waiting, cache)
                finished = batch.step(ledger)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
            if batch is None or finished is None:
                # Not inside `except`, where the error would keep the failed step's tensors alive.
                dropped = scheduler.halve()
                log.warning("out of memory with %d rows; going on with %d", rows, len(scheduler.running))
                if batch is not None:
                    batch.drop(dropped)
                continue
            ledger.step(rows)
            if on_step is not None:
                on_step(rows)
            if finished:
                yield from batch.samples(finished)
                ledger.start()
                _, refilled, dropped = scheduler.finish(finished)
                batch.refill(refilled)
                batch.drop(dropped)
                ledger.lap("bookkeeping")
