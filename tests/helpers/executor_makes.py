"""What workers of the tests draw with: samples that cost nothing, or the micro model's; and moments to stumble at.
Imported by the workers themselves."""

from __future__ import annotations

import atexit
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.evaluation import Drawer, InProcess
from twotemp.records import Request, Sample, Trace

Stepped = Callable[[], None]


class Free:
    """A drawer without a model: a sample depends on its request alone. Each takes a few steps."""

    name, fingerprint = "free", "f1nger"

    def __init__(self, stepped: Stepped = lambda: None, steps: int = 3, seconds: float = 0.0) -> None:
        self._stepped, self._steps, self._seconds = stepped, steps, seconds

    def encode(self, prompt: Any, *, prefill: str = "", chat: bool | None = None) -> list[int]:
        if "Latin" in prompt:
            raise UserError("the prompt is in Latin; write English")
        return [1, *(prompt + prefill).encode()]

    def draw(self, chunks: Any) -> Iterator[tuple[Any, Sample]]:
        for name, requests in chunks:
            for request in requests:
                for _ in range(self._steps):
                    time.sleep(self._seconds)
                    self._stepped()
                yield name, free_sample(request)


def free_sample(request: Request) -> Sample:
    rng = random.Random(f"{request.key} {request.policy.name}")
    places = tuple(range(len(request.prompt), len(request.prompt) + request.length))
    tokens = tuple(rng.randrange(256) for _ in places)
    trace = Trace(tuple(range(len(places))), *(tuple(rng.random() for _ in places) for _ in "ce"))
    costs = (len(places), len(places), len(places), 0.0)
    return Sample(
        *(request.id, request.index, request.seed, request.policy, request.prompt, places, tokens, *costs),
        finish="length",
        text=" ".join(map(str, tokens)),
        trace=trace if request.trace else None,
    )


def free(place: int, stepped: Stepped) -> Drawer:
    return Free(stepped)


def slow(place: int, stepped: Stepped) -> Drawer:
    return Free(stepped, seconds=0.02)


def told(place: int, stepped: Stepped) -> Drawer:
    """Its name tells what it sees of a secret."""
    drawer = Free(stepped)
    drawer.name = str(os.environ.get("HF_TOKEN"))
    return drawer


def last_words(link: Any) -> None:
    """What a process does that fails, and whose libraries then take a moment to end."""
    atexit.register(lambda: (link.close(), time.sleep(0.5)))
    raise RuntimeError("the sky fell")


def micro(place: int, stepped: Stepped) -> Drawer:
    from tests.helpers import toy_task
    from twotemp.engine import Steps

    return InProcess(toy_task.micro_model(), observer=Steps(lambda view: stepped()))


@dataclass(frozen=True)
class Stumbling:
    """Whoever comes first to so many steps does something else.

    folder: of marks, one for each time it stumbled, so that it can be asserted that it did; never more than `times`.
    """

    folder: Path
    how: str
    times: int = 1
    after: int = 20  # steps
    make: Callable[[int, Stepped], Drawer] = free

    def __call__(self, place: int, stepped: Stepped) -> Drawer:
        if self.after == 0:
            self._stumble()
        taken = [0]

        def step() -> None:
            taken[0] += 1
            if taken[0] == self.after and self.how in ("kill", "stop", "hang", "mistake", "crash"):
                self._stumble()
            stepped()

        return self.make(place, step)

    def _stumble(self) -> None:
        marks = len(list(self.folder.iterdir()))
        if marks >= self.times:
            return
        try:
            (self.folder / str(marks)).touch(exist_ok=False)
        except FileExistsError:  # another one was first
            self._stumble()
            return
        match self.how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                time.sleep(1000)
            case "mistake":
                raise UserError("the prompt is in Latin; write English")
            case "crash":
                raise RuntimeError("the sky fell")
