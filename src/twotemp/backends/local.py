"""The protocols for drawing samples, `Backend` (batch work) and `Service` (live work), and both in this process.

All sampling in the package goes through one of them. They turn the engine's token ids into text.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from time import perf_counter
from typing import Protocol, Unpack

from torch import Tensor

from twotemp import engine
from twotemp.engine import EngineOptions, LiveBatches, Observer, RowHandle, RowStep
from twotemp.engine.engine import check_options
from twotemp.engine.scheduler import MOST_ROWS, fit_batch, gather, refuse_groups
from twotemp.errors import UserError
from twotemp.models.base import Denoiser, LanguageModel, LoadedModel, language_model
from twotemp.policies import policy
from twotemp.records import Request, Sample
from twotemp.sampling.requests import CHUNK, Prefix, finish

log = logging.getLogger("twotemp")
LARGEST_CHUNK = 8192  # only a prompt with more samples is divided
# Steps of a watched row, then the request's sample or its error.
Event = RowStep | Sample | UserError
OnEvent = Callable[[Event], None]


class StepFailed(UserError):
    """A step of the engine failed; the cause is only logged, because it may concern another request."""


class Backend(Protocol):
    """Draws the samples of requests, wherever the model is."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def fingerprint(self) -> str:
        """A hash of the model: samples of different weights never mix in a run."""

    @property
    def workers(self) -> int:
        """How many processes draw at the same time."""

    @property
    def text(self) -> LanguageModel:
        """The model's tokenizer and special ids, with which requests are made; its weights may be elsewhere."""

    def sample(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Yield a sample with its text for each request, as they finish.

        There may be any number of requests: they are read as work runs out. A sample has its request's `tag`.
        """


@dataclass(eq=False)  # two handles are never the same, even for equal requests
class Handle:
    """A request that a service has accepted, and the callback for its events."""

    request: Request
    on_event: OnEvent
    watch: bool = False

    def deliver(self, event: Event) -> bool:
        """Pass on an event; return False if the listener raised, which must not harm other requests."""
        try:
            self.on_event(event)
        except Exception:
            log.exception("the listener of %s failed; the request is canceled", self.request.name)
            return False
        return True


class Service(Protocol):
    """Draws requests that arrive one by one, from any thread."""

    @property
    def load(self) -> int:
        """How many requests are accepted and not finished."""

    def submit(self, request: Request, on_event: OnEvent, *, watch: bool = False) -> Handle:
        """Accept a request.

        Args:
            request: What to draw; a policy whose samples repel each other is refused.
            on_event: Called in the service's thread with each event; it must not block. The last event is a `Sample`
                with its text, or a `UserError`.
            watch: Report every step of the row as an event as well.
        """

    def cancel(self, handle: Handle) -> None:
        """Free the request's row. No event follows, except one that is being delivered."""

    def close(self, *, drop: bool = False) -> None:
        """Accept no new requests and return when all have finished; with `drop`, cancel them instead."""


def chunks(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """Yield requests in lists of about `CHUNK` with one tag; the requests of a question stay together.

    Samples that repel each other belong to one question, and are never separated.
    """
    chunk: list[Request] = []
    for request in requests:
        if chunk and _starts_chunk(request, chunk[-1], len(chunk)):
            yield chunk
            chunk = []
        chunk.append(request)
    if chunk:
        yield chunk


def _starts_chunk(request: Request, last: Request, size: int) -> bool:
    if request.tag != last.tag or (size >= CHUNK and request.id != last.id):
        return True
    return size >= LARGEST_CHUNK and (request.group is None or request.group != last.group)


class LocalBackend:
    """A `Backend` whose model is in this process."""

    workers = 1

    def __init__(self, model: Denoiser, **options: Unpack[EngineOptions]) -> None:
        """Keep a model and how to decode with it."""
        check_options(model, **options)
        self.model, self.text, self.name, self._options = model, language_model(model), model.name, options

    @property
    def fingerprint(self) -> str:
        return self.text.fingerprint

    def sample(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """See `Backend.sample`."""
        return (event for _, event in self.events(requests) if isinstance(event, Sample))

    def events(
        self, requests: Iterable[Request], *, watch: bool = False
    ) -> Iterator[tuple[Request, RowStep | Sample]]:
        """Yield (request, sample) pairs; with `watch`, first the tokens that each step of the row wrote."""
        for chunk in chunks(requests):
            for request, event in engine.events(self.model, chunk, watch=watch, **self._options):
                yield request, finish(self.text, request, event) if isinstance(event, Sample) else event


def fit_longest_rows(model: Denoiser, cache: str | None) -> int:
    """Return how many rows fit into memory if each fills the model's context, under the policy that needs most."""
    longest = Request("longest", (0,), policy("klass"), length=(model.max_length or 1024) - 1)
    return fit_batch(model, [longest] * MOST_ROWS, cache)[0]


@dataclass
class _Row:
    """What the service knows of a handle's row while the engine decodes it."""

    row_handle: RowHandle
    began: float
    prefix: Prefix | None  # of a row that is freed as soon as its text contains a stop string


class LocalService:
    """A `Service` that runs the engine in a thread for as long as the context lasts.

    Leaving the context finishes all accepted requests; leaving it by an exception drops them. A row with NaN logits
    ends with an error for its request only. An error of a whole batch is a `StepFailed` for the requests in it; the
    service and other batches continue.

    >>> import twotemp, queue
    >>> from twotemp.records import Request
    >>> model, events = twotemp.load("tiny"), queue.Queue()
    >>> ids = tuple(model.encode("3 7 12 -> 33"))
    >>> with LocalService(model, slots=4) as service:
    ...     handle = service.submit(Request("a", ids, twotemp.policy("lc"), length=8), events.put)
    >>> events.get().request
    'a'
    """

    def __init__(
        self,
        model: Denoiser,
        slots: int | None = None,
        cache: str | None = None,
        *,
        observer: Observer | None = None,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the engine; entering the context starts it.

        Args:
            model: What to decode with.
            slots: The maximum number of rows per batch; policies of different structure have separate batches. None
                for as many as fit into memory, estimated from the requests that start a batch.
            cache: See `twotemp.sample`.
            observer: Sees every step.
            on_turn: Called in the service's thread after every turn, when its events have been delivered.
        """
        self.model, self.text = model, language_model(model)
        self._slots, self._cache, self._on_turn = slots, cache, on_turn
        self._live = LiveBatches(model, 1 if slots is None else slots, cache, observer=observer)
        # Only the thread reads and writes these two.
        self._rows: dict[Handle, _Row] = {}
        self._handles: dict[RowHandle, Handle] = {}
        self._arrived: deque[Sequence[Handle]] = deque()
        self._canceled: deque[Handle] = deque()
        self._changed = Condition()
        self._open: set[Handle] = set()
        self._closing = False
        self._thread = Thread(target=self._run, name="twotemp-engine", daemon=True)

    def __enter__(self) -> LocalService:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(drop=kind is not None)

    def close(self, *, drop: bool = False) -> None:
        """See `Service.close`."""
        with self._changed:
            self._closing = True
            if drop:
                self._canceled.extend(self._open)
            self._changed.notify_all()
        self._thread.join()

    @property
    def load(self) -> int:
        """Return the number of unfinished requests, running or waiting."""
        return len(self._open)

    def submit(self, request: Request, on_event: OnEvent, *, watch: bool = False) -> Handle:
        """See `Service.submit`.

        The row of an untraced request is freed as soon as its text contains a stop string.
        """
        refuse_groups(request.policy, "a service that starts each row when it arrives")
        handle = Handle(request, on_event, watch)
        self.submit_handles([handle])
        return handle

    def submit_handles(self, handles: Sequence[Handle]) -> None:
        """Accept several requests at once; samples that repel each other must come together."""
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise UserError("the service is closing and accepts no new requests")
            self._open.update(handles)
            self._arrived.append(handles)
            self._changed.notify_all()

    def cancel(self, handle: Handle) -> None:
        """See `Service.cancel`."""
        with self._changed:
            self._canceled.append(handle)
            self._changed.notify_all()

    def assign(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite parameters of the model, by name, once all rows that were begun with the old ones have ended."""
        if not isinstance(self.model, LoadedModel):
            raise UserError(
                f"{self.model.name} was not loaded from a checkpoint; its weights cannot be changed"
            )
        with self._changed:
            self._changed.wait_for(lambda: not self._open and self._live.idle)
            self.model.assign(weights)

    # The following methods run in the service's thread.

    def _run(self) -> None:
        while self._update():
            events = self._live.turn()
            for error in {event for _, event in events if isinstance(event, Exception)}:
                if not isinstance(error, UserError):
                    log.error("a step failed; its requests are dropped", exc_info=error)
            for row_handle, event in events:
                if row_handle in self._handles:  # else an earlier event of this turn ended it
                    self._handle_event(self._handles[row_handle], event)
            self._on_turn()

    def _update(self) -> bool:
        """Start new requests and free canceled ones; wait if there is nothing to do. Return False at the end."""
        with self._changed:
            self._changed.notify_all()  # `assign` waits for rows to end
            self._changed.wait_for(
                lambda: self._arrived or self._canceled or not self._live.idle or self._closing
            )
            arrived, canceled = list(self._arrived), list(self._canceled)
            self._arrived.clear()
            self._canceled.clear()
        for handles in arrived:
            self._start(handles)
        for handle in canceled:
            self._free(handle)
        with self._changed:
            return not (self._closing and self._live.idle and not self._arrived)

    def _start(self, handles: Sequence[Handle]) -> None:
        # Long rows first, so that a batch holds rows of similar length.
        groups = gather(handles, lambda handle: handle.request)
        groups.sort(key=lambda group: -_columns(group[0].request))
        if self._slots is None:  # a batch that runs keeps its size
            fitting, _ = fit_batch(self.model, [groups[0][0].request] * MOST_ROWS, self._cache)
            self._live.slots = max(fitting, *map(len, groups))
        for group in groups:
            prefixes = [_prefix(self.text, handle.request) for handle in group]
            watch = any(handle.watch for handle in group) or any(prefixes)
            try:
                row_handles = self._live.submit_group([handle.request for handle in group], watch)
            except UserError as error:
                for handle in group:
                    self._end(handle, error)
                continue
            for handle, row_handle, prefix in zip(group, row_handles, prefixes):
                self._handles[row_handle] = handle
                self._rows[handle] = _Row(row_handle, perf_counter(), prefix)

    def _handle_event(self, handle: Handle, event: engine.RowEvent) -> None:
        if isinstance(event, Sample):
            self._end(handle, finish(self.text, handle.request, event))
        elif isinstance(event, Exception):
            self._end(handle, event if isinstance(event, UserError) else _step_failed(event))
        else:
            if handle.watch and not handle.deliver(event):
                self._free(handle)
            elif (prefix := self._rows[handle].prefix) is not None:
                prefix.write(event)
                if prefix.stopped:
                    self._end(handle, _stopped(handle.request, prefix, self._rows[handle].began))

    def _end(self, handle: Handle, event: Event) -> None:
        self._free(handle)
        handle.deliver(event)

    def _free(self, handle: Handle) -> None:
        if (row := self._rows.pop(handle, None)) is not None:
            del self._handles[row.row_handle]
            self._live.cancel(row.row_handle)  # nothing to do where the row has finished
        with self._changed:
            self._open.discard(handle)


def _columns(request: Request) -> int:
    return len(request.prompt) + request.length


def _prefix(text: LanguageModel, request: Request) -> Prefix | None:
    """Return the prefix of a row that may end at a stop string; None for a traced or infilled row, which may not."""
    early = request.stop and request.length and not request.trace and text.tokenizer is not None
    return Prefix(text, request) if early else None


def _stopped(request: Request, prefix: Prefix, began: float) -> Sample:
    """Return the sample of a row that was freed at a stop string: its committed prefix."""
    return Sample(
        *request.key,
        request.policy,
        request.prompt,
        prefix.positions,
        prefix.tokens,
        nfe=prefix.steps,
        forwards=prefix.steps,
        processed=prefix.steps * _columns(request),
        seconds=perf_counter() - began,
        finish="stop",
        text=prefix.text,
        tag=request.tag,
    )


def _step_failed(error: Exception) -> StepFailed:
    failed = StepFailed("a step failed; see the log for the cause")
    failed.__cause__ = error
    return failed
