"""Callers that come one by one, rows that are decoded together: a thread around the live engine."""

from __future__ import annotations

from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread

from twotemp.engine.engine import Live, Ticket
from twotemp.engine.observer import Written
from twotemp.models.base import Denoiser
from twotemp.records import Request, Sample


class Collector:
    """A request joins the batch that is running, and its future is done as soon as its row is."""

    def __init__(self, model: Denoiser, slots: int, cache: str | None = None) -> None:
        self._live = Live(model, slots, cache)
        self._arrivals: SimpleQueue[tuple[Request, Future[Sample]] | None] = SimpleQueue()
        self._waiting: dict[Ticket, Future[Sample]] = {}
        self._thread = Thread(target=self._run, name="twotemp", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Future[Sample]:
        """From any thread. A future that is cancelled takes its row out of the batch."""
        future: Future[Sample] = Future()
        self._arrivals.put((request, future))
        return future

    def close(self) -> None:
        """What has not finished never will."""
        self._arrivals.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._admit():
            for ticket in [ticket for ticket, future in self._waiting.items() if future.cancelled()]:
                self._live.cancel(ticket)
                del self._waiting[ticket]
            try:
                outcomes = self._live.turn()
            except Exception as error:  # whoever waits must hear of it; who comes later begins anew
                for future in self._waiting.values():
                    _settle(future, error)
                self._waiting.clear()
                old = self._live
                self._live = Live(old.model, old.slots, old.cache)
            else:
                for ticket, outcome in outcomes:
                    if not isinstance(outcome, Written):  # nobody watches
                        _settle(self._waiting.pop(ticket), outcome)

    def _admit(self) -> bool:
        """Let in who has come, waiting for somebody if nothing runs; False: it is over."""
        try:
            while arrival := self._arrivals.get(block=not self._waiting):
                request, future = arrival
                try:
                    self._waiting[self._live.submit(request)] = future
                except Exception as error:  # this request's own fault
                    _settle(future, error)
        except Empty:
            return True
        for future in self._waiting.values():
            future.cancel()
        return False


def _settle(future: Future[Sample], outcome: Sample | BaseException) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
