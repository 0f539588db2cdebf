"""What the driver and its workers tell each other, and how requests are cut into units of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from twotemp.groups import gather
from twotemp.records import Key, Policy, Request, Sample

if TYPE_CHECKING:
    from twotemp.evaluation.drawing import Chunk
    from twotemp.models.base import Message

T = TypeVar("T")
# Requests of a unit: four of the engine's batches of up to 64, so that slots that fall free are filled.
UNIT, UNIT_BATCHES = 256, 4


# To a worker.


@dataclass(frozen=True)
class Encode:
    """See `LanguageModel.encode`."""

    prompt: str | Sequence[Message]
    prefill: str
    chat: bool | None


@dataclass(frozen=True)
class Draw:
    """Draw all of these in one call of the engine."""

    requests: tuple[Request, ...]


# From a worker.


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Encoded:
    ids: list[int]


@dataclass(frozen=True)
class Drawn:
    """Finished samples of the unit at hand; none: only a sign of life."""

    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Done:
    """The unit at hand is finished."""


@dataclass(frozen=True)
class Failed:
    """A mistake of the user's: trying again would not help."""

    message: str
    unit: bool = False  # a unit was being drawn, and there will be no more of it


@dataclass(frozen=True)
class Lost:
    """The worker ended, or its machine did. Said by the backend, as the worker cannot."""

    reason: str


Order = Encode | Draw
News = Ready | Encoded | Drawn | Done | Failed | Lost


# Units.

Name = tuple[Key, Policy]


@dataclass(eq=False)
class Unit(Generic[T]):
    """Requests that are drawn together: by whom and how often does not change their samples by a bit."""

    tag: T
    requests: tuple[Request, ...]
    owed: set[Name] = field(init=False)  # whose samples have not arrived yet
    losses: int = 0  # workers that were lost at it

    def __post_init__(self) -> None:
        self.owed = {(request.key, request.policy) for request in self.requests}

    def take(self, sample: Sample) -> bool:
        """Is it one that is owed? Of a unit drawn again, the samples that came the first time are not."""
        name = sample.key, sample.policy
        owed = name in self.owed
        self.owed.discard(name)
        return owed


def cut(chunks: Iterable[Chunk[T]], size: int = UNIT) -> Iterator[Unit[T]]:
    """Each chunk in units of up to `size` requests whose policies share a structure, as equal as can be.

    It depends on the requests alone: the same run is cut the same way, whoever draws it.
    """
    for tag, requests in chunks:
        lanes: dict[tuple[str, ...], list[Request]] = defaultdict(list)
        for policy, some in groupby(requests, attrgetter("policy")):
            lanes[policy.structure].extend(some)
        for structure in sorted(lanes):
            # Samples that repel each other come in groups, which are cut by no one.
            whole = gather(lanes[structure])
            count = ceil(len(lanes[structure]) / size)
            for number in range(count):
                part = whole[len(whole) * number // count : len(whole) * (number + 1) // count]
                if part:
                    yield Unit(tag, tuple(chain.from_iterable(part)))
