"""The two ways to ask for samples: a `Backend` for batch work, a `Service` for live work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from twotemp.engine.observer import Written
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.records import Request, Sample

log = logging.getLogger("twotemp")
# What happened to a request: a step of a watched row, then either its sample or what went wrong with it.
Event = Written | Sample | UserError
OnEvent = Callable[[Event], None]


class StepFailed(UserError):
    """A step of the engine failed; its cause may be about another request and is for the log alone."""


class Backend(Protocol):
    """Draws the samples of requests, wherever the model is."""

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of the model: samples of different weights never mix in a run."""
        ...

    @property
    def workers(self) -> int:
        """How many processes draw at the same time."""
        ...

    @property
    def text(self) -> LanguageModel:
        """The model's tokenizer and special ids, which make requests; its weights may be elsewhere."""
        ...

    def sample(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Yield a sample with its text for each request, as they finish.

        There may be any number of requests: they are read as work runs out. A sample has its request's `tag`.
        """
        ...


@dataclass(eq=False)  # two handles are never the same, even for equal requests
class Handle:
    """A request that a service has accepted."""

    request: Request
    on_event: OnEvent
    watch: bool = False

    def deliver(self, event: Event) -> bool:
        """Pass on an event; return False if the listener raised, which must not harm other requests."""
        try:
            self.on_event(event)
        except Exception:
            log.exception("an event of request %r could not be delivered; it is canceled", self.request.id)
            return False
        return True


class Service(Protocol):
    """Draws requests that arrive one by one, from any thread."""

    @property
    def load(self) -> int:
        """How many requests are accepted and not finished."""
        ...

    def submit(self, request: Request, on_event: OnEvent, *, watch: bool = False) -> Handle:
        """Accept a request.

        Args:
            request: What to draw; a policy whose samples repel each other is refused.
            on_event: Called in the service's thread with each event; it must not block. The last event is a `Sample`
                with its text, or a `UserError`.
            watch: Every step of the row is an event as well.
        """
        ...

    def cancel(self, handle: Handle) -> None:
        """Free the request's row. No event follows, except one that is being delivered."""
        ...

    def close(self, *, drop: bool = False) -> None:
        """Accept nothing new and return when all is finished; drop: cancel everything instead."""
        ...
