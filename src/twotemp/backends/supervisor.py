"""A service with workers: tracks which worker owes which requests, and resends them if the worker is lost."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Condition, Thread
from time import monotonic
from typing import Any, Self

from safetensors.torch import save
from torch import Tensor

from twotemp.backends.local import Event, Handle, OnEvent
from twotemp.backends.messages import (
    AnyTransport,
    Assign,
    Cancel,
    Events,
    Failed,
    Lost,
    Ready,
    Report,
    Submit,
)
from twotemp.engine import RowStep
from twotemp.engine.scheduler import refuse_groups
from twotemp.errors import UserError
from twotemp.records import Request

log = logging.getLogger("twotemp")

ATTEMPTS = 3  # losses after which a request fails, or a slot whose workers are lost while loading is given up
HANG_SECONDS = 600.0  # a worker that has work and takes no step for this long is considered hung
LOAD_SECONDS = 3600.0  # a worker that takes longer to load the model is considered hung
TICK_SECONDS = 0.2  # between two checks for timeouts


@dataclass(eq=False)
class _Job(Handle):
    """A request that is owed to a caller."""

    number: int = field(default=0, kw_only=True)
    worker: _WorkerSlot | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)  # steps of a watched row that were delivered
    losses: int = field(default=0, init=False)  # workers that were lost with it
    done: bool = field(default=False, init=False)  # finished or canceled: nothing more is delivered


@dataclass(eq=False)
class _WorkerSlot:
    """A slot of the pool: a worker, replaced when it is lost, and the jobs it was sent.

    A job leaves `jobs` when the worker reports its end, or acknowledges that it was canceled. So a worker that
    hangs keeps its load, and its clock runs, even if all callers have canceled what it owed.
    """

    index: int
    link: Any
    last_report: float = field(default_factory=monotonic)
    ready: bool = False
    failures: int = 0  # workers lost here in turn while they loaded the model
    jobs: dict[int, _Job] = field(default_factory=dict)

    def send(self, jobs: Sequence[_Job]) -> None:
        if not self.jobs:
            self.last_report = monotonic()
        for job in jobs:
            job.worker = self
            self.jobs[job.number] = job
        self.link.send(Submit(tuple((job.number, job.request, job.watch) for job in jobs)))


Delivery = tuple[_Job, Event]


class Supervisor:
    """A `Service` with workers. Use it as a context manager: the workers end with it.

    A worker that is lost or hangs is replaced, and another one draws the requests it owed. A sample is a function of
    its request, and steps of a watched row are delivered only once, so the caller notices nothing.

    One thread receives reports, checks timeouts and replaces workers; its lock is held only to update the state.
    Requests are handed out by the caller's thread when they are submitted, and by this thread when a worker is ready
    or has little work left. Links send without waiting, so no caller ever waits for a worker.
    """

    def __init__(
        self,
        transport: AnyTransport,
        workers: int,
        *,
        depth: int,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        """Start the workers.

        Args:
            transport: Starts them and carries messages.
            workers: How many.
            depth: Send a worker more only while it owes at most this many requests; the rest waits in the driver.
            hang_seconds: Replace a worker that has work and has not taken a step for this long.
        """
        self.workers = workers
        self.resent = 0  # requests that were owed by workers that were lost
        self._transport, self._depth, self._hang_seconds = transport, depth, hang_seconds
        self._numbers = count()
        self._waiting: deque[Sequence[_Job]] = deque()
        self._changed = Condition()  # guards all attributes below; notified when the state changes
        self._model: Ready | None = None
        self._assigned: Assign | None = None  # the weights of all workers
        self._error: UserError | None = None
        self._closing = False
        self._slots: list[_WorkerSlot] = []
        try:
            for index in range(workers):
                self._slots.append(_WorkerSlot(index, transport.start(index)))
        except BaseException:
            self._kill()
            raise
        self._thread = Thread(target=self._run, name="twotemp-supervisor", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(drop=True)

    def close(self, *, drop: bool = False) -> None:
        """End the workers; without `drop`, after all accepted requests have finished."""
        with self._changed:
            self._changed.wait_for(lambda: drop or self._error or not self._load())
            self._closing = True
        self._thread.join()
        self._kill()

    def _kill(self) -> None:
        for slot in self._slots:
            slot.link.kill()
        self._slots.clear()
        self._transport.close()

    @property
    def name(self) -> str:
        """Return the model's name, once a worker has loaded it."""
        return self._loaded().name

    @property
    def fingerprint(self) -> str:
        """Return the model's fingerprint, once a worker has loaded it."""
        return self._loaded().fingerprint

    def _loaded(self) -> Ready:
        with self._changed:
            self._changed.wait_for(lambda: self._model or self._error)
            if self._error is not None:
                raise self._error
            assert self._model is not None
            return self._model

    @property
    def ready(self) -> int:
        """Return how many workers have loaded the model."""
        return sum(slot.ready for slot in self._slots)

    @property
    def load(self) -> int:
        """Return how many requests are accepted and not finished."""
        with self._changed:
            return self._load()

    def _load(self) -> int:
        running = sum(not job.done for slot in self._slots for job in slot.jobs.values())
        return running + sum(not job.done for jobs in self._waiting for job in jobs)

    def submit(self, request: Request, on_event: OnEvent, *, watch: bool = False) -> Handle:
        """See `Service.submit`."""
        refuse_groups(request.policy, "a service that starts each row when it arrives")
        return self.submit_all([request], on_event, watch=watch)[0]

    def submit_all(
        self, requests: Iterable[Request], on_event: OnEvent, *, watch: bool = False
    ) -> Sequence[Handle]:
        """Accept requests that one worker draws together; `on_event` gets the events of all of them."""
        jobs = [_Job(request, on_event, watch, number=next(self._numbers)) for request in requests]
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._closing:
                raise UserError("the service is closing and accepts no new requests")
            self._waiting.append(jobs)
            self._dispatch()
        return jobs

    def cancel(self, handle: Handle) -> None:
        """See `Service.cancel`."""
        with self._changed:
            if isinstance(handle, _Job) and not handle.done:
                handle.done = True
                if handle.worker is not None:
                    handle.worker.link.send(Cancel((handle.number,)))
                self._changed.notify_all()

    def cancel_all(self) -> None:
        """Cancel everything that was accepted."""
        with self._changed:
            self._abandon()
            for slot in self._slots:
                if slot.jobs:
                    slot.link.send(Cancel(tuple(slot.jobs)))
            self._changed.notify_all()

    def assign(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite parameters of every worker's model, by name, also of workers that are started later.

        What is submitted afterwards is drawn with them. So that no sample is drawn with some of both, this is refused
        while a request is unfinished.
        """
        order = Assign(save({name: tensor.contiguous() for name, tensor in weights.items()}))
        with self._changed:
            if self._load():
                raise UserError(
                    f"{self._load()} requests are unfinished; change the weights between requests"
                )
            self._assigned = order
            for slot in self._slots:
                if slot.ready:
                    slot.link.send(order)

    def _dispatch(self) -> None:
        """Send waiting jobs to the workers with the fewest unfinished ones.

        A worker gets more shortly before it runs out, so that it never waits for the driver. Sending earlier would
        leave one worker with too much at the end and another with nothing.
        """
        while self._waiting:
            free = [slot for slot in self._slots if slot.ready and len(slot.jobs) <= self._depth]
            if not free:
                return
            if jobs := [job for job in self._waiting.popleft() if not job.done]:
                min(free, key=lambda slot: len(slot.jobs)).send(jobs)

    # The following methods run in the supervisor's thread.

    def _run(self) -> None:
        while not self._closing and self._error is None:
            links = [slot.link for slot in self._slots]
            try:
                reports = self._transport.receive(links, TICK_SECONDS)
            except Exception as error:  # of the transport itself, not of a worker
                log.exception("the workers can no longer be reached")
                reports = [(0, Failed(f"the workers can no longer be reached: {error!r}"))]
            with self._changed:
                deliveries = self._update(links, reports)
                self._dispatch()
                self._changed.notify_all()
            # Without the lock: a listener may wait for a thread that submits or cancels.
            for job, event in deliveries:
                if not job.deliver(event):
                    self.cancel(job)

    def _update(self, links: Sequence[Any], reports: Sequence[tuple[int, Report]]) -> list[Delivery]:
        """Process reports and check for timeouts; return the events to deliver.

        A worker may report its own loss several times, once for each row. After the first report its slot has a new
        link, and later reports of the old one must not count against the new worker.
        """
        now, slots = monotonic(), list(self._slots)
        deliveries: list[Delivery] = []
        try:
            for index, report in reports:
                if slots[index].link is links[index]:
                    slots[index].last_report = now
                    deliveries += self._process(slots[index], report)
            for slot in slots:
                deliveries += self._check_timeout(slot, now)
        except Exception as error:  # nothing may end this thread and leave callers waiting
            if not isinstance(error, UserError):  # an OSError means that no process can be started
                log.exception("the supervisor of the workers failed")
            self._error = (
                error if isinstance(error, UserError) else UserError(f"no worker can be started: {error!r}")
            )
            deliveries += [(job, self._error) for job in self._abandon()]
        return deliveries

    def _process(self, slot: _WorkerSlot, report: Report) -> list[Delivery]:
        """Update the state from a worker's report; return the events to deliver."""
        match report:
            case Events(events):
                return [
                    (job, event)
                    for number, event in events
                    if (job := self._resolve(slot, number, event)) is not None and event is not None
                ]
            case Ready():
                slot.ready, slot.failures = True, 0
                self._model = self._model or report
                if report != self._model:
                    raise UserError(
                        f"two workers loaded different models ({self._model.name} {self._model.fingerprint[:12]}… "
                        f"and {report.name} {report.fingerprint[:12]}…); use the same checkpoint on all machines"
                    )
                if self._assigned is not None:
                    slot.link.send(self._assigned)
                return []
            case Failed(message):
                raise UserError(message)
            case Lost(reason):
                return self._replace(slot, reason)

    def _resolve(self, slot: _WorkerSlot, number: int, event: Event | None) -> _Job | None:
        """Return the job that an event is for; None if the event is not to be delivered."""
        job = slot.jobs.get(number)
        if job is None:
            return None
        if isinstance(event, RowStep):
            # A row that is drawn again repeats its steps; steps already delivered are not delivered again.
            fresh = event.step >= job.steps and not job.done
            job.steps = max(job.steps, event.step + 1)
            return job if fresh else None
        del slot.jobs[number]
        canceled, job.done = job.done, True
        return None if canceled else job

    def _check_timeout(self, slot: _WorkerSlot, now: float) -> list[Delivery]:
        limit = self._hang_seconds if slot.ready else LOAD_SECONDS
        if slot not in self._slots or now - slot.last_report <= limit or (slot.ready and not slot.jobs):
            return []
        return self._replace(slot, f"{'no step' if slot.ready else 'no model loaded'} in {limit:g} s")

    def _replace(self, slot: _WorkerSlot, reason: str) -> list[Delivery]:
        """Replace a lost worker; the requests it owed are handed out next."""
        slot.link.kill()
        owed = [job for job in slot.jobs.values() if not job.done]
        log.warning("a worker was lost (%s); %d samples are drawn again", reason, len(owed))
        self.resent += len(owed)
        slot.jobs.clear()
        for job in owed:
            job.losses, job.worker = job.losses + 1, None
        lost = [job for job in owed if job.losses >= ATTEMPTS]
        for job in lost:
            job.done = True
        self._waiting.appendleft([job for job in owed if not job.done])
        slot.failures += not slot.ready
        slot.ready = False
        if slot.failures < ATTEMPTS:
            slot.link, slot.last_report = self._transport.start(slot.index), monotonic()
        else:
            self._retire(slot, reason)
        return [(job, _too_many_losses(lost, reason)) for job in lost]

    def _retire(self, slot: _WorkerSlot, reason: str) -> None:
        self._slots.remove(slot)
        message = (
            f"{ATTEMPTS} workers in turn were lost while they loaded the model (the last: {reason}); is there enough "
            "memory for all of them? Try fewer with --workers"
        )
        if not self._slots:
            raise UserError(message)
        log.warning("%s; continuing with %d", message, len(self._slots))

    def _abandon(self) -> list[_Job]:
        """Mark all unfinished jobs as done and return them."""
        running = [job for slot in self._slots for job in slot.jobs.values()]
        owed = [job for jobs in (running, *self._waiting) for job in jobs if not job.done]
        self._waiting.clear()
        for job in owed:
            job.done = True
        return owed


def _too_many_losses(jobs: Sequence[_Job], reason: str) -> UserError:
    first, others = jobs[0].request, f" and {len(jobs) - 1} others" if len(jobs) > 1 else ""
    return UserError(
        f"{ATTEMPTS} workers in turn were lost while they drew sample {first.index} of {first.name} with "
        f"{first.policy.name}{others} (the last: {reason}); try a smaller --batch-size, or fewer --workers"
    )
