"""A backend with workers: cuts requests into units, each of which one worker draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import ceil
from queue import SimpleQueue

from twotemp.backends.local import Event, chunks
from twotemp.backends.messages import AnyTransport
from twotemp.backends.supervisor import HANG_SECONDS, Supervisor
from twotemp.engine.scheduler import gather
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.records import Request, Sample

# Requests of a unit: enough for four of the engine's batches of up to 64, so that freed slots are refilled.
UNIT, UNIT_BATCHES = 256, 4


class WorkerPool(Supervisor):
    """A `Backend` whose model is loaded by workers. Use it as a context manager: the workers end with it."""

    def __init__(
        self,
        transport: AnyTransport,
        workers: int,
        text: LanguageModel,
        *,
        batch_size: int | None = None,
        unit: int | None = None,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        """Start the workers.

        Args:
            transport: Starts them and carries messages.
            workers: How many.
            text: The model without its weights: see `models.load.load_text`.
            batch_size: The workers' batch size, if set.
            unit: Requests of a unit; None for enough to fill several batches.
            hang_seconds: See `Supervisor`.
        """
        self.text = text
        self._unit = unit or max(UNIT, UNIT_BATCHES * (batch_size or 0))
        # A worker is sent its next unit when a quarter of the last one is left.
        super().__init__(transport, workers, depth=self._unit // 4, hang_seconds=hang_seconds)

    def sample(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """See `Backend.sample`. Two units per worker are read ahead."""
        events: SimpleQueue[Event] = SimpleQueue()
        owed, ahead = 0, 2 * self.workers * self._unit
        units = cut(requests, self._unit)
        try:
            while True:
                while owed < ahead and (unit := next(units, None)) is not None:
                    self.submit_all(unit, events.put)
                    owed += len(unit)
                if not owed:
                    return
                event = events.get()
                if isinstance(event, UserError):
                    raise event
                assert isinstance(event, Sample)  # no row is watched
                owed -= 1
                yield event
        finally:  # the caller stopped early, or an error ended the loop: cancel the rest
            if owed:
                self.cancel_all()


def cut(requests: Iterable[Request], size: int) -> Iterator[Sequence[Request]]:
    """Yield requests in units of up to `size` whose policies share a structure, as equal as possible.

    Samples that repel each other stay in one unit.
    """
    for chunk in chunks(requests):
        by_structure: dict[tuple[str, ...], list[Request]] = defaultdict(list)
        for request in chunk:
            by_structure[request.policy.structure].append(request)
        for structure in sorted(by_structure):
            groups = gather(by_structure[structure])
            count = ceil(len(by_structure[structure]) / size)
            for number in range(count):
                unit = groups[len(groups) * number // count : len(groups) * (number + 1) // count]
                if unit:
                    yield tuple(chain.from_iterable(unit))
