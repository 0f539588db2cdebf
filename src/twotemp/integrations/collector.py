"""Callers that come one by one, rows that are decoded together: the engine's service, with a future for each row."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from twotemp.engine.engine import Event
from twotemp.engine.service import Service, Stopped
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.records import Request, Sample


class Collector:
    """A request joins the batch that is running, and its future is done as soon as its row is."""

    def __init__(self, model: Denoiser, slots: int, cache: str | None = None) -> None:
        self._service = Service(model, slots, cache).__enter__()
        self._waiting: set[Future[Sample]] = set()

    def submit(self, request: Request) -> Future[Sample]:
        """From any thread. A future that is cancelled takes its row out of the batch."""
        future: Future[Sample] = Future()
        try:
            job = self._service.submit(request, partial(_settle, future))
        except UserError as error:  # this request's own fault
            future.set_exception(error)
            return future
        self._waiting.add(future)

        def over(_: Future[Sample]) -> None:
            self._waiting.discard(future)
            if future.cancelled():
                self._service.cancel(job)

        future.add_done_callback(over)
        return future

    def close(self) -> None:
        """What has not finished never will."""
        self._service.close(drop=True)
        for future in list(self._waiting):
            future.cancel()


def _settle(future: Future[Sample], event: Event | Stopped) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(event, UserError):
        future.set_exception(event)
    else:
        assert isinstance(event, Sample)  # nobody watches, and nothing stops it
        future.set_result(event)
