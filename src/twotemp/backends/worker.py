"""A worker: a service with a model, which takes orders and reports what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import monotonic
from traceback import format_exception_only, print_exception
from typing import TYPE_CHECKING, Any

from twotemp.backends.local import Event, Handle, LocalService, StepFailed, fit_longest_rows
from twotemp.backends.messages import Assign, Cancel, Events, Failed, Lost, Order, Ready, Report
from twotemp.engine import RowStep
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.models.base import LanguageModel

# Makes a worker's service from the worker's index in the pool and the function to call after every step.
MakeService = Callable[[int, Callable[[], None]], LocalService]

HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True)
class ModelLoader:
    """A `MakeService` that loads a checkpoint and the plug-ins of the driver. One GPU each, if there are several."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)  # of `twotemp.load`
    gpus: int = 0  # worker i takes GPU i modulo this number
    slots: int | None = None  # None: what fits
    cache: str | None = None
    plugins: tuple[str, ...] = ()
    live: bool = False  # estimate `slots` for requests of any length, which may arrive at any time

    def load(self, index: int) -> LanguageModel:
        """Return the model of worker number `index`."""
        import torch

        from twotemp.models.load import load
        from twotemp.plugins import load_plugins

        load_plugins(self.plugins)
        if not self.gpus:
            return load(self.model, **self.options)
        gpu = index % self.gpus
        torch.cuda.set_device(gpu)  # some kernels run on the current device, whatever the tensors' is
        return load(self.model, **{**self.options, "device": f"cuda:{gpu}"})

    def __call__(self, index: int, on_turn: Callable[[], None]) -> LocalService:
        model = self.load(index)
        slots = fit_longest_rows(model, self.cache) if self.live and self.slots is None else self.slots
        return LocalService(model, slots, self.cache, on_turn=on_turn)


class Worker:
    """Carries out orders, independently of the transport.

    Events are held back for `hold_seconds` while the engine is busy, so that a batch of short rows does not wake the
    driver for each of them. While steps are taken without events, an empty report is sent about every second: the
    supervisor considers a worker hung if it has work and sends nothing.
    """

    def __init__(
        self, make: MakeService, index: int, send: Callable[[Report], None], hold_seconds: float
    ) -> None:
        """Load the model and report that it is ready, or why it cannot be loaded.

        Args:
            make: Makes the service.
            index: The worker's index in the pool.
            send: Sends a report; it is called from several threads, one at a time.
            hold_seconds: Seconds for which events may be held back; 0 for live work.
        """
        self._send_report, self._hold_seconds = send, hold_seconds
        self._lock = Lock()
        self._sent = monotonic()
        self._unsent: list[tuple[int, Event | None]] = []
        self._handles: dict[int, Handle] = {}
        try:
            self._service = make(index, self._after_turn).__enter__()
        except UserError as error:
            self._send(Failed(str(error)))
            return
        self._send(Ready(self._service.text.name, self._service.text.fingerprint))

    def execute(self, order: Order) -> None:
        """Carry out an order without waiting for its samples."""
        if isinstance(order, Cancel):
            for number in order.numbers:
                if (handle := self._handles.pop(number, None)) is not None:
                    self._service.cancel(handle)
            self._send(Events(tuple((number, None) for number in order.numbers)))
            return
        if isinstance(order, Assign):
            self._assign(order)
            return
        handles = {
            number: Handle(request, partial(self._on_event, number), watch)
            for number, request, watch in order.requests
        }
        self._handles |= handles
        self._service.submit_handles(list(handles.values()))

    def _assign(self, order: Assign) -> None:
        from safetensors.torch import load

        try:
            self._service.assign(load(order.weights))
        except UserError as error:  # another worker would raise it as well
            self._send(Failed(str(error)))

    # The following methods run in the service's thread.

    def _on_event(self, number: int, event: Event) -> None:
        if isinstance(event, StepFailed):
            # A device may be unusable after this, so another worker takes over; the supervisor ends this one.
            print_exception(event.__cause__)
            self._send(Lost("".join(format_exception_only(event.__cause__)).strip()))
            return
        if not isinstance(event, RowStep):
            self._handles.pop(number, None)
        self._unsent.append((number, event))

    def _after_turn(self) -> None:
        waited = monotonic() - self._sent
        due = self._unsent and (waited >= self._hold_seconds or not self._service.load)
        if due or waited >= HEARTBEAT_SECONDS:
            events, self._unsent = self._unsent, []
            self._send(Events(tuple(events)))

    def _send(self, report: Report) -> None:
        with self._lock:
            self._send_report(report)
            self._sent = monotonic()
