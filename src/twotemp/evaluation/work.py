"""The (task, policy) cells of a run while they are worked on: what is missing, and how it is graded and stored."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile, zip_longest
from threading import current_thread, main_thread
from typing import TypeVar

from twotemp import tasks
from twotemp.evaluation.plan import TaskChoice
from twotemp.graders.base import Grader, grades
from twotemp.policies import spell
from twotemp.records import Grade, Problem, Sample
from twotemp.sampling.prompts import CHUNK, ProblemRequest, answer
from twotemp.store import Cell, Writer
from twotemp.tasks import Task

WRITE_GRADES = 64  # verdicts written together: a kill costs no more
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LoadedTask:
    """A task with its problems and its grader."""

    choice: TaskChoice
    task: Task
    problems: Mapping[str, Problem]  # by id, in the order of the data; those of this shard
    digest: str
    grader: Grader

    @classmethod
    def of(
        cls, choice: TaskChoice, grader: Grader, questions: int | None, shard: tuple[int, int]
    ) -> LoadedTask:
        found = choice.problems()
        mine = found.problems[: choice.questions or questions][shard[0] - 1 :: shard[1]]
        return cls(choice, tasks.get(choice.name), {p.id: p for p in mine}, found.digest, grader)


class CellWork:
    """One (task, policy) cell being worked on."""

    def __init__(
        self, loaded: LoadedTask, cell: Cell, writer: Writer, missing: Sequence[tuple[str, int]] = ()
    ) -> None:
        self.loaded, self.cell, self.writer = loaded, cell, writer
        self.missing = missing  # (question, sample index) of what is to draw
        self.policy = cell.config.policy
        self.name = spell(self.policy)

    @property
    def wanted(self) -> Sequence[tuple[str, int]]:
        """What is missing; of samples that repel each other also those before it, which are drawn with them again."""
        if not self.policy.repel:
            return self.missing
        upto = dict(self.missing)  # the last index of each question
        return [(question, index) for question, last in upto.items() for index in range(last + 1)]

    def waiting(self) -> Iterator[Sample]:
        """Samples of our questions that an earlier run stored and could not grade."""
        ours = set(self.missing)
        return (
            sample
            for sample in self.cell.pending(self.loaded.grader.name)
            if sample.request in self.loaded.problems and (sample.request, sample.index) not in ours
        )

    def grade(
        self,
        samples: Sequence[Sample],
        told: Callable[[Sequence[Grade]], None] = lambda grades: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Judge and store, part by part, and tell each part's grades; once stopped, the rest is left for later."""
        problems, grader = self.loaded.problems, self.loaded.grader
        items = [(problems[s.request], answer(problems[s.request], s.text)) for s in samples]
        judged = takewhile(lambda _: not stopped(), zip(samples, grades(grader, items)))
        for part in parts(judged, WRITE_GRADES):
            self.writer.grades(grader.name, [(sample.key, grade) for sample, grade in part])
            told([grade for _, grade in part])


def missing_chunks(works: Sequence[CellWork]) -> Iterator[tuple[LoadedTask, list[ProblemRequest]]]:
    """Yield what is missing, in chunks of whole questions with all their policies; the tasks take turns."""

    def of_task(loaded: LoadedTask) -> Iterator[tuple[LoadedTask, list[ProblemRequest]]]:
        wanted: dict[str, list[ProblemRequest]] = {question: [] for question in loaded.problems}
        for work in works:
            for question, index in work.wanted if work.loaded is loaded else ():
                wanted[question].append(ProblemRequest(loaded.problems[question], work.policy, index))
        chunk: list[ProblemRequest] = []
        for samples in wanted.values():
            chunk += samples
            if len(chunk) >= CHUNK:
                yield loaded, chunk
                chunk = []
        if chunk:
            yield loaded, chunk

    turns = zip_longest(*map(of_task, dict.fromkeys(work.loaded for work in works)))
    return (chunk for turn in turns for chunk in turn if chunk is not None)


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C inside comes at the end: what belongs together is done, or not begun."""
    if current_thread() is not main_thread():  # only the main thread is ever interrupted
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            signal.raise_signal(signal.SIGINT)


def parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
