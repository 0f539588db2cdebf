"""What to draw, as validated data: plans, and experiment files that describe them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.policies import AnyPolicy, parse_portfolio, spell
from twotemp.records import Policy, Problem, integer
from twotemp.serialization import read_yaml, record
from twotemp.tasks import ProblemSet


@dataclass(frozen=True)
class TaskChoice:
    """A task with its data file, prompt, subset and grader; None is the task's default."""

    name: str
    data: Path | None = None
    prompt: str | None = None
    subset: str | None = None
    grader: str | None = None
    questions: int | None = None  # take this many from the start; None: as many as the plan says
    shuffled: int | None = None  # seed of a random order of the questions; None: the order of the data
    allow_altered: bool = False  # accept a data file whose rows differ from the published ones

    def __post_init__(self) -> None:
        if self.questions is not None:
            integer(f"questions of {self.name}", self.questions, least=1)

    def problems(self) -> ProblemSet:
        """Load the problems, in the chosen order."""
        task = tasks.get(self.name)
        loaded = task.problems(
            data=self.data, prompt=self.prompt, subset=self.subset, allow_altered=self.allow_altered
        )
        if self.shuffled is None:
            return loaded
        return replace(loaded, problems=tuple(sorted(loaded.problems, key=self._rank)))

    def _rank(self, problem: Problem) -> bytes:
        """Return a sort key that depends on this problem only, so a larger `questions` keeps the earlier ones."""
        return hashlib.blake2b(f"{self.shuffled}\x1f{problem.id}".encode(), digest_size=16).digest()


@dataclass(frozen=True, kw_only=True)
class DrawSettings:
    """How many samples are drawn, and how: what plans and experiment files have in common."""

    n: int = 64  # samples per question
    questions: int | None = None  # take this many from the start of each task; None: all
    length: int | None = None  # tokens of an answer; None: the task's default
    block: int | None = None
    seed: int = 0
    cache: str | None = None  # "prefix" or "dual": faster, approximate
    trace: bool = False


@dataclass(frozen=True)
class Plan(DrawSettings):
    """What to draw. With a model's weights, it decides every sample."""

    tasks: tuple[TaskChoice, ...]
    policies: tuple[AnyPolicy, ...]
    chat: bool | None = None  # None: the chat format if the model has one
    compile: bool = False  # torch.compile rounds differently, so its samples are kept apart

    def __post_init__(self) -> None:
        for name in ("n", "questions", "length", "block"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), least=1)
        integer("seed", self.seed, least=None, most=2**63 - 1)  # the largest that rows store
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

    def indices(self) -> dict[Policy, list[int]]:
        """Return which samples of each policy are needed: all n, or those it draws in portfolios."""
        needed: dict[Policy, dict[int, None]] = defaultdict(dict)
        for policy in self.policies:
            for index in range(self.n):
                needed[policy.for_sample(index)][index] = None
        return {policy: sorted(indices) for policy, indices in needed.items()}


@dataclass(frozen=True)
class Experiment(DrawSettings):
    """An experiment file: its models, and the names from which `plan` makes a plan for each model."""

    title: str
    shows: str  # the figure or table of the paper that it reproduces
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    policies: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("models", "tasks", "policies"):
            value = getattr(self, name)
            if not (isinstance(value, tuple) and value and all(isinstance(item, str) for item in value)):
                raise UserError(f"experiment {self.title!r}: {name} must be a list of names, not {value!r}")
        self.plan()  # report a wrong policy or number when the file is read

    def plan(self, tasks: Sequence[TaskChoice] | None = None) -> Plan:
        """Return the plan, with other task choices if they are given."""
        return Plan(
            tasks=tuple(tasks or (TaskChoice(name) for name in self.tasks)),
            policies=tuple(parse_portfolio(spec) for spec in self.policies),
            **{field.name: getattr(self, field.name) for field in fields(DrawSettings)},
        )


def read_experiment(path: Path | str) -> Experiment:
    """Read an experiment file; an unknown or missing key raises a UserError."""
    path = Path(path)
    data = read_yaml(path, "experiment file")
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
    }
    try:
        return record(Experiment, values, "the experiment")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def policies_in(path: Path | str) -> list[str]:
    """Return the policy specs under `policies` in a file, such as the tuned.yaml of `twotemp tune`."""
    path = Path(path)
    specs = read_yaml(path, "file of policies").get("policies")
    if not (isinstance(specs, list) and specs and all(isinstance(spec, str) for spec in specs)):
        raise UserError(
            f"{path} must have a list `policies:` of specs, such as - tct:t_pos=0.1, not {specs!r}"
        )
    return specs
