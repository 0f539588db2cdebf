"""From a plan to a graded run: problems -> requests -> engine -> store -> grades."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from twotemp import graders, tasks
from twotemp.analysis import remember_data
from twotemp.errors import UserError
from twotemp.evaluation.lanes import Lane, Loaded, Todo, chunks, missing_samples
from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.evaluation.progress import Counter, Watch
from twotemp.graders.base import Grader
from twotemp.policies import spell
from twotemp.records import Policy, Request, Sample
from twotemp.store import Cell, Config, Store

if TYPE_CHECKING:
    from twotemp.engine import Ledger
    from twotemp.models.base import Denoiser

# Finished samples wait for a write of this many, or of this age in seconds: a kill costs no more.
WRITE_SAMPLES, WRITE_SECONDS = 64, 2.0


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
                Loaded.of(choice, self._grader(choice), plan.questions, shard) for choice in plan.tasks
            ]
            self.store = Store.create(out)
            remember_data(
                self.store.path, {c.name: (c.data, c.allow_altered) for c in plan.tasks if c.data is not None}
            )
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

    def run(
        self,
        model: Denoiser,
        *,
        batch_size: int | None = None,
        watch: Watch | None = None,
        ledger: Ledger | None = None,
    ) -> Store:
        """Draw and grade what is missing. Interrupted, it leaves everything finished in the store."""
        from twotemp.models.checkpoint import fingerprint

        mark = fingerprint(model)
        cells = [
            (loaded, self._cell(model, mark, loaded, policy))
            for loaded in self._tasks
            for policy in self.plan.policies
        ]
        with ExitStack() as stack:
            lanes = [Lane(loaded, cell, stack.enter_context(cell.writer())) for loaded, cell in cells]
            missing = missing_samples(lanes, self.plan.n)
            counter = Counter(self.plan, lanes, missing, watch)
            for lane in lanes:  # what a run stored that ended before it could grade
                lane.grade(lane.waiting(), counter)
            for chunk in chunks(missing):
                for lane, samples in self._draw(model, chunk, batch_size, counter, ledger).items():
                    lane.grade(samples, counter)
        return self.store

    def _cell(self, model: Denoiser, mark: str, loaded: Loaded, policy: Policy) -> Cell:
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
            options={"cache": plan.cache, "trace": plan.trace},
        )
        return self.store.cell(f"{task.name}@{spell(policy)}", config)

    def _draw(
        self,
        model: Denoiser,
        chunk: Sequence[Todo],
        batch_size: int | None,
        counter: Counter,
        ledger: Ledger | None,
    ) -> dict[Lane, list[Sample]]:
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
        drawn: dict[Lane, list[Sample]] = defaultdict(list)
        fresh: dict[Lane, list[Sample]] = defaultdict(list)
        written = perf_counter()

        def write() -> None:
            for lane in list(fresh):
                lane.writer.samples(fresh[lane])
                samples = fresh.pop(lane)  # written: not again, should the next one fail
                drawn[lane] += samples
                counter.drawn(lane, samples)

        try:
            for count, sample in enumerate(
                stream(model, requests, batch_size=batch_size, cache=self.plan.cache, ledger=ledger), start=1
            ):
                fresh[lanes[sample.policy]].append(sample)
                if count % WRITE_SAMPLES == 0 or perf_counter() - written > WRITE_SECONDS:
                    write()
                    written = perf_counter()
        finally:  # Ctrl-C and errors, too, leave what is finished in the store
            write()
        return drawn
