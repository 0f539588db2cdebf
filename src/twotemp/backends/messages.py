"""What the supervisor and its workers send each other, and how a transport carries it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from twotemp.backends.local import Event
from twotemp.records import Request

# To a worker. Requests have numbers, which are never used twice.


@dataclass(frozen=True)
class Submit:
    """Draw these (number, request, whether its steps are watched); samples that repel each other come together."""

    requests: tuple[tuple[int, Request, bool], ...]


@dataclass(frozen=True)
class Cancel:
    """Free these rows, and acknowledge it."""

    numbers: tuple[int, ...]


# From a worker.


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Events:
    """What happened, by number; None acknowledges a `Cancel`. Without any it says that a step was taken."""

    events: tuple[tuple[int, Event | None], ...] = ()


@dataclass(frozen=True)
class Failed:
    """The model cannot be loaded, for a reason that another attempt would not change."""

    message: str


@dataclass(frozen=True)
class Lost:
    """The worker, its process or its machine has ended. Sent by the transport, or by a worker before it ends."""

    reason: str


Order = Submit | Cancel
Report = Ready | Events | Failed | Lost


class Link(Protocol):
    """The connection to one worker."""

    def send(self, order: Order) -> None:
        """Send an order without waiting. To a worker that is lost this does nothing: `receive` reports the loss."""
        ...

    def kill(self) -> None:
        """End the worker at once, whatever it is doing."""
        ...


L = TypeVar("L", bound=Link)


class Transport(Protocol[L]):
    """Starts workers and carries messages. It knows nothing of what they work at."""

    def start(self, place: int) -> L:
        """Start worker number `place` of the pool."""
        ...

    def receive(self, links: Sequence[L], seconds: float) -> list[tuple[int, Report]]:
        """Return (index into links, report) in each worker's order; empty if none reports anything for `seconds`."""
        ...

    def close(self) -> None: ...


AnyTransport = Transport[Any]
