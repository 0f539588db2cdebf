"""The (task, policy) cells of a running evaluation: what is missing, and how it is graded and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile, zip_longest
from typing import TypeVar

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.evaluation.plan import TaskChoice
from twotemp.graders.base import Grader, grades
from twotemp.policies import spell
from twotemp.records import Grade, Problem, Sample
from twotemp.sampling.prompts import CHUNK, ProblemRequest, answer
from twotemp.store import Cell, Writer
from twotemp.tasks import Task

WRITE_GRADES = 64  # grades written together; a kill loses at most these
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LoadedTask:
    """A task with its problems and its grader."""

    choice: TaskChoice
    task: Task
    problems: Mapping[str, Problem]  # of this shard, by id, in the order of the data
    digest: str
    grader: Grader

    @classmethod
    def of(
        cls, choice: TaskChoice, grader: Grader, questions: int | None, shard: tuple[int, int]
    ) -> LoadedTask:
        """Load a task.

        Args:
            choice: The task and its options.
            grader: The grader of its samples.
            questions: How many questions to take, unless the choice has its own number.
            shard: (number, count): take every `count`-th question, starting with question `number`.
        """
        loaded = choice.problems()
        problems = loaded.problems[: choice.questions or questions][shard[0] - 1 :: shard[1]]
        return cls(choice, tasks.get(choice.name), {p.id: p for p in problems}, loaded.digest, grader)


class CellWork:
    """One (task, policy) cell of a running evaluation, with its writer."""

    def __init__(
        self, loaded: LoadedTask, cell: Cell, writer: Writer, missing: Sequence[tuple[str, int]] = ()
    ) -> None:
        self.loaded, self.cell, self.writer = loaded, cell, writer
        self.missing = missing  # (question, sample index) of the samples to draw
        self.policy = cell.config.policy
        self.name = spell(self.policy)

    @property
    def wanted(self) -> Sequence[tuple[str, int]]:
        """The samples to request. Samples that repel each other depend on all before them, which are drawn again."""
        if not self.policy.repel:
            return self.missing
        last_index = dict(self.missing)
        return [(question, index) for question, last in last_index.items() for index in range(last + 1)]

    def pending(self) -> Iterator[Sample]:
        """Yield the samples of this shard that an earlier run stored and did not grade."""
        missing = set(self.missing)
        return (
            sample
            for sample in self.cell.pending(self.loaded.grader.name)
            if sample.request in self.loaded.problems and (sample.request, sample.index) not in missing
        )

    def grade(
        self,
        samples: Sequence[Sample],
        on_grades: Callable[[Sequence[Grade]], None] = lambda grades: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Grade samples and store the grades, batch by batch.

        Args:
            samples: Stored samples of this cell.
            on_grades: Called with the grades of each batch.
            stopped: Checked before each sample; once it returns True the rest is left to a later run.
        """
        problems, grader = self.loaded.problems, self.loaded.grader
        for sample in samples:
            if sample.request not in problems:
                raise UserError(
                    f"{self.cell.path} has a sample of question {sample.request!r}, which {self.loaded.task.name} "
                    "does not have; the run is damaged: restore it from a copy"
                )
        items = [(problems[s.request], answer(problems[s.request], s.text)) for s in samples]
        graded = takewhile(lambda _: not stopped(), zip(samples, grades(grader, items)))
        for batch in batched(graded, WRITE_GRADES):
            self.writer.grades(grader.name, [(sample.key, grade) for sample, grade in batch])
            on_grades([grade for _, grade in batch])


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


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
