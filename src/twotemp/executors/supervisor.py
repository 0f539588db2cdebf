"""One supervisor for every kind of worker: who has which unit, what is owed, and what is sent again after a loss."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from twotemp.errors import UserError
from twotemp.executors.messages import (
    UNIT,
    UNIT_BATCHES,
    Done,
    Draw,
    Drawn,
    Encode,
    Encoded,
    Failed,
    Lost,
    News,
    Order,
    Ready,
    Unit,
    cut,
)
from twotemp.records import Sample

if TYPE_CHECKING:
    from twotemp.evaluation.drawing import Chunk
    from twotemp.models.base import Message

log = logging.getLogger("twotemp")
T = TypeVar("T")

ATTEMPTS = 3  # workers that may be lost at one unit, or one after another while they load the model
PATIENCE = 600.0  # seconds without a step after which a worker is taken to hang
LOADING_PATIENCE = 3600.0  # the same while it loads the model, when there are no steps to count
TICK = 1.0  # seconds between two looks at the clock


class Worker(Protocol):
    """A worker as the driver sees it."""

    def send(self, order: Order) -> None:
        """To a worker that is lost, it does nothing: the loss is heard of by `Crew.hear`."""
        ...

    def kill(self) -> None:
        """At once; whatever it was doing, another can do again."""
        ...


W = TypeVar("W", bound=Worker)


class Crew(Protocol[W]):
    """Starts workers and hears them. It knows nothing of what they work at."""

    def start(self, place: int) -> W: ...

    def hear(self, workers: Sequence[W], seconds: float) -> list[tuple[int, News]]:
        """(which of them, what it says), in each one's order; empty if nobody says anything for so long."""
        ...

    def close(self) -> None: ...


@dataclass(eq=False)
class _Hand:
    """One place of the crew: a worker, replaced when it is lost, and its units in the order it was given them."""

    worker: Any
    heard: float = field(default_factory=monotonic)
    card: Ready | None = None
    units: deque[Unit[Any]] = field(default_factory=deque)
    encoded: list[int] | None = None

    @property
    def owes(self) -> int:
        return sum(len(unit.owed) for unit in self.units)

    def give(self, unit: Unit[Any]) -> None:
        if not self.units:
            self.heard = monotonic()
        self.units.append(unit)
        self.worker.send(Draw(unit.requests))


class Supervisor:
    """A `Drawer` whose model is with its workers. Use it as a context manager: its end is theirs.

    A unit whose worker is lost is drawn again as a whole, so that every sample is the same to the last bit; what
    had arrived is not handed out twice. A mistake of the user's (`UserError`) is raised at once.
    """

    def __init__(
        self,
        crew: Crew[Any],
        count: int,
        *,
        batch_size: int | None = None,
        unit: int | None = None,
        patience: float = PATIENCE,
        loading_patience: float = LOADING_PATIENCE,
    ) -> None:
        """batch_size: the workers'. unit: requests of a unit; None: enough for several batches."""
        self.workers = count
        self.resent = 0  # samples that were owed by workers that were lost
        self._crew, self._unit = crew, unit or max(UNIT, UNIT_BATCHES * (batch_size or 0))
        self._patience, self._loading_patience = patience, loading_patience
        self._card: Ready | None = None
        self._waiting: deque[Unit[Any]] = deque()
        self._arrived: deque[tuple[Any, Sample]] = deque()
        self._lost_loading = 0
        self._hands: list[_Hand] = []
        try:
            for place in range(count):
                self._hands.append(_Hand(crew.start(place)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for hand in self._hands:
            hand.worker.kill()
        self._hands.clear()
        self._crew.close()

    @property
    def name(self) -> str:
        return self._loaded().name

    @property
    def fingerprint(self) -> str:
        return self._loaded().fingerprint

    def _loaded(self) -> Ready:
        while self._card is None:
            self._hear()
        return self._card

    def encode(
        self, prompt: str | Sequence[Message], *, prefill: str = "", chat: bool | None = None
    ) -> list[int]:
        """By the worker that owes least; one that is drawing answers after the step it is at."""
        while True:
            self._loaded()
            ready = [hand for hand in self._hands if hand.card is not None]
            if not ready:
                self._hear()
                continue
            hand = min(ready, key=lambda hand: hand.owes)
            worker, hand.encoded = hand.worker, None
            worker.send(Encode(prompt, prefill, chat))
            while hand.worker is worker:
                if hand.encoded is not None:
                    return hand.encoded
                self._hear()

    def draw(self, chunks: Iterable[Chunk[T]]) -> Iterator[tuple[T, Sample]]:
        """See `Drawer.draw`. Chunks are asked for as workers become free, so none of them waits for a chunk's end."""
        units = cut(chunks, self._unit)
        try:
            while True:
                self._hand_out(units)
                while self._arrived:
                    yield self._arrived.popleft()
                if not self._waiting and not any(hand.units for hand in self._hands):
                    return
                self._hear()
        finally:  # left early: what is still drawn is of no use to anybody
            self._waiting.clear()
            self._arrived.clear()
            for hand in self._hands:
                for unit in hand.units:
                    unit.owed.clear()

    def _hand_out(self, units: Iterator[Unit[Any]]) -> None:
        while True:
            if not self._waiting:
                # This may encode prompts, and hear workers meanwhile: look who is free only afterwards.
                self._waiting.extend(islice(units, 1))
            # The next unit is sent a little early, so that nobody waits for us; not earlier, as that would leave
            # one worker with two units at the end and another with none.
            free = [h for h in self._hands if h.card and len(h.units) < 2 and h.owes <= self._unit // 4]
            if not free or not self._waiting:
                return
            min(free, key=lambda hand: hand.owes).give(self._waiting.popleft())

    def _hear(self) -> None:
        """What the workers say, for up to one tick; whoever is silent for too long is lost."""
        hands = list(self._hands)
        news = self._crew.hear([hand.worker for hand in hands], TICK)
        now = monotonic()
        mistakes = []
        for number, said in news:
            hands[number].heard = now
            try:
                self._take(hands[number], said)
            except UserError as error:  # what the others said counts too, should the caller go on
                mistakes.append(error)
        if mistakes:
            raise mistakes[0]
        for hand in hands:
            limit = self._loading_patience if hand.card is None else self._patience
            if (hand.units or hand.card is None) and now - hand.heard > limit:
                doing = "loading" if hand.card is None else "a step"
                self._replace(hand, f"no end of {doing} in {limit:g} s")

    def _take(self, hand: _Hand, said: News) -> None:
        match said:
            case Drawn(()):
                pass  # a sign of life, which may come after the end of the last unit
            case Drawn(samples):
                unit = hand.units[0]
                self._arrived.extend((unit.tag, sample) for sample in samples if unit.take(sample))
            case Done():
                unit = hand.units.popleft()
                assert not unit.owed, f"{len(unit.owed)} samples of a finished unit are missing"
            case Encoded(ids):
                hand.encoded = ids
            case Ready():
                hand.card, self._lost_loading = said, 0
                self._card = self._card or said
                if said != self._card:
                    raise UserError(
                        f"two workers loaded different models ({self._card.name} {self._card.fingerprint[:12]}… and "
                        f"{said.name} {said.fingerprint[:12]}…); give all machines the same checkpoint"
                    )
            case Failed(message, unit=drawing):
                if drawing:
                    hand.units.popleft()
                raise UserError(message)
            case Lost(reason):
                self._replace(hand, reason)

    def _replace(self, hand: _Hand, reason: str) -> None:
        """Start another worker in the place of one that is lost; its units are the next to be handed out."""
        hand.worker.kill()
        log.warning("a worker was lost (%s); %d samples are drawn again", reason, hand.owes)
        self.resent += hand.owes
        if hand.card is None:
            self._lost_loading += 1
            if self._lost_loading >= ATTEMPTS:
                raise UserError(
                    f"{ATTEMPTS} workers in turn were lost while they loaded the model (the last: {reason}); is "
                    "there enough memory for so many? Try fewer with --workers"
                )
        if hand.units:
            # It was at the first one; the other was only waiting for its turn.
            unit = hand.units[0]
            unit.losses += 1
            if unit.losses >= ATTEMPTS and unit.owed:
                first = next(r for r in unit.requests if (r.key, r.policy) in unit.owed)
                others = f" and {len(unit.owed) - 1} others" if len(unit.owed) > 1 else ""
                raise UserError(
                    f"{ATTEMPTS} workers in turn were lost while they drew {first.key} with {first.policy.name}"
                    f"{others} (the last: {reason}); try a smaller --batch-size, or fewer --workers"
                )
        self._waiting.extendleft(unit for unit in reversed(hand.units) if unit.owed)
        hand.worker, hand.heard, hand.card, hand.encoded = None, monotonic(), None, None
        hand.units.clear()
        hand.worker = self._crew.start(self._hands.index(hand))
