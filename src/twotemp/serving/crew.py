"""Several processes that decode behind the one that speaks HTTP: a request goes to whoever has least to do.

A sample is a function of its request, so it does not matter who draws it, and what a process that died had not
finished is simply drawn by another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol

from twotemp.engine import Service, Stopped, Written
from twotemp.engine.engine import Event
from twotemp.engine.rows import check
from twotemp.engine.service import Job
from twotemp.errors import UserError
from twotemp.executors.processes import Process
from twotemp.groups import refuse
from twotemp.models.base import Denoiser
from twotemp.records import Request

log = logging.getLogger("twotemp")
Listener = Callable[[Event | Stopped], None]
Order = tuple[Request, bool, Sequence[str]]  # what to draw, whether it is watched, its stop strings
Orders = SimpleQueue[tuple[int, Order | None] | None]  # by number, without an order: cancelled; None: the end
READY = "ready"


@dataclass(eq=False)
class Task:
    """A request in the crew's hands."""

    request: Request
    on_event: Listener
    watch: bool
    stop: Sequence[str]
    worker: Worker | None = field(default=None, init=False)
    handle: Any = field(default=None, init=False)  # by which its worker knows it
    cancelled: bool = field(default=False, init=False)
    lost: bool = field(default=False, init=False)  # with a worker, once

    def tell(self, event: Event | Stopped) -> None:
        """As a service does: a listener that raises is nobody else's trouble."""
        try:
            self.on_event(event)
        except Exception:
            log.exception("an event of request %r could not be delivered", self.request.id)


class Worker(Protocol):
    """Who can be given tasks."""

    @property
    def ready(self) -> bool: ...
    @property
    def load(self) -> int: ...
    def take(self, task: Task) -> bool: ...
    def drop(self, task: Task) -> None: ...
    def close(self) -> None: ...


class Here:
    """The service of this process."""

    ready = True

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def load(self) -> int:
        return self._service.load

    def take(self, task: Task) -> bool:
        task.handle = self._service.submit(task.request, task.on_event, watch=task.watch, stop=task.stop)
        return True

    def drop(self, task: Task) -> None:
        self._service.cancel(task.handle)

    def close(self) -> None:
        self._service.close(drop=True)


class There:
    """A service in a process of its own; one that dies is started again. It ends when its pipe does.

    One thread listens to the process, another one speaks: whoever gives it a task never waits until it is read. A
    process that hangs keeps its own tasks and nobody else, and two full pipes do not wait for each other.
    """

    def __init__(
        self,
        make: Callable[[int], Denoiser],
        place: int,
        slots: int,
        cache: str | None,
        threads: int,
        on_lost: Callable[[list[Task]], None],
    ) -> None:
        self._work, self._threads, self._on_lost = partial(_work, make, place, slots, cache), threads, on_lost
        self._tasks: dict[int, Task] = {}
        self._numbers, self._lock = count(), Lock()
        self._process: Process | None = None
        self._orders: Orders = SimpleQueue()
        self._closing = self.ready = False
        self._thread = Thread(target=self._run, name=f"twotemp-worker-{place}", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        return len(self._tasks)

    def take(self, task: Task) -> bool:
        """Whether it does: it may have died since it was asked."""
        with self._lock:
            if not self.ready:
                return False
            task.handle = next(self._numbers)
            self._tasks[task.handle] = task
            self._orders.put((task.handle, (task.request, task.watch, task.stop)))
            return True

    def drop(self, task: Task) -> None:
        with self._lock:
            if self._tasks.pop(task.handle, None):
                self._orders.put((task.handle, None))

    def close(self) -> None:
        with self._lock:
            self._closing = True
            if self._process is not None:
                self._process.end()
        self._thread.join(10)

    # In the threads.

    def _run(self) -> None:
        useful = True
        while useful:
            orders: Orders = SimpleQueue()
            with self._lock:
                if self._closing:
                    return
                self._process = process = Process(self._work, self._threads)
                self._orders = orders
            speaking = Thread(target=_speak, args=(process, orders), name=self._thread.name, daemon=True)
            speaking.start()
            useful = self._hear(process.link)  # else it would die again
            with self._lock:
                self.ready, lost = False, list(self._tasks.values())
                self._tasks.clear()
                orders.put(None)
            reason = process.reason()
            speaking.join()
            process.kill()
            if not self._closing:
                again = "it is started again" if useful else "it could not start, and is left out"
                log.warning("a worker was lost (%s); %s", reason, again)
                self._on_lost(lost)

    def _hear(self, link: Connection) -> bool:
        """Pass on what it says, until it ends; whether it ever said that it is ready."""
        with suppress(EOFError, OSError):
            while True:
                said = link.recv()
                if said == READY:
                    self.ready = True
                    continue
                number, event = said
                with self._lock:
                    over = not isinstance(event, Written)
                    task = self._tasks.pop(number, None) if over else self._tasks.get(number)
                if task is not None:
                    task.tell(event)
        return self.ready


def _speak(process: Process, orders: Orders) -> None:
    while (order := orders.get()) is not None:
        process.send(order)


class Crew:
    """What a `Service` is, by several processes: this one and `more` others, each with a model that `make` loads."""

    def __init__(
        self,
        model: Denoiser,
        make: Callable[[int], Denoiser],
        more: int,
        slots: int,
        cache: str | None,
        threads: int = 1,
    ) -> None:
        """threads: of each of the others."""
        self.model = model
        self._here = Service(model, slots, cache)
        self._others = partial(There, make, slots=slots, cache=cache, threads=threads, on_lost=self._again)
        self._more = more
        self._workers: list[Worker] = []
        self._placing = Lock()  # a task is not cancelled while it changes hands

    def __enter__(self) -> Crew:
        self._workers = [Here(self._here.__enter__())]
        self._workers += [self._others(place=place) for place in range(1, self._more + 1)]
        return self

    def close(self, *, drop: bool = True) -> None:
        assert drop, "a crew is closed when nobody waits any more"
        for worker in reversed(self._workers):  # while one is left, what the others lose has somewhere to go
            worker.close()

    @property
    def load(self) -> int:
        return sum(worker.load for worker in self._workers)

    @property
    def ready(self) -> int:
        """How many workers take requests."""
        return sum(worker.ready for worker in self._workers)

    def submit(
        self, request: Request, on_event: Listener, *, watch: bool = False, stop: Sequence[str] = ()
    ) -> Task:
        """See `Service.submit`."""
        check(request, self.model)
        refuse(request.policy, "a service that takes rows as they come")
        task = Task(request, on_event, watch, stop)
        with self._placing:
            self._place(task)
        return task

    def cancel(self, task: Task) -> None:
        with self._placing:
            task.cancelled = True
            if task.worker is not None:
                task.worker.drop(task)

    def _place(self, task: Task) -> None:
        while True:
            task.worker = min((w for w in self._workers if w.ready), key=lambda worker: worker.load)
            if task.worker.take(task):
                return

    def _again(self, lost: list[Task]) -> None:
        """A watched task's steps are told again: the same ones. Who was lost twice may be why."""
        for task in lost:
            with self._placing:
                if task.cancelled:
                    continue
                try:
                    if task.lost:
                        raise UserError(f"request {task.request.id!r} was lost with its worker, twice")
                    task.lost = True
                    self._place(task)
                except UserError as error:  # or nobody takes new work
                    task.tell(error)


def _work(
    make: Callable[[int], Denoiser], place: int, slots: int, cache: str | None, link: Connection
) -> None:
    """The other process: a service that gets its orders from the pipe and puts events into it."""
    lock = Lock()
    jobs: dict[int, Job] = {}

    def tell(number: int, event: Event | Stopped) -> None:
        with lock:
            if not isinstance(event, Written):
                jobs.pop(number, None)
            link.send((number, event))

    with suppress(EOFError, OSError), Service(make(place), slots, cache) as service:
        link.send(READY)
        while True:
            number, order = link.recv()
            with lock:  # so that no event comes before its job is known
                if order is None:
                    if number in jobs:
                        service.cancel(jobs.pop(number))
                else:
                    request, watch, stop = order
                    jobs[number] = service.submit(request, partial(tell, number), watch=watch, stop=stop)
