"""The (task, policy) cells of a run: their problems, their missing samples, and the grading of their samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile, zip_longest
from pathlib import Path
from threading import Condition, Thread
from typing import Any, TypeVar

from twotemp import graders, tasks
from twotemp.errors import UserError, reading
from twotemp.evaluation.plan import TaskChoice
from twotemp.folders import read_json, write_json
from twotemp.graders.base import Grader, grades
from twotemp.policies import Portfolio, policy_from_dict, spell
from twotemp.records import Grade, Problem, Sample
from twotemp.sampling.requests import CHUNK, PlannedSample, assistant_turn
from twotemp.serialization import record
from twotemp.store import Cell, Store, Writer
from twotemp.tasks import ProblemSet, Task

IMPORTED = "problems.json"  # in the folder of a cell: the problems imported with its samples
RECORDED = "recorded"  # the grader that stands for the grades of another harness
DATA = "data.json"  # beside run.json: the local data files by task
PORTFOLIOS = "portfolios.json"  # beside run.json
WRITE_GRADES = 64  # grades written together; a kill loses at most these
MOST_WAITING = 4 * CHUNK  # samples that wait to be graded; beyond that, drawing waits for grading
T = TypeVar("T")


def task_of(cell: Cell) -> Task:
    """Return the task of a cell: the one imported with its samples, or else the registered task."""
    return imported(cell.config.task, cell.path) or tasks.get(cell.config.task)


def without_verdicts(runs: Sequence[Path]) -> bool:
    """Return whether no sample of these runs can have a verdict."""
    cells = [cell for run in runs for cell in Store.open(run).cells()]
    return bool(cells) and all(task_of(cell).grader == "none" for cell in cells)


def imported(name: str, folder: Path) -> Task | None:
    """Return the task whose problems are in this folder; None if it has none."""
    path = folder / IMPORTED
    if not path.exists():
        return None

    def load(data: object, prompt: object, subset: object) -> ProblemSet:
        try:
            content = read_json(path)
            problems = tuple(record(Problem, problem, str(path)) for problem in content["problems"])
            if not all(
                isinstance(problem.id, str) and isinstance(problem.prompt, str) for problem in problems
            ):
                raise ValueError("a problem's id and prompt must be strings")
            return ProblemSet(problems, str(content["digest"]), str(path))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}); import the results again") from error

    return Task(name, "imported", RECORDED, length=0, load=load)


def record_problems(cell: Cell, problems: ProblemSet) -> None:
    """Record the problems that were imported with the samples of a cell."""
    content = {"digest": problems.digest, "problems": [vars(problem) for problem in problems.problems]}
    write_json(cell.path / IMPORTED, content)


def record_data_files(run: Path, files: Mapping[str, tuple[Path, bool]]) -> None:
    """Record the local data files of a run, so that later commands need not name them again.

    Args:
        run: The run directory.
        files: By task, the file and whether it may differ from the published rows.
    """
    recorded = _recorded_files(run)
    entries = {
        task: {"file": str(file.resolve()), "altered": altered} for task, (file, altered) in files.items()
    }
    if recorded | entries != recorded:
        write_json(run / DATA, recorded | entries)


def _recorded_files(run: Path) -> dict[str, Any]:
    data = read_json(run / DATA) if (run / DATA).exists() else {}
    if not isinstance(data, dict) or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("file"), str)
        and isinstance(entry.get("altered"), bool)
        for entry in data.values()
    ):
        raise UserError(f"{run / DATA} is damaged; remove it, and name data files with --data TASK=FILE")
    return data


def problems_of(
    cell: Cell, data: Mapping[str, Path] | None = None, allow_altered: bool = False, *, hub: bool = True
) -> ProblemSet:
    """Return the problems that a cell was drawn from; raise a UserError if the data have changed since.

    Args:
        cell: A cell of a run.
        data: Local data files by task; default: those that the run directory records.
        allow_altered: Accept a file in `data` whose rows differ from the published ones.
        hub: Whether problems that are neither generated nor in a local file may be downloaded.
    """
    config, recorded = cell.config, _recorded_files(cell.path.parent)
    file = (data or {}).get(config.task)
    if file is None and config.task in recorded:
        file, allow_altered = Path(recorded[config.task]["file"]), recorded[config.task]["altered"]
        if not file.is_file():
            raise UserError(
                f"{cell.path} was drawn from {file}, which no longer exists; give its new location: "
                f"--data {config.task}=FILE"
            )
    local = config.task not in tasks.BENCHMARKS or imported(config.task, cell.path) is not None
    if file is None and not hub and not local:
        raise UserError(
            f"the questions of {config.task} are not in a local file; give one: --data {config.task}=FILE"
        )
    problems = task_of(cell).problems(
        data=file,
        prompt=config.prompt or None,
        subset=config.subset,
        allow_altered=allow_altered and file is not None,
    )
    if problems.digest != config.data:
        raise UserError(
            f"{cell.path} was drawn from other data than {problems.source} ({config.data[:12]}…, not "
            f"{problems.digest[:12]}…); give the file it was drawn from: --data {config.task}=FILE"
        )
    return problems


def record_portfolios(run: Path, portfolios: Iterable[Portfolio]) -> None:
    """Record the portfolios of a run, so that reports show them: portfolios have no cells."""
    recorded = portfolios_of(run)
    if new := [portfolio for portfolio in portfolios if portfolio not in recorded]:
        write_json(run / PORTFOLIOS, [portfolio.to_dict() for portfolio in [*recorded, *new]])


def portfolios_of(run: Path) -> list[Portfolio]:
    """Return the portfolios that a run records."""
    file = run / PORTFOLIOS
    if not file.exists():
        return []
    with reading(file, "it is damaged; remove it, and give the portfolios to `twotemp eval` again"):
        portfolios = [policy_from_dict(entry) for entry in read_json(file)]
    return [portfolio for portfolio in portfolios if isinstance(portfolio, Portfolio)]


@dataclass(frozen=True, eq=False)
class LoadedTask:
    """A task with its problems and its grader."""

    choice: TaskChoice
    task: Task
    problems: Mapping[str, Problem]  # of this shard, by id, in the order of the data
    digest: str
    grader: Grader

    @classmethod
    def load(
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
        """The samples to request. A sample that is repelled by earlier ones needs these to be drawn again."""
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
        items = [(problems[s.request], assistant_turn(problems[s.request], s.text)) for s in samples]
        graded = takewhile(lambda _: not stopped(), zip(samples, grades(grader, items)))
        for batch in batched(graded, WRITE_GRADES):
            self.writer.grades(grader.name, [(sample.key, grade) for sample, grade in batch])
            on_grades([grade for _, grade in batch])


def missing_chunks(cells: Sequence[CellWork]) -> Iterator[tuple[LoadedTask, list[PlannedSample]]]:
    """Yield what is missing, in chunks of whole questions with all their policies; the tasks take turns."""

    def of_task(loaded: LoadedTask) -> Iterator[tuple[LoadedTask, list[PlannedSample]]]:
        wanted: dict[str, list[PlannedSample]] = {question: [] for question in loaded.problems}
        for work in cells:
            for question, index in work.wanted if work.loaded is loaded else ():
                wanted[question].append(PlannedSample(loaded.problems[question], work.policy, index))
        chunk: list[PlannedSample] = []
        for samples in wanted.values():
            chunk += samples
            if len(chunk) >= CHUNK:
                yield loaded, chunk
                chunk = []
        if chunk:
            yield loaded, chunk

    turns = zip_longest(*map(of_task, dict.fromkeys(work.loaded for work in cells)))
    return (chunk for turn in turns for chunk in turn if chunk is not None)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


class Grading:
    """The grading thread, as a context manager: samples that are `put` have been graded when it exits.

    Samples are stored before they are put here, so whatever stops a run (an error, Ctrl-C, a kill) costs only grades,
    which the next run adds. An error of the grader is raised by the next `put`, or on exit.
    """

    def __init__(self, cells: Sequence[CellWork], on_grades: Callable[[str, Sequence[Grade]], None]) -> None:
        """Prepare the thread.

        Args:
            cells: The cells of the run; samples that earlier runs stored and did not grade are graded first.
            on_grades: Called with (policy, grades), in the thread.
        """
        self._cells, self._on_grades = cells, on_grades
        self._waiting: dict[CellWork, list[Sample]] = {}
        self._changed = Condition()
        self._ending = self._stopped = self._ended = False
        self._error: BaseException | None = None
        # A daemon, so that a hanging grader does not keep a stopped process alive.
        self._thread = Thread(target=self._run, name="grading", daemon=True)

    def __enter__(self) -> Grading:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._changed:
            self._ending, self._stopped = True, kind is not None
            self._changed.notify_all()
            # Not `Thread.join`: after an interrupt it considers the thread finished (Python 3.11).
            try:
                self._changed.wait_for(lambda: self._ended)
            except BaseException:  # Ctrl-C while the last samples are graded
                self._stopped = True
                self._changed.wait_for(lambda: self._ended)
                raise
        if kind is None and self._error is not None:
            raise self._error

    @property
    def queue_is_empty(self) -> bool:
        """Whether no sample waits, so that the grader will be idle after those it is grading now."""
        return not self._waiting

    @property
    def failed(self) -> bool:
        """Whether the grader raised an error, which `put` will raise."""
        return self._error is not None

    def put(self, work: CellWork, samples: Sequence[Sample]) -> None:
        """Queue stored samples of a cell; wait while the queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._room())
            if self._error is not None:
                raise self._error
            self._waiting.setdefault(work, []).extend(samples)
            self._changed.notify_all()

    def _room(self) -> bool:
        return sum(map(len, self._waiting.values())) < MOST_WAITING

    def _run(self) -> None:
        try:
            for work, samples in chain(self._backlog(), self._queued()):
                work.grade(samples, partial(self._on_grades, work.name), lambda: self._stopped)
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _backlog(self) -> Iterator[tuple[CellWork, list[Sample]]]:
        for work in self._cells:
            for samples in batched(work.pending(), CHUNK):
                if self._stopped:
                    return
                yield work, samples

    def _queued(self) -> Iterator[tuple[CellWork, list[Sample]]]:
        """Yield all queued samples of one cell at a time: large batches keep a grader's workers busy."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if self._stopped or not self._waiting:
                    return
                work = next(iter(self._waiting))
                samples = self._waiting.pop(work)
                self._changed.notify_all()
            yield work, samples


def regrade(
    run: Path | str,
    *,
    grader: str | Mapping[str, str] | None = None,
    cells: Collection[str] | None = None,
    data: Mapping[str, Path] | None = None,
    allow_altered: bool = False,
    again: bool = False,
    on_progress: Callable[[str, int], None] | None = None,
) -> dict[str, int]:
    """Grade the samples of a run that a grader has not graded yet, without drawing any.

    Args:
        run: The run directory.
        grader: A grader other than the tasks' own, or graders by task.
        cells: The names of the cells to grade; default: all.
        data: Local data files by task, the ones that the run was drawn from.
        allow_altered: Accept files in `data` whose rows differ from the published ones.
        again: Grade all samples, whether graded before or not.
        on_progress: Called with (cell, samples graded so far).

    Returns:
        The number of samples graded in each cell.
    """
    graded: dict[str, int] = {}
    for cell in Store.open(run).cells():
        if cells is not None and cell.name not in cells:
            continue
        problems, task = problems_of(cell, data, allow_altered), task_of(cell)
        requested = grader.get(task.name) if isinstance(grader, Mapping) else grader
        graded[cell.name] = 0
        with closing(graders.get(requested or task.grader)) as chosen, cell.writer() as writer:
            by_id = {problem.id: problem for problem in problems.problems}
            loaded = LoadedTask(TaskChoice(task.name), task, by_id, problems.digest, chosen)
            work = CellWork(loaded, cell, writer)
            for samples in batched(cell.samples() if again else cell.pending(chosen.name), CHUNK):
                work.grade(samples)
                graded[cell.name] += len(samples)
                if on_progress is not None:
                    on_progress(cell.name, graded[cell.name])
    return graded
