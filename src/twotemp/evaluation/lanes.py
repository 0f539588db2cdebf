"""The (task, policy) cells of a run while they are worked on: what is missing, and how it is graded and stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import TypeVar

from twotemp import tasks
from twotemp.evaluation.plan import TaskChoice
from twotemp.evaluation.progress import Counter
from twotemp.graders.base import Grader
from twotemp.policies import spell
from twotemp.records import Problem, Sample
from twotemp.store import Cell, Writer
from twotemp.tasks import Task

# A chunk is what one call of the engine draws, for one task: large enough for freed slots to be refilled, small
# enough that a run stopped early has nearly as many questions of every task.
CHUNK_SAMPLES = 1024
WRITE_GRADES = 64  # verdicts written together: a kill costs no more
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A task with its problems and its grader."""

    choice: TaskChoice
    task: Task
    problems: Mapping[str, Problem]  # by id, in the order of the data; those of this shard
    digest: str
    grader: Grader

    @classmethod
    def of(cls, choice: TaskChoice, grader: Grader, questions: int | None, shard: tuple[int, int]) -> Loaded:
        found = choice.problems()
        mine = found.problems[: choice.questions or questions][shard[0] - 1 :: shard[1]]
        return cls(choice, tasks.get(choice.name), {p.id: p for p in mine}, found.digest, grader)


class Lane:
    """One (task, policy) cell being worked on."""

    def __init__(self, loaded: Loaded, cell: Cell, writer: Writer) -> None:
        self.loaded, self.cell, self.writer = loaded, cell, writer
        self.policy = cell.config.policy
        self.name = spell(self.policy)

    def waiting(self) -> Iterator[Sample]:
        """Samples of our questions that are stored and not graded."""
        pending = self.cell.pending(self.loaded.grader.name)
        return (sample for sample in pending if sample.request in self.loaded.problems)

    def grade(self, samples: Iterable[Sample], counter: Counter | None = None) -> None:
        problems, grader = self.loaded.problems, self.loaded.grader
        for some in parts(samples, CHUNK_SAMPLES):
            # The answer is the assistant's whole turn: a prefill may open the code block that the text closes.
            items = [(problems[s.request], problems[s.request].prefill + (s.text or "")) for s in some]
            for part in parts(zip(some, grader.grade(items)), WRITE_GRADES):
                self.writer.grades(grader.name, [(sample.key, grade) for sample, grade in part])
                if counter is not None:
                    counter.graded(self, [grade for _, grade in part])


@dataclass(frozen=True)
class Todo:
    """A sample to draw."""

    lane: Lane
    question: str
    index: int


Missing = dict[Loaded, dict[str, list[Todo]]]


def missing_samples(lanes: Sequence[Lane], n: int) -> Missing:
    """What to draw, by task and question."""
    missing: Missing = {lane.loaded: {question: [] for question in lane.loaded.problems} for lane in lanes}
    for lane in lanes:
        for question, index in lane.cell.missing(lane.loaded.problems, n):
            missing[lane.loaded][question].append(Todo(lane, question, index))
    return missing


def chunks(missing: Missing) -> Iterator[list[Todo]]:
    """Chunks of whole questions with all their policies; the tasks take turns."""

    def of_task(by_question: Mapping[str, list[Todo]]) -> Iterator[list[Todo]]:
        chunk: list[Todo] = []
        for todo in by_question.values():
            chunk += todo
            if len(chunk) >= CHUNK_SAMPLES:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    return (chunk for turn in zip_longest(*map(of_task, missing.values())) for chunk in turn if chunk)


def parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
