"""Run a plan: problems -> requests -> backend -> store -> grades."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING

from twotemp import graders, tasks
from twotemp.errors import UserError
from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.evaluation.work import (
    CellWork,
    Grading,
    LoadedTask,
    missing_chunks,
    record_data_files,
    record_portfolios,
)
from twotemp.folders import defer_interrupt
from twotemp.graders.base import Grader
from twotemp.policies import Portfolio, spell
from twotemp.records import Grade, Policy, Request, Sample
from twotemp.sampling.requests import CHUNK, PlannedSample, problem_requests
from twotemp.store import Cell, Config, Store

if TYPE_CHECKING:
    from twotemp.backends import Backend
    from twotemp.models.base import Denoiser

# When drawn samples are written; `Evaluation._draw` explains why.
WRITE_SAMPLES = 64  # samples that are written together
WRITE_SECONDS = 2.0  # that a sample waits, at most, while the grader is busy
IDLE_GRADER_SECONDS = 0.2  # the same while the grader has nothing to do
WRITING_SHARE = 0.05  # the largest share of the time that is spent on writing for an idle grader
LARGEST_WRITING_SHARE = 0.2  # the largest share of the time for all writing; beyond it, batches grow


class Evaluation(AbstractContextManager["Evaluation"]):
    """A plan with its data loaded, its graders ready and its run directory open: all that is needed except the model.

    Errors in the plan are raised here, before a large model is loaded. Use it as a context manager.
    """

    def __init__(self, plan: Plan, out: Path | str, *, shard: tuple[int, int] = (1, 1)) -> None:
        """Load the data of a plan and open its run directory.

        Args:
            plan: What to draw.
            out: The run directory; a run in it with the same settings is continued.
            shard: (number, count): draw every `count`-th question, starting with question `number`.
        """
        number, count = shard
        if not 1 <= number <= count:
            raise UserError(f"shard {number}/{count} does not exist; use 1/{count} to {count}/{count}")
        self.plan = plan
        self._graders: dict[str, Grader] = {}
        try:
            self._tasks = [
                LoadedTask.load(choice, self._grader(choice), plan.questions, shard) for choice in plan.tasks
            ]
            if not self.samples:
                raise UserError(f"shard {number}/{count} of these tasks has no question; use fewer shards")
            self.store = Store.create(out)
            record_data_files(
                self.store.path, {c.name: (c.data, c.allow_altered) for c in plan.tasks if c.data is not None}
            )
            record_portfolios(
                self.store.path, [policy for policy in plan.policies if isinstance(policy, Portfolio)]
            )
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the graders."""
        for grader in self._graders.values():
            grader.close()

    @property
    def samples(self) -> int:
        """How many samples of these tasks the run will hold, including those of earlier runs."""
        per_question = sum(map(len, self.plan.indices().values()))
        return per_question * sum(len(loaded.problems) for loaded in self._tasks)

    @property
    def grader_names(self) -> dict[str, str]:
        """The grader of each task, as the store spells it."""
        return {loaded.task.name: loaded.grader.name for loaded in self._tasks}

    def _grader(self, choice: TaskChoice) -> Grader:
        name = choice.grader or tasks.get(choice.name).grader
        if name not in self._graders:
            self._graders[name] = graders.get(name)
        return self._graders[name]

    def run(
        self, model: Denoiser, *, batch_size: int | None = None, on_progress: ProgressCallback | None = None
    ) -> Store:
        """Draw the missing samples with a model in this process, and grade them.

        Args:
            model: The model to draw with.
            batch_size: Rows computed together; None: as many as fit.
            on_progress: Called with the progress.

        Returns:
            The store. If interrupted, it holds everything that was finished.
        """
        from twotemp.backends.local import LocalBackend  # torch, which grading does not need

        backend = LocalBackend(model, batch_size=batch_size, cache=self.plan.cache)
        return self.run_with(backend, on_progress=on_progress)

    def run_with(self, backend: Backend, *, on_progress: ProgressCallback | None = None) -> Store:
        """Do the same as `run` with any backend. The backend must use the plan's cache; return the store."""
        model, fingerprint = backend.name, backend.fingerprint
        # A portfolio has no cell: its samples are those of its components.
        planned = [
            (loaded, self._cell(model, fingerprint, loaded, policy), indices)
            for loaded in self._tasks
            for policy, indices in self.plan.indices().items()
        ]
        with ExitStack() as stack:
            cells = [
                CellWork(
                    loaded,
                    cell,
                    stack.enter_context(cell.writer()),
                    cell.missing(loaded.problems, indices),
                )
                for loaded, cell, indices in planned
            ]
            counter = _counter(cells, self.samples, on_progress)
            with Grading(cells, counter.graded) as grading:
                self._draw(backend, cells, counter, grading)
        return self.store

    def _cell(self, model: str, fingerprint: str, loaded: LoadedTask, policy: Policy) -> Cell:
        plan, task = self.plan, loaded.task
        config = Config(
            task=task.name,
            data=loaded.digest,
            prompt=loaded.choice.prompt or (task.prompts[0] if task.prompts else ""),
            subset=loaded.choice.subset or (task.subsets[0] if task.subsets else None),
            model=model,
            fingerprint=fingerprint,
            policy=policy,
            length=plan.length or task.length,
            block=plan.block,
            seed=plan.seed,
            # An option that is off counts as unset, so that runs from before it existed can be continued.
            options={
                "cache": plan.cache,
                "trace": plan.trace,
                "compile": plan.compile,
                "chat": None if plan.chat is None else "chat" if plan.chat else "plain",
            },
        )
        return self.store.cell(f"{task.name}@{spell(policy)}", config)

    def _draw(
        self, backend: Backend, cells: Sequence[CellWork], counter: ProgressCounter, grading: Grading
    ) -> None:
        """Draw the missing samples. All drawn samples are in the store when this returns, also after an interruption.

        Samples arrive one by one and are written in batches, because each write costs a file operation and an fsync.
        `_SampleBuffer` holds the samples and decides when to write. It balances four goals:

        - a kill must not cost much (`WRITE_SAMPLES`, `WRITE_SECONDS`);
        - graders must not wait for work (`IDLE_GRADER_SECONDS`);
        - writing must not take much of the time on a slow disk (`WRITING_SHARE`);
        - samples must not arrive faster than they are written (`LARGEST_WRITING_SHARE`, up to a chunk).
        """
        work_of = {(work.loaded.task.name, work.policy): work for work in cells}
        stored = {work: {*work.wanted} - {*work.missing} for work in cells if work.policy.repel}
        buffer = _SampleBuffer(counter, grading)
        requests = (
            request
            for loaded, planned in missing_chunks(cells)
            for request in self._requests(backend, loaded, planned)
        )
        try:
            for sample in backend.sample(requests):
                work = work_of[sample.tag, sample.policy]
                if (sample.request, sample.index) in stored.get(work, ()):
                    continue  # stored by an earlier run: drawn for the others of its group
                buffer.add(work, sample)
            buffer.write()
        except BaseException:  # after Ctrl-C or an error, finished samples are stored as well
            buffer.rescue()
            raise

    def _requests(
        self, backend: Backend, loaded: LoadedTask, planned: Iterable[PlannedSample]
    ) -> Iterator[Request]:
        plan = self.plan
        return problem_requests(
            backend.text,
            planned,
            length=plan.length or loaded.task.length,
            block=plan.block,
            seed=plan.seed,
            trace=plan.trace,
            chat=plan.chat,
            tag=loaded.task.name,
            eos_stop=not plan.trace,  # a trace shows the whole row
        )


class _SampleBuffer:
    """Samples that were drawn and are not in the store yet; see `Evaluation._draw`."""

    def __init__(self, counter: ProgressCounter, grading: Grading) -> None:
        self._counter, self._grading = counter, grading
        self._samples: dict[CellWork, list[Sample]] = defaultdict(list)
        self._count = 0
        self._written = perf_counter()  # when the last write ended
        self._cost = 0.0  # seconds that it took

    def add(self, work: CellWork, sample: Sample) -> None:
        """Keep a sample, and write all of them if it is time."""
        self._samples[work].append(sample)
        self._count += 1
        if self._due():
            self.write()

    def _due(self) -> bool:
        if self._grading.failed:
            return True
        waited = perf_counter() - self._written
        if self._grading.queue_is_empty:
            longest = max(IDLE_GRADER_SECONDS, self._cost / WRITING_SHARE)
        else:
            longest = WRITE_SECONDS
        slow_disk = waited < self._cost / LARGEST_WRITING_SHARE and self._count < CHUNK
        return waited > longest or (self._count >= WRITE_SAMPLES and not slow_disk)

    def write(self) -> None:
        """Store the samples and hand them to the graders."""
        began = perf_counter()
        written = [(work, self._write_cell(work)) for work in list(self._samples)]
        self._cost = perf_counter() - began
        for work, samples in written:
            self._grading.put(work, samples)
        self._count, self._written = 0, perf_counter()

    def _write_cell(self, work: CellWork) -> list[Sample]:
        with defer_interrupt():
            work.writer.samples(self._samples[work])
            # Now, so that they are not written again if the next cell fails.
            samples = self._samples.pop(work)
        self._counter.drawn((work.loaded.task.name, sample.request) for sample in samples)
        return samples

    def rescue(self) -> None:
        """Store the remaining samples after an interruption, which may have come just after some were written."""
        for work, samples in self._samples.items():
            work.writer.samples(sample for sample in samples if sample.key not in work.writer)


def _counter(
    cells: Sequence[CellWork], all_samples: int, on_progress: ProgressCallback | None
) -> ProgressCounter:
    """Return a counter that includes what earlier runs stored."""
    left = {(work.loaded.task.name, question): 0 for work in cells for question in work.loaded.problems}
    for work in cells:
        for question, _ in work.missing:
            left[work.loaded.task.name, question] += 1
    counter = ProgressCounter(left, all_samples, (work.name for work in cells), on_progress)
    for work in cells:
        stored = work.cell.grades(work.loaded.grader.name).items()
        counter.graded(work.name, (grade for key, grade in stored if key[0] in work.loaded.problems))
    return counter


@dataclass(frozen=True)
class Progress:
    """A snapshot of a running evaluation; `passed` counts (right, graded) by policy."""

    samples: int
    all_samples: int
    questions: int
    all_questions: int
    passed: Mapping[str, tuple[int, int]] = field(default_factory=dict)


ProgressCallback = Callable[[Progress], None]
QuestionKey = tuple[str, str]  # task, problem id


class ProgressCounter:
    """Counts samples for `Progress`.

    Drawing and grading call it from two threads; calls of `on_progress` never overlap.
    """

    def __init__(
        self,
        left: Mapping[QuestionKey, int],
        all_samples: int,
        policies: Iterable[str],
        on_progress: ProgressCallback | None,
    ) -> None:
        """Start counting.

        Args:
            left: Samples to draw of every question, including those with none.
            all_samples: Samples of the whole run, including those of earlier runs.
            policies: Names of the policies.
            on_progress: Called with every change.
        """
        self._left, self._all_samples, self._on_progress = dict(left), all_samples, on_progress
        self._passed = {name: [0, 0] for name in policies}
        self._lock = Lock()

    def drawn(self, questions: Iterable[QuestionKey]) -> None:
        """Count a sample for each of these questions."""
        with self._lock:
            for question in questions:
                self._left[question] -= 1
            self._notify()

    def graded(self, policy: str, grades: Iterable[Grade]) -> None:
        """Count the grades of samples of a policy."""
        with self._lock:
            for grade in grades:
                if grade.outcome != "ungraded":
                    self._passed[policy][0] += grade.passed
                    self._passed[policy][1] += 1
            self._notify()

    def _notify(self) -> None:
        if self._on_progress is None:
            return
        left = list(self._left.values())
        self._on_progress(
            Progress(
                samples=self._all_samples - sum(left),
                all_samples=self._all_samples,
                questions=left.count(0),
                all_questions=len(left),
                passed={name: (right, total) for name, (right, total) in self._passed.items()},
            )
        )
