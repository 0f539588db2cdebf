"""Groups of samples of training problems, drawn from the weights being trained, and their rewards."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from twotemp.backends import Backend
from twotemp.backends.worker import ModelLoader
from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.graders.rewards import Reward, reward_name
from twotemp.policies import AnyPolicy
from twotemp.records import Grade, Problem, Sample
from twotemp.rl.checkpoint import trainable
from twotemp.rl.objective import group_std
from twotemp.rl.settings import GrpoSettings
from twotemp.sampling.requests import PlannedSample, assistant_turn, problem_requests
from twotemp.tasks import SOURCES, Task

if TYPE_CHECKING:
    from twotemp.models.base import LanguageModel

TRAIN = "train"  # the subset of a published task that is for training


@dataclass(frozen=True)
class Dataset:
    """Problems to learn from, problems held out, and the grader of both."""

    task: Task
    grader: Grader
    data: Path | None = None  # a file of training problems; None: the task generates them
    held_out: tuple[Problem, ...] = ()
    prompt: str | None = None  # the template of the training problems; None: the task's first
    subset: str | None = None  # the training problems; None: those named `train`
    chat: bool | None = None  # None: the chat format if the model has one

    def training(self, seed: int) -> Iterator[Problem]:
        """Return the endless stream of training problems."""
        return training_problems(self.task, seed, self.data, prompt=self.prompt, subset=self.subset)

    def to_dict(self) -> dict[str, str | bool | None]:
        """Return the names of the parts, and the number and a digest of the held-out problems."""
        text = "\n".join(f"{problem.id} {problem.prompt}" for problem in self.held_out)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return {
            "task": self.task.name,
            "grader": self.grader.name,
            "data": None if self.data is None else str(self.data),
            "held_out": f"{len(self.held_out)} questions {digest}",
            "prompt": self.prompt,
            "subset": self.subset,
            "chat": self.chat,
        }


def training_problems(
    task: Task, seed: int, data: Path | None = None, *, prompt: str | None = None, subset: str | None = None
) -> Iterator[Problem]:
    """Return an endless stream: the train split of a task, or a file's problems, both reordered every epoch.

    A generated task has no epochs: its problems are all different.

    The stream is a function of the seed, so a run continues by skipping the problems it has used. A file is read and
    checked at once, not when the first problem is needed.

    Args:
        task: Whose problems.
        seed: Of the order, or of generated problems.
        data: A file of problems; None for those of the task.
        prompt: The name of their template; None for the task's first.
        subset: The name of a subset of the task; None for `train`, if the task has it.
    """
    if data is not None or subset is not None or TRAIN in task.subsets:
        options: dict[str, Any] = {"prompt": prompt}
        options |= {"subset": subset or TRAIN} if data is None else {"data": data, "allow_altered": True}
        problems = task.problems(**options).problems
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

    def with_signal(self) -> Rollouts:
        """Return the groups whose rewards differ."""
        kept = (group_std(self.rewards) > 0).nonzero()[:, 0].tolist()
        members = [group * self.size + index for group in kept for index in range(self.size)]
        return replace(
            self,
            problems=tuple(self.problems[group] for group in kept),
            samples=tuple(self.samples[member] for member in members),
            grades=tuple(self.grades[member] for member in members),
            rewards=self.rewards[kept],
        )


def joined(rounds: Sequence[Rollouts]) -> Rollouts:
    """Return the groups of several draws as one."""
    return Rollouts(
        problems=tuple(chain.from_iterable(r.problems for r in rounds)),
        samples=tuple(chain.from_iterable(r.samples for r in rounds)),
        grades=tuple(chain.from_iterable(r.grades for r in rounds)),
        rewards=torch.cat([r.rewards for r in rounds]),
        seconds_drawing=sum(r.seconds_drawing for r in rounds),
        seconds_grading=sum(r.seconds_grading for r in rounds),
    )


def collect(
    backend: Backend,
    grader: Grader,
    problems: Mapping[int, Problem],
    policy: AnyPolicy,
    rewards: Mapping[Reward, float],
    *,
    size: int,
    seed: int,
    length: int,
    block: int | None,
    prompt_tokens: int | None = None,
    chat: bool | None = None,
) -> Rollouts:
    """Draw a group of samples for each problem and compute their rewards.

    A sample's noise is addressed by (seed, number and id of the problem, index): the same on any number of workers,
    and different when a problem comes again.

    Args:
        backend: Draws the samples.
        grader: Of the task.
        problems: By their number in the stream of the whole run.
        policy: How to sample.
        rewards: Reward functions with their weights.
        size: Samples per problem.
        seed: Of the noise.
        length: Tokens of a completion.
        block: Width of a decoding block; None: the default.
        prompt_tokens: Keep only this many tokens at the end of a prompt; None: all.
        chat: Use the chat format; None: if the model has one.
    """
    started = perf_counter()
    planned = [
        PlannedSample(problem, policy, index, id=f"{number} {problem.id}")
        for number, problem in problems.items()
        for index in range(size)
    ]
    requests = list(
        problem_requests(
            backend.text,
            planned,
            length=length,
            block=block,
            seed=seed,
            trace=True,
            chat=chat,
            eos_stop=True,
        )
    )
    if prompt_tokens is not None:
        requests = [replace(request, prompt=request.prompt[-prompt_tokens:]) for request in requests]
    by_key = {sample.key: sample for sample in backend.sample(requests)}
    drawn_at = perf_counter()
    samples = tuple(by_key[request.key] for request in requests)
    sample_problems = [sample.problem for sample in planned]
    texts = [assistant_turn(problem, sample.text) for problem, sample in zip(sample_problems, samples)]
    grades = tuple(grader.grade(zip(sample_problems, texts)))
    totals = total_rewards(rewards, texts, reward_columns(sample_problems, samples, grades))
    return Rollouts(
        problems=tuple(problems.values()),
        samples=samples,
        grades=grades,
        rewards=torch.tensor(totals, dtype=torch.float32).view(len(problems), size),
        seconds_drawing=drawn_at - started,
        seconds_grading=perf_counter() - drawn_at,
    )


def reward_columns(
    problems: Sequence[Problem], samples: Sequence[Sample], grades: Sequence[Grade]
) -> dict[str, list[Any]]:
    """Return what reward functions get in addition to the texts: columns with one entry per completion."""
    names = dict.fromkeys(name for problem in problems for name in problem.reference)
    references = {name: [problem.reference.get(name) for problem in problems] for name in names}
    return {
        **references,
        "prompts": [problem.prompt for problem in problems],
        "completion_ids": [list(sample.tokens) for sample in samples],
        "grade": list(grades),
    }


def total_rewards(
    rewards: Mapping[Reward, float], completions: list[str], columns: Mapping[str, list[Any]]
) -> list[float]:
    """Return the weighted sum of all rewards of each completion; NaN where one of them is None."""
    sums = [0.0] * len(completions)
    for reward, weight in rewards.items():
        for index, value in enumerate(_reward_values(reward, completions, columns)):
            sums[index] += math.nan if value is None else weight * value
    return sums


def _reward_values(
    reward: Reward, completions: list[str], columns: Mapping[str, list[Any]]
) -> list[float | None]:
    """Call a reward function and check what it returns."""
    name = reward_name(reward)
    try:
        values = list(reward(completions=completions, **columns))
    except Exception as error:
        raise UserError(
            f"the reward {name!r} raised {type(error).__name__}: {error}. Nothing was learned from this step; "
            "fix it (return None for what it cannot score) and start the same command again"
        ) from error
    if len(values) != len(completions):
        raise UserError(
            f"the reward {name!r} returned {len(values)} values for {len(completions)} completions; return one each"
        )
    for value in values:
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise UserError(f"the reward {name!r} returned {value!r}; it must be a finite number, or None")
    return values


class RolloutBackend(Backend, Protocol):
    """A backend with copies of the trained model; `backends.pool.WorkerPool` is one."""

    def assign(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite parameters of the network, by name; what is asked for afterwards is drawn with them."""


@dataclass(frozen=True)
class RolloutLoader(ModelLoader):
    """Loads a worker's copy of the model that `settings` train, with adapters in the base's dtype.

    The trained model is on the first GPU, so workers begin with the second.
    """

    settings: GrpoSettings = field(kw_only=True)

    def load(self, index: int) -> LanguageModel:
        """Return the untrained model of worker number `index`; the trained weights are assigned later."""
        model = super().load(index + 1)
        network = trainable(model, self.settings).eval()  # type: ignore[arg-type]
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(model.module.dtype)  # type: ignore[union-attr, arg-type]
        return model
