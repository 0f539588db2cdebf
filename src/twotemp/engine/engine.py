"""The loop: one for every model, policy and cache. Token ids in, samples out, in the order rows finish."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import torch

from twotemp import groups
from twotemp.engine.batch import Batch
from twotemp.engine.memory import Survived, fit_batch
from twotemp.engine.observer import Observer, Written
from twotemp.engine.rows import block_of, span_of, widths
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
    columns: int | None = None,
    observer: Observer | None = None,
) -> Iterator[Sample]:
    """Yield a sample of every request, as token ids, in the order in which they finish.

    A sample depends on its request alone, not on the batch it was drawn in. Requests are trusted: whoever creates
    one calls `rows.check`, as `sampling.prompts` does.

    Requests whose policies differ in structure (say LC and an entropy bound) are batched apart; numbers such as
    T_pos may differ from row to row. Long rows go first, so that a batch holds rows of similar length.
    batch_size: None takes what should fit into memory; if it does not, the batch is halved and goes on.
    cache: None is exact; "prefix" and "dual" are Fast-dLLM's approximations for bidirectional models.
    columns: fixes the shape of every forward pass to batch_size rows of so many columns. In half precision rounding
    depends on the shape, so that a sample depends on its request alone only where the shape is always the same.
    observer: sees every step, and keeps time if it likes; a `Ledger` for one.
    """
    found = events(model, requests, batch_size=batch_size, cache=cache, columns=columns, observer=observer)
    return (event for _, event in found if isinstance(event, Sample))


def events(
    model: Denoiser,
    requests: Iterable[Request],
    *,
    watch: bool = False,
    batch_size: int | None = None,
    cache: str | None = None,
    columns: int | None = None,
    observer: Observer | None = None,
) -> Iterator[tuple[Request, Written | Sample]]:
    """Yield each request's sample with the request; requests are trusted: see `rows.check`.

    Args:
        watch: Also yield what every step wrote into a row, before its sample.
        batch_size, cache, columns, observer: See `run`.
    """
    waiting = list(requests)
    _check_shape(model, cache, batch_size, columns)
    if not waiting:
        return iter(())
    lane = partial(_lane_of, model, columns)
    waiting.sort(key=lambda r: (lane(r), -len(r.prompt) - r.length))
    lanes = [groups.gather(list(some)) for _, some in groupby(waiting, key=lane)]
    if batch_size is None:
        batch_size, why = fit_batch(model, waiting, cache)
        if (largest := max(len(group) for some in lanes for group in some)) > batch_size:
            batch_size, why = largest, "the largest group of samples that repel each other"
        log.info("batch size %d: %s (set batch_size to change it)", batch_size, why)
    for group in (group for some in lanes for group in some):
        groups.check_whole(group, batch_size)
    shape = (batch_size, cache, columns)
    return (found for some in lanes for found in _finish(Live(model, *shape, observer=observer), some, watch))


def _check_shape(model: Denoiser, cache: str | None, batch_size: int | None, columns: int | None) -> None:
    check_cache(model, cache)
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size must be >= 1, not {batch_size}")
    if columns is not None and (cache is not None or batch_size is None):
        raise UserError(
            "columns fixes the shape of every forward pass: give batch_size too, and leave cache out"
        )


def _lane_of(model: Denoiser, columns: int | None, request: Request) -> tuple[Hashable, ...]:
    """Which requests are decoded together: policies of one structure and, where the shape is fixed, of one block."""
    return (*request.policy.structure, *([] if columns is None else [block_of(request, model)]))


def _finish(
    live: Live, waiting: list[list[Request]], watch: bool
) -> Iterator[tuple[Request, Written | Sample]]:
    """Submit all, take turns until nothing is left."""
    for group in waiting:
        live.submit_group(group, watch)
    while not live.idle:
        for ticket, event in live.turn():
            if isinstance(event, Exception):
                raise event
            yield ticket.request, event


@dataclass(eq=False)  # two tickets are never the same, even for equal requests
class Ticket:
    """A request that was submitted."""

    request: Request
    watched: bool = False  # is every step of it an event?
    group: object = field(default_factory=object)  # the same for those that run together


# What happened to a request: a step of a watched row, then either its sample or what went wrong with it: a
# `UserError` where it is about the request, anything else where its whole batch failed.
Event = Written | Sample | Exception


class Live:
    """Batches that requests may join and leave while they run, one for each structure of policies.

    A sample is the same whenever its request arrived. Not thread-safe: one thread submits, cancels and turns.
    """

    def __init__(
        self,
        model: Denoiser,
        slots: int,
        cache: str | None = None,
        columns: int | None = None,
        *,
        observer: Observer | None = None,
    ) -> None:
        """slots: the rows of each batch, at most; cache, columns and observer: see `run`."""
        _check_shape(model, cache, slots, columns)
        self.model, self.slots, self.cache, self.columns = model, slots, cache, columns
        self.observer = observer or Observer()
        self._lanes: dict[Hashable, _Lane] = {}
        self._groups: dict[Hashable, object] = {}  # of samples that repel each other: `Ticket.group` of each

    @property
    def idle(self) -> bool:
        return not self._lanes

    def submit(self, request: Request, watch: bool = False) -> Ticket:
        """Line up; the row joins its batch as soon as there is a slot. watch: tell what each step writes."""
        return self.submit_group([request], watch)[0]

    def submit_group(self, requests: Sequence[Request], watch: bool = False) -> list[Ticket]:
        """Line up a whole group: samples that repel each other, or one that repels none. Requests are trusted."""
        first = requests[0]
        groups.check_whole(requests, self.slots)
        if self.columns is not None and (needed := span_of(first, self.model)) > self.columns:
            raise UserError(f"request {first.id!r} needs {needed} columns, more than columns={self.columns}")
        together = object()
        if first.group is not None and self._groups.setdefault(first.group, together) is not together:
            raise UserError(f"request {first.id!r}: its group is being drawn already; wait for it")
        key = _lane_of(self.model, self.columns, first)
        if key not in self._lanes:
            self._lanes[key] = _Lane(self.model, self.slots, self.cache, self.columns, self.observer)
        tickets = [Ticket(request, watch, together) for request in requests]
        for ticket in tickets:
            self._lanes[key].scheduler.add(ticket)
        return tickets

    def cancel(self, ticket: Ticket) -> None:
        """Take a request out, waiting or running, and its group with it; there will be no further event."""
        if lane := self._lanes.get(_lane_of(self.model, self.columns, ticket.request)):
            lane.scheduler.cancel(ticket)
        self._forget(ticket)

    def turn(self) -> list[tuple[Ticket, Event]]:
        """One step of every batch: what it wrote into watched rows, and of the rows that ended their samples, or
        what went wrong with them. A batch that fails as a whole is given up; the others go on."""
        events: list[tuple[Ticket, Event]] = []
        for key, lane in list(self._lanes.items()):
            try:
                if not lane.scheduler.idle:
                    events += lane.turn()
            except Exception as error:
                events += [(ticket, error) for ticket in lane.scheduler.clear()]
            if lane.scheduler.idle:
                del self._lanes[key]
        for ticket, event in events:
            if not isinstance(event, Written):
                self._forget(ticket)
        return events

    def _forget(self, ticket: Ticket) -> None:
        """Its group is over. (It may have been submitted again since.)"""
        group = ticket.request.group
        if self._groups.get(group) is ticket.group:
            del self._groups[group]


class _Lane:
    """Requests that are decoded together: those that wait, and the batch."""

    def __init__(
        self, model: Denoiser, slots: int, cache: str | None, columns: int | None, observer: Observer
    ) -> None:
        self.model, self.cache, self.columns, self.observer = model, cache, columns, observer
        self.scheduler: Scheduler[Ticket] = Scheduler((), slots, lambda ticket: ticket.group)
        self.batch: Batch | None = None

    @torch.inference_mode()
    def turn(self) -> list[tuple[Ticket, Event]]:
        """Schedule, run, commit: one step of every row."""
        with self.observer.turn():
            with Survived() as attempt:
                batch = self._schedule()
                view = batch.run(self.observer)
                self.batch = None  # rows that are only half written would have to begin again
                finished, failed = batch.commit(view)
                self.batch = batch
            if attempt.ran_out:
                return self._recover()
            self.observer.step(view)
            tickets = self.scheduler.running
            events: list[tuple[Ticket, Event]] = []
            if seen := [n for n, ticket in enumerate(tickets) if ticket.watched and n not in failed]:
                events += [(tickets[slot], written) for slot, written in zip(seen, view.written(seen))]
            samples = zip(finished, batch.samples(finished)) if finished else ()
            events += [(tickets[slot], sample) for slot, sample in samples]
            events += [(tickets[slot], error) for slot, error in failed.items()]
            self.scheduler.finish([*finished, *failed])
            return events

    def _schedule(self) -> Batch:
        """The batch with the rows that are due."""
        moves = self.scheduler.schedule()
        batch, self.batch = self.batch, None
        if batch is None:
            known = [ticket.request for ticket in (*self.scheduler.running, *self.scheduler.waiting)]
            running = known[: len(self.scheduler.running)]
            wide, block = widths(known, self.model)
            if self.columns is None:
                batch = Batch(self.model, running, wide, block, self.cache)
            else:
                block = min(self.columns, block_of(running[0], self.model))
                batch = Batch(self.model, running, self.columns, block, fixed_rows=self.scheduler.slots)
        else:
            added = [ticket.request for ticket in moves.added]
            refilled = {slot: ticket.request for slot, ticket in moves.refilled.items()}
            if new := [*added, *refilled.values()]:
                batch.widen(*widths(new, self.model))
            batch.refill(refilled)
            batch.drop(moves.dropped)
            batch.append(added)
        self.batch = batch
        return batch

    def _recover(self) -> list[tuple[Ticket, Event]]:
        """Out of memory: half of the rows wait again. A batch that cannot even be made smaller is given up and its
        rows begin again; their samples are the same. Who does not fit alone fails alone."""
        rows = len(self.scheduler.running)
        if self.columns is not None:
            raise UserError(f"a fixed shape of {self.scheduler.slots} rows does not fit; lower batch_size")
        try:
            dropped = self.scheduler.halve()
        except UserError as error:
            self.batch = None  # as wide as they are: whoever comes next would not fit either
            self.scheduler.finish(range(rows))
            return [(ticket, error) for ticket in self.scheduler.running]
        log.warning("out of memory with %d rows; going on with %d", rows, len(self.scheduler.running))
        batch, self.batch = self.batch, None
        if batch is not None:
            with Survived():
                batch.drop(dropped)
                self.batch = batch
        return []
