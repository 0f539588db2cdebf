"""Run a plan: problems -> requests -> engine -> store -> grades."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from twotemp import graders, tasks
from twotemp.asking import Ask, requests
from twotemp.errors import UserError
from twotemp.evaluation.data import record_data_files
from twotemp.evaluation.drawing import Drawer, InProcess
from twotemp.evaluation.grading import Grading
from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.evaluation.progress import ProgressCallback, ProgressCounter
from twotemp.evaluation.work import CHUNK_SAMPLES, CellWork, LoadedTask, chunks
from twotemp.folders import unbroken
from twotemp.graders.base import Grader
from twotemp.policies import spell
from twotemp.records import Policy, Request, Sample
from twotemp.store import Cell, Config, Store

if TYPE_CHECKING:
    from twotemp.models.base import Denoiser

# Finished samples wait for a write of this many, or of this age in seconds: a kill costs no more. Where samples come
# so fast that the disk would hold them up, a write waits for more (a chunk at most, and no longer). A grader that
# would have nothing to do gets them sooner, but writing takes a small share of the time even where a disk is slow.
WRITE_SAMPLES, WRITE_SECONDS, HUNGRY_SECONDS, WRITING_SHARE, MOST_WRITING = 64, 2.0, 0.2, 0.05, 0.2


class Evaluation(AbstractContextManager["Evaluation"]):
    """A plan with its data loaded, its graders ready and its run directory open: everything but the model.

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
                LoadedTask.of(choice, self._grader(choice), plan.questions, shard) for choice in plan.tasks
            ]
            if not self.samples:
                raise UserError(f"shard {number}/{count} of these tasks has no question; use fewer shards")
            self.store = Store.create(out)
            record_data_files(
                self.store.path, {c.name: (c.data, c.allow_altered) for c in plan.tasks if c.data is not None}
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
        return self.plan.n * len(self.plan.policies) * sum(len(loaded.problems) for loaded in self._tasks)

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
        self, model: Denoiser, *, batch_size: int | None = None, watch: ProgressCallback | None = None
    ) -> Store:
        """Draw the missing samples with a model in this process, and grade them.

        Args:
            model: The model to draw with.
            batch_size: Rows computed together; None: as many as fit.
            watch: Called with the progress.

        Returns:
            The store. If interrupted, it holds everything that was finished.
        """
        return self.run_with(InProcess(model, batch_size=batch_size, cache=self.plan.cache), watch=watch)

    def run_with(self, drawer: Drawer, *, watch: ProgressCallback | None = None) -> Store:
        """As `run`, but a drawer draws, here or elsewhere; it must use the plan's cache itself."""
        name, mark = drawer.name, drawer.fingerprint
        cells = [
            (loaded, self._cell(name, mark, loaded, policy))
            for loaded in self._tasks
            for policy in self.plan.policies
        ]
        with ExitStack() as stack:
            works = [
                CellWork(
                    loaded,
                    cell,
                    stack.enter_context(cell.writer()),
                    cell.missing(loaded.problems, self.plan.n),
                )
                for loaded, cell in cells
            ]
            counter = _counter(works, self.plan.n, watch)
            with Grading(works, counter.graded) as grading:
                self._draw(drawer, works, counter, grading)
        return self.store

    def _cell(self, model: str, mark: str, loaded: LoadedTask, policy: Policy) -> Cell:
        plan, task = self.plan, loaded.task
        config = Config(
            task=task.name,
            data=loaded.digest,
            prompt=loaded.choice.prompt or (task.prompts[0] if task.prompts else ""),
            subset=loaded.choice.subset or (task.subsets[0] if task.subsets else None),
            model=model,
            fingerprint=mark,
            policy=policy,
            length=plan.length or task.length,
            block=plan.block,
            seed=plan.seed,
            # What is off counts as left out, so that runs of 0.1.0, which had fewer choices, go on.
            options={
                "cache": plan.cache,
                "trace": plan.trace,
                "compile": plan.compile,
                "chat": None if plan.chat is None else "chat" if plan.chat else "plain",
            },
        )
        return self.store.cell(f"{task.name}@{spell(policy)}", config)

    def _draw(
        self, drawer: Drawer, works: Sequence[CellWork], counter: ProgressCounter, grading: Grading
    ) -> None:
        """Draw what is missing; every sample is in the store when this returns, or as soon as something stops it."""
        work_of = {(work.loaded, work.policy): work for work in works}
        again = {work: {*work.wanted} - {*work.missing} for work in works if work.policy.repel}
        wanted = ((loaded, self._requests(drawer, loaded, asks)) for loaded, asks in chunks(works))
        fresh: dict[CellWork, list[Sample]] = defaultdict(list)

        def store() -> Iterator[tuple[CellWork, list[Sample]]]:
            for work in list(fresh):
                with unbroken():
                    work.writer.samples(fresh[work])
                    samples = fresh.pop(work)  # written: not again, should the next one fail
                counter.drawn((work.loaded.task.name, sample.request) for sample in samples)
                yield work, samples

        def hand_over() -> float:
            """Store and have graded; the seconds that storing took."""
            began = perf_counter()
            stored = list(store())
            took = perf_counter() - began
            for work, samples in stored:
                grading.put(work, samples)
            return took

        count, written, took = 0, perf_counter(), 0.0
        try:
            for loaded, sample in drawer.draw(wanted):
                work = work_of[loaded, sample.policy]
                if (sample.request, sample.index) in again.get(work, ()):
                    continue  # stored by an earlier run: drawn for the others of its group
                fresh[work].append(sample)
                now, count = perf_counter(), count + 1
                hungry = max(HUNGRY_SECONDS, took / WRITING_SHARE)
                late = now - written > (hungry if grading.hungry else WRITE_SECONDS)
                slow_disk = now - written < took / MOST_WRITING and count < CHUNK_SAMPLES
                if late or grading.failed or (count >= WRITE_SAMPLES and not slow_disk):
                    took = hand_over()
                    count, written = 0, perf_counter()
            hand_over()
        except BaseException:  # Ctrl-C and errors, too, leave what is finished in the store
            for work, samples in fresh.items():  # Ctrl-C may have come just after some were written
                work.writer.samples(sample for sample in samples if sample.key not in work.writer)
            raise

    def _requests(self, drawer: Drawer, loaded: LoadedTask, asks: Iterable[Ask]) -> Iterator[Request]:
        plan = self.plan
        return requests(
            drawer,
            asks,
            length=plan.length or loaded.task.length,
            block=plan.block,
            seed=plan.seed,
            trace=plan.trace,
            chat=plan.chat,
        )


def _counter(works: Sequence[CellWork], n: int, watch: ProgressCallback | None) -> ProgressCounter:
    """Return a counter that includes what earlier runs stored."""
    left = {(work.loaded.task.name, question): 0 for work in works for question in work.loaded.problems}
    for work in works:
        for question, _ in work.missing:
            left[work.loaded.task.name, question] += 1
    all_samples = n * sum(len(work.loaded.problems) for work in works)
    counter = ProgressCounter(left, all_samples, (work.name for work in works), watch)
    for work in works:
        stored = work.cell.grades(work.loaded.grader.name).items()
        counter.graded(work.name, (grade for key, grade in stored if key[0] in work.loaded.problems))
    return counter
