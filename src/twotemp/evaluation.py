"""Evaluate policies on tasks: problems -> requests -> engine -> store -> grades.

Raw samples are stored before they are graded, and everything is addressed by (cell, question, sample index): a run
that was stopped in any way is continued by starting it again, and a larger n draws only what is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from twotemp import graders, tasks
from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.policies import spell
from twotemp.records import Grade, Policy, Problem, Request, Sample
from twotemp.store import Cell, Config, Key, Store, Writer
from twotemp.tasks import ProblemSet, Task

if TYPE_CHECKING:
    from twotemp.models.base import Denoiser

# A chunk is what one call of the engine draws, for one task: large enough for freed slots to be refilled, small
# enough that a run stopped early has nearly as many questions of every task.
CHUNK_SAMPLES = 1024
# Finished samples wait for a write of this many, or of this age in seconds: a kill costs no more.
WRITE_SAMPLES, WRITE_SECONDS = 64, 2.0


@dataclass(frozen=True)
class TaskChoice:
    """A task, and where its data come from, how it is asked and who grades it; None is the task's own default."""

    name: str
    data: Path | None = None
    prompt: str | None = None
    subset: str | None = None
    grader: str | None = None
    allow_altered: bool = False  # take a data file whose rows are not the published ones

    def problems(self) -> ProblemSet:
        task = tasks.get(self.name)
        return task.problems(
            data=self.data, prompt=self.prompt, subset=self.subset, allow_altered=self.allow_altered
        )


@dataclass(frozen=True)
class Plan:
    """What to draw. With a model's weights, it decides every sample."""

    tasks: tuple[TaskChoice, ...]
    policies: tuple[Policy, ...]
    n: int = 64  # samples a question
    questions: int | None = None  # the first so many of each task; None: all
    length: int | None = None  # tokens of an answer; None: the task's own
    block: int | None = None
    seed: int = 0
    trace: bool = False

    def __post_init__(self) -> None:
        for name in ("n", "questions", "length", "block"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UserError(f"{name} must be an integer >= 1, not {value!r}")
        if not self.tasks:
            raise UserError("no task given; name at least one, e.g. --tasks countdown-3")
        if not self.policies:
            raise UserError("no policy given; name at least one, e.g. --policies ar,tlc,tct")
        for kind, names in (
            ("task", [choice.name for choice in self.tasks]),
            ("policy", [spell(policy) for policy in self.policies]),
        ):
            if repeated := {name for name in names if names.count(name) > 1}:
                raise UserError(f"{kind} {', '.join(sorted(repeated))} is given twice; name each once")


@dataclass(frozen=True)
class Progress:
    """A running evaluation at one moment; `passed` counts (right, graded) by policy."""

    samples: int
    all_samples: int
    questions: int
    all_questions: int
    passed: Mapping[str, tuple[int, int]] = field(default_factory=dict)


Watch = Callable[[Progress], None]
T = TypeVar("T")


class Evaluation:
    """A plan with its data loaded, its graders ready and its run folder open: everything but the model.

    What can be wrong is found here, before a large model is loaded. Use it as a context manager.
    """

    def __init__(self, plan: Plan, out: Path | str, *, shard: tuple[int, int] = (1, 1)) -> None:
        number, count = shard
        if not 1 <= number <= count:
            raise UserError(f"shard {number}/{count} does not exist; use 1/{count} to {count}/{count}")
        self.plan = plan
        self._graders: dict[str, Grader] = {}
        try:
            self._tasks = [
                _Loaded.of(choice, self._grader(choice), plan.questions, shard) for choice in plan.tasks
            ]
            self.store = Store.create(out)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Evaluation:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for grader in self._graders.values():
            grader.close()

    def _grader(self, choice: TaskChoice) -> Grader:
        name = choice.grader or tasks.get(choice.name).grader
        if name not in self._graders:
            self._graders[name] = graders.get(name)
        return self._graders[name]

    def run(self, model: Denoiser, *, batch_size: int = 64, watch: Watch | None = None) -> Store:
        """Draw and grade what is missing. Interrupted, it leaves everything finished in the store."""
        from twotemp.models.checkpoint import fingerprint

        mark = fingerprint(model)
        cells = [
            (loaded, self._cell(model, mark, loaded, policy))
            for loaded in self._tasks
            for policy in self.plan.policies
        ]
        with ExitStack() as stack:
            lanes = [_Lane(loaded, cell, stack.enter_context(cell.writer())) for loaded, cell in cells]
            missing = _missing(lanes, self.plan.n)
            counter = _Counter(self.plan, lanes, missing, watch)
            for lane in lanes:  # what a run stored that ended before it could grade
                lane.grade(lane.waiting(), counter)
            for chunk in _chunks(missing):
                for lane, samples in self._draw(model, chunk, batch_size, counter).items():
                    lane.grade(samples, counter)
        return self.store

    def _cell(self, model: Denoiser, mark: str, loaded: _Loaded, policy: Policy) -> Cell:
        plan, task = self.plan, loaded.task
        config = Config(
            task=task.name,
            data=loaded.digest,
            prompt=loaded.choice.prompt or (task.prompts[0] if task.prompts else ""),
            subset=loaded.choice.subset or (task.subsets[0] if task.subsets else None),
            model=model.name,
            fingerprint=mark,
            policy=policy,
            length=plan.length or task.length,
            block=plan.block,
            seed=plan.seed,
            options={"trace": plan.trace},
        )
        return self.store.cell(f"{task.name}@{spell(policy)}", config)

    def _draw(
        self, model: Denoiser, chunk: Sequence[_Todo], batch_size: int, counter: _Counter
    ) -> dict[_Lane, list[Sample]]:
        """Draw a chunk; every sample is in the store when this returns, or as soon as something stops it."""
        from twotemp.models.text import encode
        from twotemp.sampling import stream

        loaded = chunk[0].lane.loaded  # a chunk is of one task
        questions = [loaded.problems[question] for question in {todo.question for todo in chunk}]
        prompts = {q.id: tuple(encode(model, q.prompt, prefill=q.prefill)) for q in questions}
        requests = [
            Request(
                id=todo.question,
                prompt=prompts[todo.question],
                policy=todo.lane.policy,
                length=self.plan.length or loaded.task.length,
                block=self.plan.block,
                seed=self.plan.seed,
                index=todo.index,
                trace=self.plan.trace,
            )
            for todo in chunk
        ]
        lanes = {todo.lane.policy: todo.lane for todo in chunk}
        drawn: dict[_Lane, list[Sample]] = defaultdict(list)
        fresh: dict[_Lane, list[Sample]] = defaultdict(list)
        written = perf_counter()

        def write() -> None:
            for lane in list(fresh):
                lane.writer.samples(fresh[lane])
                samples = fresh.pop(lane)  # written: not again, should the next one fail
                drawn[lane] += samples
                counter.drawn(lane, samples)

        try:
            for count, sample in enumerate(stream(model, requests, batch_size=batch_size), start=1):
                fresh[lanes[sample.policy]].append(sample)
                if count % WRITE_SAMPLES == 0 or perf_counter() - written > WRITE_SECONDS:
                    write()
                    written = perf_counter()
        finally:  # Ctrl-C and errors, too, leave what is finished in the store
            write()
        return drawn


def regrade(
    run: Path | str,
    *,
    grader: str | None = None,
    data: Mapping[str, Path] | None = None,
    allow_altered: bool = False,
    again: bool = False,
    watch: Callable[[str, int], None] | None = None,
) -> dict[str, int]:
    """Grade the samples of a run that this grader has not judged, without drawing any; cell -> how many.

    grader: another than the task's own. data: local data files by task, the ones the run was drawn from.
    again: judge all samples once more.
    watch(cell, samples judged) is called as it goes.
    """
    judged: dict[str, int] = {}
    for cell in Store.open(run).cells():
        found, task = problems_of(cell, data, allow_altered), tasks.get(cell.config.task)
        judge = graders.get(grader or task.grader)
        judged[cell.name] = 0
        try:
            by_id = {problem.id: problem for problem in found.problems}
            loaded = _Loaded(TaskChoice(task.name), task, by_id, found.digest, found.source, judge)
            with cell.writer() as writer:
                lane = _Lane(loaded, cell, writer)
                for samples in _parts(cell.samples() if again else cell.pending(judge.name), CHUNK_SAMPLES):
                    lane.grade(samples)
                    judged[cell.name] += len(samples)
                    if watch is not None:
                        watch(cell.name, judged[cell.name])
        finally:
            judge.close()
    return judged


def problems_of(
    cell: Cell, data: Mapping[str, Path] | None = None, allow_altered: bool = False
) -> ProblemSet:
    """The problems a cell was drawn from; an error where today's data are others."""
    config = cell.config
    file = (data or {}).get(config.task)
    found = TaskChoice(
        config.task,
        file,
        config.prompt or None,
        config.subset,
        allow_altered=allow_altered and file is not None,
    ).problems()
    if found.digest != config.data:
        raise UserError(
            f"{cell.path} was drawn from other data than {found.source} ({config.data[:12]}…, not "
            f"{found.digest[:12]}…); give the file it was drawn from: --data {config.task}=FILE"
        )
    return found


def grader_of(cell: Cell, wanted: str | None = None) -> str | None:
    """Whose grades of a cell to use, as the store names them: those wanted (with or without the version), else
    the task's own, else the only ones there are. None: the cell has no grades."""
    there = cell.graders()
    if not there:
        return None
    name = wanted or tasks.get(cell.config.task).grader
    fitting = [grader for grader in there if grader == name or grader.split()[0] == name]
    if not fitting and wanted is None:
        fitting = there
    if len(fitting) != 1:
        raise UserError(
            f"{cell.path} was graded by {', '.join(map(repr, there))}; say which grades to report with --grader"
        )
    return fitting[0]


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A task with its problems and its grader."""

    choice: TaskChoice
    task: Task
    problems: Mapping[str, Problem]  # by id, in the order of the data; those of this shard
    digest: str
    source: str
    grader: Grader

    @classmethod
    def of(
        cls, choice: TaskChoice, grader: Grader, questions: int | None = None, shard: tuple[int, int] = (1, 1)
    ) -> _Loaded:
        found = choice.problems()
        mine = found.problems[:questions][shard[0] - 1 :: shard[1]]
        return cls(
            choice, tasks.get(choice.name), {p.id: p for p in mine}, found.digest, found.source, grader
        )


class _Lane:
    """One (task, policy) cell being worked on."""

    def __init__(self, loaded: _Loaded, cell: Cell, writer: Writer) -> None:
        self.loaded, self.cell, self.writer = loaded, cell, writer
        self.policy = cell.config.policy
        self.name = spell(self.policy)

    def waiting(self) -> Iterator[Sample]:
        """Samples of our questions that are stored and not graded."""
        pending = self.cell.pending(self.loaded.grader.name)
        return (sample for sample in pending if sample.request in self.loaded.problems)

    def grade(self, samples: Iterable[Sample], counter: _Counter | None = None) -> None:
        problems, grader = self.loaded.problems, self.loaded.grader
        for some in _parts(samples, CHUNK_SAMPLES):
            # The answer is the assistant's whole turn: a prefill may open the code block that the text closes.
            items = [(problems[s.request], problems[s.request].prefill + (s.text or "")) for s in some]
            for part in _parts(zip(some, grader.grade(items)), WRITE_SAMPLES):
                self.writer.grades(grader.name, [(Key.of(sample), grade) for sample, grade in part])
                if counter is not None:
                    counter.graded(self, [grade for _, grade in part])


@dataclass(frozen=True)
class _Todo:
    """A sample to draw."""

    lane: _Lane
    question: str
    index: int


Missing = dict[_Loaded, dict[str, list[_Todo]]]


def _missing(lanes: Sequence[_Lane], n: int) -> Missing:
    """What to draw, by task and question."""
    missing: Missing = {lane.loaded: {question: [] for question in lane.loaded.problems} for lane in lanes}
    for lane in lanes:
        for question, index in lane.cell.missing(lane.loaded.problems, n):
            missing[lane.loaded][question].append(_Todo(lane, question, index))
    return missing


def _chunks(missing: Missing) -> Iterator[list[_Todo]]:
    """Chunks of whole questions with all their policies; the tasks take turns."""

    def of_task(by_question: Mapping[str, list[_Todo]]) -> Iterator[list[_Todo]]:
        chunk: list[_Todo] = []
        for todo in by_question.values():
            chunk += todo
            if len(chunk) >= CHUNK_SAMPLES:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    return (chunk for turn in zip_longest(*map(of_task, missing.values())) for chunk in turn if chunk)


def _parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


class _Counter:
    """Keeps the numbers of `Progress`; what earlier runs stored counts, too."""

    def __init__(self, plan: Plan, lanes: Sequence[_Lane], missing: Missing, watch: Watch | None) -> None:
        self._watch = watch
        self._left = {
            (loaded, question): len(todo)
            for loaded, by_question in missing.items()
            for question, todo in by_question.items()
        }
        self._all_samples = len(self._left) * plan.n * len(plan.policies)
        self._passed = {lane.name: [0, 0] for lane in lanes}
        for lane in lanes:
            before = lane.cell.grades(lane.loaded.grader.name)
            self._count(
                lane, (grade for key, grade in before.items() if key.question in lane.loaded.problems)
            )
        self._tell()

    def drawn(self, lane: _Lane, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self._left[lane.loaded, sample.request] -= 1
        self._tell()

    def graded(self, lane: _Lane, grades: Iterable[Grade]) -> None:
        self._count(lane, grades)
        self._tell()

    def _count(self, lane: _Lane, grades: Iterable[Grade]) -> None:
        for grade in grades:
            if grade.outcome != "ungraded":
                self._passed[lane.name][0] += grade.passed
                self._passed[lane.name][1] += 1

    def _tell(self) -> None:
        if self._watch is None:
            return
        left = list(self._left.values())
        self._watch(
            Progress(
                samples=self._all_samples - sum(left),
                all_samples=self._all_samples,
                questions=left.count(0),
                all_questions=len(left),
                passed={name: (right, total) for name, (right, total) in self._passed.items()},
            )
        )
