"""The messages between the supervisor and its workers, and the protocol of a transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from twotemp.backends.local import Event
from twotemp.records import Request

# Orders to a worker. Requests are identified by numbers, which are never reused.


@dataclass(frozen=True)
class Submit:
    """Draw these (number, request, whether its steps are watched); samples that repel each other come together."""

    requests: tuple[tuple[int, Request, bool], ...]


@dataclass(frozen=True)
class Cancel:
    """Free these rows, and acknowledge it."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Assign:
    """Overwrite these parameters of the network before the requests that follow."""

    weights: bytes  # in the format of safetensors, by the parameters' names


# Reports from a worker.


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Events:
    """Events by request number; None acknowledges a `Cancel`. An empty report means only that a step was taken."""

    events: tuple[tuple[int, Event | None], ...] = ()


@dataclass(frozen=True)
class Failed:
    """The model cannot be loaded, and another attempt would fail in the same way."""

    message: str


@dataclass(frozen=True)
class Lost:
    """The worker, its process or its machine has ended. Sent by the transport, or by a worker before it ends."""

    reason: str


Order = Submit | Cancel | Assign
Report = Ready | Events | Failed | Lost


class Link(Protocol):
    """The connection to one worker."""

    def send(self, order: Order) -> None:
        """Send an order without waiting; does nothing if the worker is lost, which `receive` reports."""

    def kill(self) -> None:
        """End the worker at once, whatever it is doing."""


L = TypeVar("L", bound=Link)


class Transport(Protocol[L]):
    """Starts workers and carries messages, without knowing their content."""

    def start(self, index: int) -> L:
        """Start worker number `index` of the pool."""

    def receive(self, links: Sequence[L], seconds: float) -> list[tuple[int, Report]]:
        """Return (index into links, report) in each worker's order; empty if none reports anything for `seconds`."""

    def close(self) -> None: ...


AnyTransport = Transport[Any]
