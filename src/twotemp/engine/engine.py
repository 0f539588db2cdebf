"""The decoding loop, one for every model, policy and cache. Token ids in, samples out, in the order rows finish."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypedDict, Unpack

import torch

from twotemp.engine.batch import Batch, Observer, RowStep
from twotemp.engine.graphs import Graphs
from twotemp.engine.runner import check_cache, runner_for
from twotemp.engine.scheduler import (
    CatchOutOfMemory,
    Scheduler,
    block_of,
    check_group,
    final_length_of,
    fit_batch,
    gather,
    has_canvases,
    widths,
)
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.records import Request, Sample, integer

log = logging.getLogger("twotemp")


class EngineOptions(TypedDict, total=False):
    """How rows are decoded: keywords of `events`, which explains them."""

    batch_size: int | None
    cache: str | None
    columns: int | None
    graphs: Graphs | None
    observer: Observer | None


def run(model: Denoiser, requests: Iterable[Request], **options: Unpack[EngineOptions]) -> Iterator[Sample]:
    """Yield a sample of every request, as token ids, in the order in which they finish: see `events`."""
    return (event for _, event in events(model, requests, **options) if isinstance(event, Sample))


def events(
    model: Denoiser,
    requests: Iterable[Request],
    *,
    watch: bool = False,
    batch_size: int | None = None,
    cache: str | None = None,
    columns: int | None = None,
    graphs: Graphs | None = None,
    observer: Observer | None = None,
) -> Iterator[tuple[Request, RowStep | Sample]]:
    """Yield each request with its sample, as token ids, in the order in which rows finish.

    A sample depends on its request alone, not on the batch it was drawn in. Requests are trusted: they are checked
    where they are created (`scheduler.check_request`, called by `sampling.requests`).

    Requests whose policies differ in structure (say LC and an entropy bound) are batched apart; numbers such as
    T_pos may differ from row to row. Long rows go first, so that a batch holds rows of similar length.

    Args:
        model: The model.
        requests: What to sample.
        watch: Yield what each step wrote into a row as well (`RowStep`), before the row's sample.
        batch_size: Rows of a batch, at most. None takes what should fit into memory; if it does not, the batch is
            halved and the run continues.
        cache: None is exact; "prefix" and "dual" are Fast-dLLM's approximations for bidirectional models.
        columns: Fixes the shape of every forward pass to `batch_size` rows of this many columns. In half precision,
            rounding depends on the shape, so a sample depends on its request alone only if the shape is fixed.
        graphs: With `columns`: replays forward passes instead of starting every kernel, as `graphs.CudaGraphs` does.
        observer: Called around every turn and after every step, for instance a `Profiler`, which measures time.
    """
    waiting = list(requests)
    check_options(model, batch_size, cache, columns, graphs)
    if not waiting:
        return iter(())
    structure = partial(_batch_key, model, columns)
    waiting.sort(key=lambda r: (structure(r), -len(r.prompt) - r.length))
    batches = [gather(list(alike)) for _, alike in groupby(waiting, key=structure)]
    if batch_size is None:
        batch_size, reason = fit_batch(model, waiting, cache)
        if (largest := max(len(group) for queue in batches for group in queue)) > batch_size:
            batch_size, reason = largest, "the largest group of samples that repel each other"
        log.info("batch size %d: %s (set batch_size to change it)", batch_size, reason)
    for group in (group for queue in batches for group in queue):
        check_group(group, batch_size)
    shape = (batch_size, cache, columns, graphs)
    return (
        event
        for queue in batches
        for event in _drain(LiveBatches(model, *shape, observer=observer), queue, watch)
    )


def check_options(
    model: Denoiser,
    batch_size: int | None = None,
    cache: str | None = None,
    columns: int | None = None,
    graphs: Graphs | None = None,
    observer: Observer | None = None,
) -> None:
    """Raise a UserError for options that this model cannot be decoded with."""
    check_cache(model, cache)
    if batch_size is not None:
        integer("batch_size", batch_size, least=1)
    if columns is not None and has_canvases(model):
        raise UserError(f"{model.name} computes canvases of one shape already; leave columns out")
    if columns is not None and integer("columns", columns, least=1) and (cache is not None or not batch_size):
        raise UserError(
            "columns fixes the shape of every forward pass: set batch_size as well, and leave cache out"
        )
    if graphs is not None and columns is None:
        raise UserError("graphs replay forward passes of one shape: set columns and batch_size as well")


def _batch_key(model: Denoiser, columns: int | None, request: Request) -> tuple[Hashable, ...]:
    """Return what requests of one batch share: their policy's structure and, if the shape is fixed, their block."""
    return (*request.policy.structure, *([] if columns is None else [block_of(request, model)]))


def _drain(
    live: LiveBatches, queue: list[list[Request]], watch: bool
) -> Iterator[tuple[Request, RowStep | Sample]]:
    """Submit all groups and yield their events."""
    for group in queue:
        live.submit_group(group, watch)
    while not live.idle:
        for handle, event in live.turn():
            if isinstance(event, Exception):
                raise event
            yield handle.request, event


@dataclass(eq=False)  # two handles are never equal, even for equal requests
class RowHandle:
    """A request in `LiveBatches`: it waits, or is decoded as a row. Callers of a service hold a `backends.Handle`."""

    request: Request
    watched: bool = False  # whether each of its steps is reported as an event


# What happened to a request: a step of a watched row, then either its sample or its error: a `UserError` if it is
# about the request, any other exception if its whole batch failed.
RowEvent = RowStep | Sample | Exception


class LiveBatches:
    """Batches that requests may join and leave while they run, one for each policy structure.

    A sample does not depend on when its request arrived. Not thread-safe: one thread submits, cancels and turns.
    `backends.local.LocalService` has such a thread, and turns the token ids into text.
    """

    def __init__(
        self,
        model: Denoiser,
        slots: int,
        cache: str | None = None,
        columns: int | None = None,
        graphs: Graphs | None = None,
        *,
        observer: Observer | None = None,
    ) -> None:
        """Create an engine without requests. `slots` limits the rows of each batch; for the rest see `events`."""
        check_options(model, slots, cache, columns, graphs)
        self.model, self.slots, self.cache, self.columns, self.graphs = model, slots, cache, columns, graphs
        self.observer = observer or Observer()
        self._loops: dict[Hashable, _BatchLoop] = {}
        # The rows of each `Request.group`, whose samples repel each other.
        self._groups: dict[Hashable, list[RowHandle]] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._loops

    def submit(self, request: Request, watch: bool = False) -> RowHandle:
        """Queue a request; its row joins a batch as soon as a slot is free. With `watch` every step is an event."""
        return self.submit_group([request], watch)[0]

    def submit_group(self, requests: Sequence[Request], watch: bool = False) -> list[RowHandle]:
        """Queue a whole group of trusted requests: samples that repel each other, or a single one."""
        first = requests[0]
        check_group(requests, self.slots)
        if self.columns is not None and (needed := final_length_of(first, self.model)) > self.columns:
            raise UserError(f"{first.name} needs {needed} columns, more than columns={self.columns}")
        handles = [RowHandle(request, watch) for request in requests]
        if first.group is not None and self._groups.setdefault(first.group, handles) is not handles:
            raise UserError(f"{first.name}: its group is being drawn already; wait for it")
        key = _batch_key(self.model, self.columns, first)
        if key not in self._loops:
            self._loops[key] = _BatchLoop(self)
        self._loops[key].scheduler.add(handles)
        return handles

    def cancel(self, handle: RowHandle) -> None:
        """Remove a request, waiting or running, and its group with it; there will be no further event."""
        if loop := self._loops.get(_batch_key(self.model, self.columns, handle.request)):
            loop.scheduler.cancel(handle)
        self._forget(handle)

    def turn(self) -> list[tuple[RowHandle, RowEvent]]:
        """Take one step of every batch.

        Returns:
            What was written into watched rows, then the samples of rows that finished and the errors of rows that
            failed. A batch that fails as a whole is abandoned; the others continue.
        """
        events: list[tuple[RowHandle, RowEvent]] = []
        for key, loop in list(self._loops.items()):
            try:
                if not loop.scheduler.idle:
                    events += loop.turn()
            except Exception as error:
                events += [(handle, error) for handle in loop.scheduler.clear()]
            if loop.scheduler.idle:
                del self._loops[key]
        for handle, event in events:
            if not isinstance(event, RowStep):
                self._forget(handle)
        return events

    def _forget(self, handle: RowHandle) -> None:
        """Allow the handle's group to be submitted again, unless it already was."""
        group = handle.request.group
        if handle in self._groups.get(group, ()):
            del self._groups[group]


class _BatchLoop:
    """Requests that are decoded together: those that wait, and the batch."""

    def __init__(self, live: LiveBatches) -> None:
        self.model, self.cache, self.observer = live.model, live.cache, live.observer
        self.columns, self.graphs = live.columns, live.graphs
        self.scheduler: Scheduler[RowHandle] = Scheduler((), live.slots)
        self.batch: Batch | None = None

    @torch.inference_mode()
    def turn(self) -> list[tuple[RowHandle, RowEvent]]:
        """Schedule, run, commit: take one step of every row."""
        with self.observer.turn():
            with CatchOutOfMemory() as attempt:
                batch = self._schedule()
                view = batch.run(self.observer)
                self.batch = None  # if the commit fails, rows are half written and have to start again
                finished, failed = batch.commit(view)
                self.batch = batch
            if attempt.ran_out:
                return self._recover()
            self.observer.step(view)
            handles = self.scheduler.running
            events: list[tuple[RowHandle, RowEvent]] = []
            if watched := [n for n, handle in enumerate(handles) if handle.watched and n not in failed]:
                events += [(handles[slot], step) for slot, step in zip(watched, view.row_steps(watched))]
            samples = zip(finished, batch.samples(finished)) if finished else ()
            events += [(handles[slot], sample) for slot, sample in samples]
            events += [(handles[slot], error) for slot, error in failed.items()]
            self.scheduler.finish([*finished, *failed])
            return events

    def _schedule(self) -> Batch:
        """Return the batch with the rows that run now."""
        change = self.scheduler.schedule()
        batch, self.batch = self.batch, None
        if batch is None:
            running = [handle.request for handle in self.scheduler.running]
            waiting = [handle.request for group in self.scheduler.waiting for handle in group]
            if self.columns is None:
                columns, block = widths(running + waiting, self.model)
                runner = runner_for(self.model, len(running), columns, self.cache)
            else:
                columns, block = self.columns, min(self.columns, block_of(running[0], self.model))
                slots, graphs = self.scheduler.slots, self.graphs
                runner = runner_for(self.model, len(running), columns, fixed_rows=slots, graphs=graphs)
            batch = Batch(self.model, running, columns, block, runner)
        else:
            added = [handle.request for handle in change.added]
            refilled = {slot: handle.request for slot, handle in change.refilled.items()}
            if new := [*added, *refilled.values()]:
                batch.widen(*widths(new, self.model))
            batch.refill(refilled)
            batch.drop(change.dropped)
            batch.append(added)
        self.batch = batch
        return batch

    def _recover(self) -> list[tuple[RowHandle, RowEvent]]:
        """Send half of the rows back to the queue after running out of memory.

        If there is not even enough memory to shrink the batch, it is abandoned and its rows start again, with the
        same samples. A row that does not fit alone fails alone.
        """
        rows = len(self.scheduler.running)
        if self.columns is not None:
            raise UserError(f"a fixed shape of {self.scheduler.slots} rows does not fit; lower batch_size")
        try:
            dropped = self.scheduler.halve()
        except UserError as error:
            self.batch = None  # it is as wide as these rows: the next ones would not fit either
            self.scheduler.finish(range(rows))
            return [(handle, error) for handle in self.scheduler.running]
        log.warning("out of memory with %d rows; continuing with %d", rows, len(self.scheduler.running))
        batch, self.batch = self.batch, None
        if batch is not None:
            with CatchOutOfMemory():
                batch.drop(dropped)
                self.batch = batch
        return []
