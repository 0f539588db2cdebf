"""A thread that owns a `Live`: requests come from any thread at any time, events go back as they happen."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread

from twotemp.engine.engine import Event, Live, RowHandle
from twotemp.engine.observer import Observer, Written
from twotemp.engine.prefix import Prefix
from twotemp.engine.rows import check
from twotemp.errors import UserError
from twotemp.groups import refuse
from twotemp.models.base import Denoiser, language_model
from twotemp.records import Request, Sample

log = logging.getLogger("twotemp")


@dataclass(frozen=True)
class Stopped:
    """The row was freed before its end, as its text ends before a stop string."""

    text: str
    tokens: tuple[int, ...]  # of the committed prefix, the stop string's among them
    steps: int


@dataclass(eq=False)
class Job:
    """A request in the hands of the service. The last event is a `Sample`, a `Stopped` or a `UserError`."""

    request: Request
    on_event: Callable[[Event | Stopped], None]  # called in the service's thread; must not block
    watch: bool
    prefix: Prefix | None  # where there are stop strings
    ticket: RowHandle | None = field(default=None, init=False)


class Service:
    """Decodes in a thread for as long as the context lasts.

    Leaving the context finishes what was accepted and refuses what comes after; leaving it by an exception drops
    everything. One row's NaN is one job's error. An error of a whole batch is an error of the jobs in it; those of
    other batches, and the service, go on.

    >>> import twotemp, queue
    >>> from twotemp.records import Request
    >>> model, events = twotemp.load("tiny"), queue.Queue()
    >>> ids = tuple(model.encode("3 7 12 -> 33"))
    >>> with Service(model, slots=4) as service:
    ...     job = service.submit(Request("a", ids, twotemp.policy("lc"), length=8), events.put)
    >>> events.get().request
    'a'
    """

    def __init__(
        self, model: Denoiser, slots: int, cache: str | None = None, observer: Observer | None = None
    ) -> None:
        """slots: the rows of each batch, at most; policies of another structure have a batch of their own."""
        self.model = model
        self._text = language_model(model)
        self._live = Live(model, slots, cache, observer=observer)
        self._jobs: dict[RowHandle, Job] = {}  # the thread's own
        self._arrived: deque[Job] = deque()
        self._left: deque[Job] = deque()
        self._changed = Condition()
        self._open: set[Job] = set()
        self._closing = False
        self._thread = Thread(target=self._run, name="twotemp-engine", daemon=True)

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(drop=kind is not None)

    def close(self, *, drop: bool = False) -> None:
        """Take nothing new, and finish what was accepted; drop: forget it instead."""
        with self._changed:
            self._closing = True
            if drop:
                self._left.extend(self._open)
            self._changed.notify_all()
        self._thread.join()

    @property
    def load(self) -> int:
        """Jobs accepted and not over: rows that run and rows that wait."""
        return len(self._open)

    def submit(
        self,
        request: Request,
        on_event: Callable[[Event | Stopped], None],
        *,
        watch: bool = False,
        stop: Sequence[str] = (),
    ) -> Job:
        """Accept a request, or raise at once if it cannot be sampled.

        watch: every step is an event, a `Written`. stop: strings before which the text ends; the row is free for
        another request as soon as one of them lies in the committed prefix.
        """
        check(request, self.model)
        refuse(request.policy, "a service that takes rows as they come")
        job = Job(request, on_event, watch, Prefix(self._text, request, stop) if stop else None)
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise UserError("the service is closing; it takes no new work")
            self._open.add(job)
            self._arrived.append(job)
            self._changed.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """Nobody waits for it any more: free its row. No further event, but for one that is on its way."""
        with self._changed:
            self._left.append(job)
            self._changed.notify_all()

    # In the thread.

    def _run(self) -> None:
        while self._take_in():
            events = self._live.turn()
            for error in {event for _, event in events if isinstance(event, Exception)}:
                if not isinstance(error, UserError):
                    log.error("a step failed; the requests in it are given up", exc_info=error)
            for ticket, event in events:
                if ticket in self._jobs:  # else an event before this one stopped it
                    self._tell(self._jobs[ticket], event)

    def _take_in(self) -> bool:
        """What arrived and who left, waiting while there is nothing to do; False at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._arrived or self._left or not self._live.idle or self._closing
            )
            arrived, left = list(self._arrived), list(self._left)
            self._arrived.clear()
            self._left.clear()
        for job in arrived:
            job.ticket = self._live.submit(job.request, watch=job.watch or job.prefix is not None)
            self._jobs[job.ticket] = job
        for job in left:
            self._free(job)
        with self._changed:
            return not (self._closing and self._live.idle and not self._arrived)

    def _tell(self, job: Job, event: Event) -> None:
        if isinstance(event, Exception) and not isinstance(event, UserError):
            # What went wrong may be another one's text: it is for the log.
            said = UserError("a step failed; the log says why")
            said.__cause__ = event
            event = said
        if not isinstance(event, Written):
            self._end(job, event)
            return
        if job.watch:
            self._call(job, event)
        if (prefix := job.prefix) is not None:
            prefix.write(event)
            if prefix.stopped:
                self._end(job, Stopped(prefix.text, tuple(prefix.tokens), prefix.steps))

    def _end(self, job: Job, event: Sample | Stopped | Exception) -> None:
        self._free(job)
        self._call(job, event)

    def _free(self, job: Job) -> None:
        if job.ticket in self._jobs:
            del self._jobs[job.ticket]
            self._live.cancel(job.ticket)  # nothing to do where the row is over
        with self._changed:
            self._open.discard(job)

    def _call(self, job: Job, event: Event | Stopped) -> None:
        try:
            job.on_event(event)
        except Exception:
            log.exception("an event of request %r could not be delivered; it is given up", job.request.id)
            self._free(job)
