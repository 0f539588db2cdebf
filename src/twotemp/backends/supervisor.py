"""A service whose requests are drawn by workers: which worker owes what, and what is sent again after a loss."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Condition, Thread
from time import monotonic
from typing import Any

from twotemp.backends.local import Event, Handle, OnEvent
from twotemp.backends.messages import (
    AnyTransport,
    Cancel,
    Events,
    Failed,
    Lost,
    Ready,
    Report,
    Submit,
)
from twotemp.engine import Written
from twotemp.engine.scheduler import refuse_groups
from twotemp.errors import UserError
from twotemp.records import Request

log = logging.getLogger("twotemp")

ATTEMPTS = 3  # workers that may be lost with one request, or one after another while they load the model
HANG_SECONDS = 600.0  # without a step, after which a worker that has work is taken to hang
LOAD_SECONDS = 3600.0  # the same while it loads the model, when there are no steps to count
TICK_SECONDS = 0.2  # between two looks at the clock


@dataclass(eq=False)
class _Task(Handle):
    """A request that is owed to a caller."""

    number: int = field(default=0, kw_only=True)
    worker: _WorkerSlot | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)  # of a watched row that were delivered
    losses: int = field(default=0, init=False)  # workers that were lost with it
    done: bool = field(default=False, init=False)  # finished or canceled: nothing more is delivered


@dataclass(eq=False)
class _WorkerSlot:
    """A place in the pool: a worker, replaced when it is lost, and the tasks it was given.

    A task leaves `tasks` when the worker reports its end, or acknowledges that it was canceled. So a worker that
    hangs keeps its load, and its clock runs, even if all callers have canceled what it owed.
    """

    place: int
    link: Any
    heard: float = field(default_factory=monotonic)
    ready: bool = False
    failures: int = 0  # workers lost here in turn while they loaded the model
    tasks: dict[int, _Task] = field(default_factory=dict)

    def give(self, tasks: Sequence[_Task]) -> None:
        if not self.tasks:
            self.heard = monotonic()
        for task in tasks:
            task.worker = self
            self.tasks[task.number] = task
        self.link.send(Submit(tuple((task.number, task.request, task.watch) for task in tasks)))


Delivery = tuple[_Task, Event]


class Supervisor:
    """A `Service` with workers. Use it as a context manager: the workers end with it.

    A worker that is lost or hangs is replaced, and what it owed is drawn by another one. As a sample is a function of
    its request, the caller cannot tell: the steps of a watched row that it has seen are not delivered again.

    One thread receives reports, watches the clock and replaces workers; its lock is held only to update the state.
    Work is handed out by the thread that makes it possible: the caller's when something is submitted, this one when a
    worker is ready or has little left. No caller ever waits for a worker, as links send without waiting.
    """

    def __init__(
        self,
        transport: AnyTransport,
        workers: int,
        *,
        depth: int,
        hang_seconds: float = HANG_SECONDS,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        """Start the workers.

        Args:
            transport: Starts them and carries messages.
            workers: How many.
            depth: A worker is given more while it owes at most this many requests; the rest waits here.
            hang_seconds: Replace a worker that has work and has not taken a step for this long.
            load_seconds: Replace a worker that has not loaded its model after this long.
        """
        self.workers = workers
        self.resent = 0  # requests that were owed by workers that were lost
        self._transport, self._depth = transport, depth
        self._hang_seconds, self._load_seconds = hang_seconds, load_seconds
        self._numbers = count()
        self._waiting: deque[Sequence[_Task]] = deque()
        self._changed = Condition()  # guards all of this; notified when `_card` or `_error` is set
        self._card: Ready | None = None
        self._error: UserError | None = None
        self._closing = False
        self._slots: list[_WorkerSlot] = []
        try:
            for place in range(workers):
                self._slots.append(_WorkerSlot(place, transport.start(place)))
        except BaseException:
            self._kill()
            raise
        self._thread = Thread(target=self._run, name="twotemp-supervisor", daemon=True)
        self._thread.start()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(drop=True)

    def close(self, *, drop: bool = False) -> None:
        """End the workers; without drop, when all that was accepted is finished."""
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
            self._changed.wait_for(lambda: self._card or self._error)
            if self._error is not None:
                raise self._error
            assert self._card is not None
            return self._card

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
        given = sum(not task.done for slot in self._slots for task in slot.tasks.values())
        return given + sum(not task.done for tasks in self._waiting for task in tasks)

    def submit(self, request: Request, on_event: OnEvent, *, watch: bool = False) -> Handle:
        """See `Service.submit`."""
        refuse_groups(request.policy, "a service that takes rows as they come")
        return self.submit_all([request], on_event, watch=watch)[0]

    def submit_all(
        self, requests: Iterable[Request], on_event: OnEvent, *, watch: bool = False
    ) -> Sequence[Handle]:
        """Accept requests that one worker draws together; `on_event` gets the events of all of them."""
        tasks = [_Task(request, on_event, watch, number=next(self._numbers)) for request in requests]
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._closing:
                raise UserError("the service is closing; it takes no new work")
            self._waiting.append(tasks)
            self._hand_out()
        return tasks

    def cancel(self, handle: Handle) -> None:
        """See `Service.cancel`."""
        with self._changed:
            if isinstance(handle, _Task) and not handle.done:
                handle.done = True
                if handle.worker is not None:
                    handle.worker.link.send(Cancel((handle.number,)))
                self._changed.notify_all()

    def cancel_all(self) -> None:
        """Cancel everything that was accepted."""
        with self._changed:
            self._abandon()
            for slot in self._slots:
                if slot.tasks:
                    slot.link.send(Cancel(tuple(slot.tasks)))
            self._changed.notify_all()

    def _hand_out(self) -> None:
        """Give waiting tasks to the workers that owe least.

        They are given a little early, so that no worker waits for the driver; not earlier, as that would leave one
        worker with too much at the end and another with nothing.
        """
        while self._waiting:
            free = [slot for slot in self._slots if slot.ready and len(slot.tasks) <= self._depth]
            if not free:
                return
            if tasks := [task for task in self._waiting.popleft() if not task.done]:
                min(free, key=lambda slot: len(slot.tasks)).give(tasks)

    # In the thread.

    def _run(self) -> None:
        while not self._closing and self._error is None:
            links = [slot.link for slot in self._slots]
            try:
                reports = self._transport.receive(links, TICK_SECONDS)
            except Exception as error:  # of the transport itself, not of a worker
                log.exception("the workers cannot be reached any more")
                reports = [(0, Failed(f"the workers cannot be reached any more: {error!r}"))]
            with self._changed:
                deliveries = self._update(links, reports)
                self._hand_out()
                self._changed.notify_all()
            # Without the lock: a listener may wait for a thread that submits or cancels.
            for task, event in deliveries:
                if not task.deliver(event):
                    self.cancel(task)

    def _update(self, links: Sequence[Any], reports: Sequence[tuple[int, Report]]) -> list[Delivery]:
        """Take in reports and look at the clock; return what is to be delivered.

        A worker may report its own loss several times, once for each row. After the first report its slot has another
        link, and what the old one still says must not count against the new worker.
        """
        now, slots = monotonic(), list(self._slots)
        deliveries: list[Delivery] = []
        try:
            for index, report in reports:
                if slots[index].link is links[index]:
                    slots[index].heard = now
                    deliveries += self._take(slots[index], report)
            for slot in slots:
                deliveries += self._check_clock(slot, now)
        except Exception as error:  # nothing may end this thread and leave callers waiting
            if not isinstance(error, UserError):  # an OSError means that no process can be started
                log.exception("the supervisor of the workers failed")
            self._error = (
                error if isinstance(error, UserError) else UserError(f"no more workers start: {error!r}")
            )
            deliveries += [(task, self._error) for task in self._abandon()]
        return deliveries

    def _take(self, slot: _WorkerSlot, report: Report) -> list[Delivery]:
        """Update the state by a worker's report; return what is to be delivered."""
        match report:
            case Events(events):
                return [
                    (task, event)
                    for number, event in events
                    if (task := self._settle(slot, number, event)) is not None and event is not None
                ]
            case Ready():
                slot.ready, slot.failures = True, 0
                self._card = self._card or report
                if report != self._card:
                    raise UserError(
                        f"two workers loaded different models ({self._card.name} {self._card.fingerprint[:12]}… and "
                        f"{report.name} {report.fingerprint[:12]}…); give all machines the same checkpoint"
                    )
                return []
            case Failed(message):
                raise UserError(message)
            case Lost(reason):
                return self._replace(slot, reason)

    def _settle(self, slot: _WorkerSlot, number: int, event: Event | None) -> _Task | None:
        """Return the task to which an event is to be delivered, if it is."""
        task = slot.tasks.get(number)
        if task is None:
            return None
        if isinstance(event, Written):
            # A row that was begun again takes the same steps; those that were delivered are not delivered again.
            fresh = event.step >= task.steps and not task.done
            task.steps = max(task.steps, event.step + 1)
            return task if fresh else None
        del slot.tasks[number]
        canceled, task.done = task.done, True
        return None if canceled else task

    def _check_clock(self, slot: _WorkerSlot, now: float) -> list[Delivery]:
        limit = self._hang_seconds if slot.ready else self._load_seconds
        if slot not in self._slots or now - slot.heard <= limit or (slot.ready and not slot.tasks):
            return []
        return self._replace(slot, f"{'no step' if slot.ready else 'no model loaded'} in {limit:g} s")

    def _replace(self, slot: _WorkerSlot, reason: str) -> list[Delivery]:
        """Start another worker in the place of one that is lost; what it owed is the next to be handed out."""
        slot.link.kill()
        owed = [task for task in slot.tasks.values() if not task.done]
        log.warning("a worker was lost (%s); %d samples are drawn again", reason, len(owed))
        self.resent += len(owed)
        slot.tasks.clear()
        for task in owed:
            task.losses, task.worker = task.losses + 1, None
        lost = [task for task in owed if task.losses >= ATTEMPTS]
        for task in lost:
            task.done = True
        self._waiting.appendleft([task for task in owed if not task.done])
        slot.failures += not slot.ready
        slot.ready = False
        if slot.failures < ATTEMPTS:
            slot.link, slot.heard = self._transport.start(slot.place), monotonic()
        else:
            self._leave_out(slot, reason)
        return [(task, _too_many_losses(lost, reason)) for task in lost]

    def _leave_out(self, slot: _WorkerSlot, reason: str) -> None:
        self._slots.remove(slot)
        message = (
            f"{ATTEMPTS} workers in turn were lost while they loaded the model (the last: {reason}); is there enough "
            "memory for all of them? Try fewer with --workers"
        )
        if not self._slots:
            raise UserError(message)
        log.warning("%s; going on with %d", message, len(self._slots))

    def _abandon(self) -> list[_Task]:
        """Return all tasks that are owed, and owe them no longer."""
        given = [task for slot in self._slots for task in slot.tasks.values()]
        owed = [task for tasks in (given, *self._waiting) for task in tasks if not task.done]
        self._waiting.clear()
        for task in owed:
            task.done = True
        return owed


def _too_many_losses(tasks: Sequence[_Task], reason: str) -> UserError:
    first, others = tasks[0].request, f" and {len(tasks) - 1} others" if len(tasks) > 1 else ""
    return UserError(
        f"{ATTEMPTS} workers in turn were lost while they drew sample {first.index} of {first.name} with "
        f"{first.policy.name}{others} (the last: {reason}); try a smaller --batch-size, or fewer --workers"
    )
