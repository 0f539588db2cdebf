"""Groups of samples of training problems, drawn from the weights being trained, and their rewards."""

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
from twotemp.rl import rewards as reward_functions
from twotemp.rl.rewards import Reward
from twotemp.sampling.prompts import ProblemRequest, answer, problem_requests
from twotemp.tasks import SOURCES, Task


@dataclass(frozen=True)
class Dataset:
    """Problems to learn from, problems held out, and the grader of both."""

    task: Task
    grader: Grader
    data: Path | None = None  # a file of training problems; None: the task generates them
    held_out: tuple[Problem, ...] = ()

    def training(self, seed: int) -> Iterator[Problem]:
        """Return the endless stream of training problems."""
        return training_problems(self.task, seed, self.data)

    def to_dict(self) -> dict[str, str | None]:
        """Return the names of the parts, and the number and a digest of the held-out problems."""
        text = "\n".join(f"{problem.id} {problem.prompt}" for problem in self.held_out)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return {
            "task": self.task.name,
            "grader": self.grader.name,
            "data": None if self.data is None else str(self.data),
            "held_out": f"{len(self.held_out)} questions {digest}",
        }


def training_problems(task: Task, seed: int, data: Path | None = None) -> Iterator[Problem]:
    """Return an endless stream: the train split of a generated task, or a file's problems, reordered every epoch.

    It is a function of the seed, so that a run is continued by skipping the problems it has used. A file is read, or
    refused, before the first problem is asked for.
    """
    if data is not None:
        problems = task.problems(data=data, allow_altered=True).problems
        if not problems:
            raise UserError(f"{data} has no problem to learn from; give another file (--data)")
        return _epochs(problems, seed)
    if task.name not in SOURCES:
        raise UserError(
            f"{task.name} does not generate training problems; give a file of them in the task's format "
            "(--data train.jsonl), and keep it apart from the test problems"
        )
    source = SOURCES[task.name]
    examples = enumerate(source.examples(seed, "train"))
    return (source.problem(example, "train", number) for number, example in examples)


def _epochs(problems: Sequence[Problem], seed: int) -> Iterator[Problem]:
    """Yield all problems again and again, each time in another order."""
    for epoch in count():
        yield from sorted(problems, key=lambda p: hashlib.blake2b(f"{seed} {epoch} {p.id}".encode()).digest())


@dataclass(frozen=True)
class Rollouts:
    """The groups of one step; sample i of group g has index g * size + i."""

    problems: tuple[Problem, ...]
    samples: tuple[Sample, ...]
    grades: tuple[Grade, ...]
    rewards: Tensor  # [groups, size] float32, NaN: ungraded
    seconds_drawing: float
    seconds_grading: float

    @property
    def size(self) -> int:
        """Samples in a group."""
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
    """Draw a group of samples for each problem and compute their rewards.

    A sample's noise is addressed by (seed, number and id of the problem, index): the same on any number of workers,
    and another where a problem comes again.

    Args:
        backend: draws the samples.
        grader: of the task.
        problems: by their number in the stream of the whole run.
        policy: how to sample.
        rewards: reward functions with their weights.
        size: samples per problem.
        seed: of the noise.
        length: tokens of a completion.
        block: width of a decoding block; None: the default.
    """
    started = perf_counter()
    asks = [
        ProblemRequest(problem, policy, index, id=f"{number} {problem.id}")
        for number, problem in problems.items()
        for index in range(size)
    ]
    wanted = list(problem_requests(backend.text, asks, length=length, block=block, seed=seed, trace=True))
    found = {sample.key: sample for sample in backend.sample(wanted)}
    drawn = perf_counter()
    samples = tuple(found[request.key] for request in wanted)
    asked = [ask.problem for ask in asks]
    texts = [answer(problem, sample.text) for problem, sample in zip(asked, samples)]
    grades = tuple(grader.grade(zip(asked, texts)))
    columns = reward_functions.columns_of(asked, samples, grades)
    values = torch.tensor(reward_functions.total(rewards, texts, columns), dtype=torch.float32)
    return Rollouts(
        problems=tuple(problems.values()),
        samples=samples,
        grades=grades,
        rewards=values.view(len(problems), size),
        seconds_drawing=drawn - started,
        seconds_grading=perf_counter() - drawn,
    )
