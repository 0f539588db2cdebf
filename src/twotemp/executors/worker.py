"""A worker: holds a model, draws the units it is sent, and answers for the tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from twotemp.errors import UserError
from twotemp.evaluation.drawing import Drawer, InProcess
from twotemp.executors.messages import Done, Draw, Drawn, Encode, Encoded, Failed, News, Order, Ready
from twotemp.records import Sample

if TYPE_CHECKING:
    from twotemp.models.base import LanguageModel

# Called in a worker, with its place among them and a function that the drawer must call after every step.
Make = Callable[[int, Callable[[], None]], Drawer]
BEAT_SECONDS = 0.2  # finished samples are sent, and signs of life given, about so often


@dataclass(frozen=True)
class Loading:
    """A `Make`: load a checkpoint, with the plug-ins that the driver has. One GPU each, if there are several."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)  # of `twotemp.load`
    gpus: int = 0  # place i takes GPU i, counted round
    batch_size: int | None = None
    cache: str | None = None
    plugins: tuple[str, ...] = ()

    def load(self, place: int) -> LanguageModel:
        from twotemp.models.load import load
        from twotemp.plugins import load_plugins

        load_plugins(self.plugins)
        where = {"device": f"cuda:{place % self.gpus}"} if self.gpus else {}
        return load(self.model, **{**self.options, **where})

    def __call__(self, place: int, stepped: Callable[[], None]) -> Drawer:
        from twotemp.engine import Steps

        observer = Steps(lambda view: stepped())
        return InProcess(self.load(place), batch_size=self.batch_size, cache=self.cache, observer=observer)


class Bench:
    """The work itself, whatever carries the messages."""

    def __init__(self, make: Make, place: int, stepped: Callable[[], None]) -> None:
        """stepped: called after every step of the engine."""
        self._drawer = make(place, stepped)
        self.ready = Ready(self._drawer.name, self._drawer.fingerprint)
        self._fresh: list[Sample] = []

    def encode(self, order: Encode) -> News:
        try:
            return Encoded(self._drawer.encode(order.prompt, prefill=order.prefill, chat=order.chat))
        except UserError as error:
            return Failed(str(error))

    def draw(self, order: Draw) -> Iterator[News]:
        """The samples in small groups, and that they are done."""
        sent = monotonic()
        try:
            for _, sample in self._drawer.draw([(None, order.requests)]):
                self._fresh.append(sample)
                if monotonic() - sent > BEAT_SECONDS:
                    yield self.news()
                    sent = monotonic()
            yield self.news()
            yield Done()
        except UserError as error:
            self._fresh.clear()  # no part of the next unit
            yield Failed(str(error), unit=True)

    def news(self) -> Drawn:
        fresh, self._fresh = self._fresh, []
        return Drawn(tuple(fresh))


class Post:
    """The worker's end of a pipe. A thread reads it all the time: the driver never waits for a worker that computes,
    and a worker whose driver is gone ends at once, whatever it is doing."""

    def __init__(self, make: Make, place: int, link: Connection) -> None:
        self._make, self._place = make, place
        self._link, self._sent = link, monotonic()
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._units: list[Draw] = []
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                self._orders.put(self._link.recv())
        except (EOFError, OSError):
            os._exit(0)

    def send(self, news: News) -> None:
        try:
            self._link.send(news)
        except OSError:  # nobody is there to hear it
            os._exit(0)
        self._sent = monotonic()

    def serve(self) -> None:
        try:
            bench = Bench(self._make, self._place, lambda: self._between(bench))
        except UserError as error:
            self.send(Failed(str(error)))
            return
        self.send(bench.ready)
        while True:
            self._sort(self._orders.get(), bench)
            while self._units:
                for news in bench.draw(self._units.pop(0)):
                    self.send(news)

    def _between(self, bench: Bench) -> None:
        """Between two steps: answer what was asked meanwhile, show that we are alive."""
        while not self._orders.empty():
            self._sort(self._orders.get(), bench)
        if monotonic() - self._sent > BEAT_SECONDS:
            self.send(bench.news())

    def _sort(self, order: Order, bench: Bench) -> None:
        if isinstance(order, Draw):
            self._units.append(order)
        else:
            self.send(bench.encode(order))


def work(make: Make, place: int, link: Connection) -> None:
    """What `processes` starts."""
    Post(make, place, link).serve()
