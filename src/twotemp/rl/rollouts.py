"""Groups of samples of training problems, drawn by the engine from the weights being trained, and their rewards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from twotemp.backends import Backend
from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.records import Grade, Policy, Problem, Sample
from twotemp.rl import rewards as scoring
from twotemp.rl.rewards import Reward
from twotemp.sampling.prompts import ProblemRequest, answer, problem_requests
from twotemp.tasks import SOURCES, Task


@dataclass(frozen=True)
class Dataset:
    """Problems to learn from, problems held out, and who judges the answers."""

    task: Task
    grader: Grader
    data: Path | None = None  # a file of training problems; None: the task makes its own
    held_out: tuple[Problem, ...] = ()

    def training(self, seed: int) -> Iterator[Problem]:
        return training_problems(self.task, seed, self.data)

    def to_dict(self) -> dict[str, str | None]:
        """Names, and of the held-out problems how many and a digest of which."""
        text = "\n".join(f"{problem.id} {problem.prompt}" for problem in self.held_out)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return {
            "task": self.task.name,
            "grader": self.grader.name,
            "data": None if self.data is None else str(self.data),
            "held_out": f"{len(self.held_out)} questions {digest}",
        }


def training_problems(task: Task, seed: int, data: Path | None = None) -> Iterator[Problem]:
    """An endless stream: the train split of a generated task, or the problems of a file in a new order each time.

    A function of the seed alone, so that a run is continued by skipping what it has used. A file is read, and
    refused, here and not at the first problem.
    """
    if data is not None:
        problems = task.problems(data=data, allow_altered=True).problems
        if not problems:
            raise UserError(f"{data} has no problem to learn from; give a file with some (--data)")
        return _again_and_again(problems, seed)
    if task.name not in SOURCES:
        raise UserError(
            f"{task.name} has no training problems of its own; give a file of them in the task's format "
            "(--data train.jsonl), and keep it apart from the test problems"
        )
    source = SOURCES[task.name]
    examples = enumerate(source.examples(seed, "train"))
    return (source.problem(example, "train", number) for number, example in examples)


def _again_and_again(problems: Sequence[Problem], seed: int) -> Iterator[Problem]:
    for epoch in count():
        yield from sorted(problems, key=lambda p: hashlib.blake2b(f"{seed} {epoch} {p.id}".encode()).digest())


@dataclass(frozen=True)
class Rollouts:
    """The groups of one step; sample g of group p is at p * size + g."""

    problems: tuple[Problem, ...]
    samples: tuple[Sample, ...]
    grades: tuple[Grade, ...]
    rewards: Tensor  # [groups, size] float32, NaN: ungraded
    seconds_drawing: float
    seconds_grading: float

    @property
    def size(self) -> int:
        return self.rewards.shape[1]


def collect(
    backend: Backend,
    grader: Grader,
    problems: Mapping[int, Problem],
    policy: Policy,
    rewards: Mapping[Reward, float],
    *,
    size: int,
    seed: int,
    length: int,
    block: int | None,
) -> Rollouts:
    """Draw `size` samples per problem and judge them; problems by their place in the stream of the whole run.

    A sample's noise is addressed by (seed, place and problem, index): the same on one worker or on many, and
    another where a problem comes again.
    """
    started = perf_counter()
    asks = [
        ProblemRequest(problem, policy, index, id=f"{place} {problem.id}")
        for place, problem in problems.items()
        for index in range(size)
    ]
    wanted = list(problem_requests(backend.text, asks, length=length, block=block, seed=seed, trace=True))
    found = {sample.key: sample for sample in backend.sample(wanted)}
    drawn = perf_counter()
    samples = tuple(found[request.key] for request in wanted)
    asked = [ask.problem for ask in asks]
    texts = [answer(problem, sample.text) for problem, sample in zip(asked, samples)]
    grades = tuple(grader.grade(zip(asked, texts)))
    columns = scoring.columns_of(asked, samples, grades)
    values = torch.tensor(scoring.total(rewards, texts, columns), dtype=torch.float32)
    return Rollouts(
        problems=tuple(problems.values()),
        samples=samples,
        grades=grades,
        rewards=values.view(len(problems), size),
        seconds_drawing=drawn - started,
        seconds_grading=perf_counter() - drawn,
    )
