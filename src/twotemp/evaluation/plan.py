"""What to draw, as data: checked when it is made, and complete."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.policies import spell
from twotemp.records import Policy, Problem
from twotemp.tasks import ProblemSet


@dataclass(frozen=True)
class TaskChoice:
    """A task, and where its data come from, how it is asked and who grades it; None is the task's own default."""

    name: str
    data: Path | None = None
    prompt: str | None = None
    subset: str | None = None
    grader: str | None = None
    questions: int | None = None  # the first so many; None: as many as the plan says
    shuffled: int | None = (
        None  # the seed of a random order, of which the first are taken; None: that of the data
    )
    allow_altered: bool = False  # take a data file whose rows are not the published ones

    def __post_init__(self) -> None:
        _check_count(f"questions of {self.name}", self.questions)

    def problems(self) -> ProblemSet:
        task = tasks.get(self.name)
        found = task.problems(
            data=self.data, prompt=self.prompt, subset=self.subset, allow_altered=self.allow_altered
        )
        if self.shuffled is None:
            return found
        return replace(found, problems=tuple(sorted(found.problems, key=self._place)))

    def _place(self, problem: Problem) -> bytes:
        """Of its own, whatever the other problems are: asking for more of them keeps those chosen before."""
        return hashlib.blake2b(f"{self.shuffled}\x1f{problem.id}".encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Plan:
    """What to draw. With a model's weights, it decides every sample."""

    tasks: tuple[TaskChoice, ...]
    policies: tuple[Policy, ...]
    n: int = 64  # samples per question
    questions: int | None = None  # the first so many of each task; None: all
    length: int | None = None  # tokens of an answer; None: the task's own
    block: int | None = None
    seed: int = 0
    cache: str | None = None  # "prefix" or "dual": faster, approximate
    trace: bool = False
    chat: bool | None = None  # None: the chat format where the model has one
    compile: bool = False  # the model runs behind torch.compile, whose rounding is its own

    def __post_init__(self) -> None:
        for name in ("n", "questions", "length", "block"):
            _check_count(name, getattr(self, name))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise UserError(f"seed must be an integer, not {self.seed!r}")
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


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UserError(f"{name} must be an integer >= 1, not {value!r}")
