"""Services for workers under test: samples that cost nothing, or the micro model's; and faults that strike in a step.

Imported by the workers themselves.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.helpers.toy import ToyModel
from twotemp.backends.local import LocalService
from twotemp.engine import RowHandle, RowStep, StepCallback
from twotemp.errors import UserError
from twotemp.records import Request, Sample, Trace

Hook = Callable[[], None]


def nothing() -> None:
    pass


class FreeText:
    """The text side of a model that does not exist."""

    name, fingerprint, tokenizer = "free", "f1nger", None
    vocab_size, mask_id, eos_ids, max_length, block_size = 10**6, -1, (), None, None

    def encode(self, prompt: Any, *, prefill: str = "", chat: bool | None = None) -> list[int]:
        if "Latin" in prompt:
            raise UserError("the prompt is in Latin; write English")
        return [1, *(prompt + prefill).encode()]


class FreeBackend:
    """A backend without a model: a sample depends on its request alone."""

    name, fingerprint, workers, text = "free", "f1nger", 1, FreeText()

    def sample(self, requests: Iterable[Request]) -> Iterator[Sample]:
        return map(free_sample, requests)


def free_sample(request: Request) -> Sample:
    rng = random.Random(f"{request.key} {request.policy.name}")
    positions = tuple(range(len(request.prompt), len(request.prompt) + request.length))
    tokens = tuple(rng.randrange(256) for _ in positions)
    trace = Trace(tuple(range(len(positions))), *(tuple(rng.random() for _ in positions) for _ in "ce"))
    costs = (len(positions), len(positions), len(positions), 0.0)
    return Sample(
        *(request.id, request.index, request.seed, request.policy, request.prompt, positions, tokens, *costs),
        finish="length",
        text=" ".join(map(str, tokens)),
        trace=trace if request.trace else None,
        tag=request.tag,
    )


class FreeEngine:
    """Stands in for `engine.LiveBatches`: one row after the other, a few steps each."""

    slots = 64

    def __init__(self, on_step: Hook, steps: int, seconds: float) -> None:
        self._on_step, self._steps, self._seconds = on_step, steps, seconds
        self._waiting: deque[RowHandle] = deque()
        self._taken = 0

    @property
    def idle(self) -> bool:
        return not self._waiting

    def submit_group(self, requests: list[Request], watch: bool = False) -> list[RowHandle]:
        tickets = [RowHandle(request, watch) for request in requests]
        self._waiting.extend(tickets)
        return tickets

    def cancel(self, ticket: RowHandle) -> None:
        if ticket in self._waiting:
            self._taken = 0 if self._waiting[0] is ticket else self._taken
            self._waiting.remove(ticket)

    def turn(self) -> list[tuple[RowHandle, Any]]:
        if not self._waiting:
            return []
        time.sleep(self._seconds)
        try:
            self._on_step()
        except Exception as error:  # as an engine's batch that fails
            failed, self._taken = list(self._waiting), 0
            self._waiting.clear()
            return [(ticket, error) for ticket in failed]
        ticket, step = self._waiting[0], self._taken
        sample = replace(free_sample(ticket.request), text="", tag="")
        share = slice(
            len(sample.tokens) * step // self._steps, len(sample.tokens) * (step + 1) // self._steps
        )
        commits = [(p, t, 0.5) for p, t in zip(sample.positions[share], sample.tokens[share])]
        events: list[tuple[RowHandle, Any]] = [(ticket, RowStep(step, commits))] if ticket.watched else []
        self._taken += 1
        if self._taken == self._steps:
            self._taken = 0
            self._waiting.popleft()
            events.append((ticket, sample))
        return events


def free(
    index: int, on_turn: Hook, on_step: Hook = nothing, steps: int = 3, seconds: float = 0.0
) -> LocalService:
    service = LocalService(ToyModel(), 64, on_turn=on_turn)
    service.text = FreeText()  # type: ignore[assignment]
    service._live = FreeEngine(on_step, steps, seconds)  # type: ignore[assignment]
    return service


def slow(index: int, on_turn: Hook, on_step: Hook = nothing) -> LocalService:
    return free(index, on_turn, on_step, seconds=0.02)


def streaming(index: int, on_turn: Hook, on_step: Hook = nothing) -> LocalService:
    """Rows that take many steps."""
    return free(index, on_turn, on_step, steps=30, seconds=0.01)


def named(index: int, on_turn: Hook) -> LocalService:
    """Its name is what it sees of a secret."""
    service = free(index, on_turn)
    service.text.name = str(os.environ.get("HF_TOKEN"))
    return service


def broken(index: int, on_turn: Hook) -> LocalService:
    """A worker that fails while it starts."""
    raise RuntimeError("the sky fell")


def tiny(index: int, on_turn: Hook, on_step: Hook = nothing) -> LocalService:
    import twotemp

    return LocalService(
        twotemp.load("tiny"), 4, on_turn=on_turn, observer=StepCallback(lambda view: on_step())
    )


@dataclass(frozen=True)
class Serving:
    """Loads a model by its name, or its folder."""

    name: str

    def __call__(self, index: int, on_turn: Hook, on_step: Hook = nothing) -> LocalService:
        import twotemp

        return LocalService(
            twotemp.load(self.name), 4, on_turn=on_turn, observer=StepCallback(lambda view: on_step())
        )


def micro(index: int, on_turn: Hook, on_step: Hook = nothing) -> LocalService:
    from tests.helpers import toy_task

    return LocalService(
        toy_task.micro_model(), on_turn=on_turn, observer=StepCallback(lambda view: on_step())
    )


@dataclass(frozen=True)
class Stumbling:
    """Makes services of which the first to reach a step meets with a fault.

    folder: holds a mark for each fault with the process's id, so that a test can assert that it happened; never more
        than `times`.
    """

    folder: Path
    how: str
    times: int = 1
    after: int = 20  # steps; 0: while it starts
    make: Callable[..., LocalService] = free

    def __call__(self, index: int, on_turn: Hook) -> LocalService:
        if self.after == 0:
            self._stumble()
        taken = [0]

        def on_step() -> None:
            taken[0] += 1
            if taken[0] == self.after and self.how in ("kill", "stop", "hang", "mistake", "crash"):
                self._stumble()

        return self.make(index, on_turn, on_step)

    def _stumble(self) -> None:
        marks = len(list(self.folder.iterdir()))
        if marks >= self.times:
            return
        try:
            with (self.folder / str(marks)).open("x") as mark:
                mark.write(str(os.getpid()))
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
