"""Experiments as files: one YAML file is one figure or table, runnable as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.policies import parse
from twotemp.serialization import read_yaml, record

# What a plan calls by the same name.
_SHARED = ("n", "questions", "length", "block", "seed", "cache", "trace")


@dataclass(frozen=True)
class Experiment:
    """Which models, tasks and policies, and how many samples. Runs on the embedded model unless told otherwise."""

    title: str
    shows: str  # the figure or table of the paper it makes
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    policies: tuple[str, ...]
    n: int = 64
    questions: int | None = None
    length: int | None = None
    block: int | None = None
    seed: int = 0
    cache: str | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        for name in ("models", "tasks", "policies"):
            value = getattr(self, name)
            if not (isinstance(value, tuple) and value and all(isinstance(item, str) for item in value)):
                raise UserError(f"experiment {self.title!r}: {name} must be a list of names, not {value!r}")
        self.plan()  # a mistake in a policy or a number is an error when the file is read

    def plan(self, tasks: Sequence[TaskChoice] | None = None) -> Plan:
        return Plan(
            tasks=tuple(tasks or (TaskChoice(name) for name in self.tasks)),
            policies=tuple(parse(spec) for spec in self.policies),
            **{name: getattr(self, name) for name in _SHARED},
        )


def read(path: Path | str) -> Experiment:
    """An experiment from its file; an unknown or missing key is an error."""
    path = Path(path)
    data = read_yaml(path, "experiment file")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}
    try:
        return record(Experiment, values, "the experiment")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def policies_in(path: Path | str) -> list[str]:
    """The specs under `policies` in a file, such as the tuned.yaml of `twotemp tune`."""
    path = Path(path)
    specs = read_yaml(path, "file of policies").get("policies")
    if not (isinstance(specs, list) and specs and all(isinstance(spec, str) for spec in specs)):
        raise UserError(
            f"{path} must have a list `policies:` of specs, such as - tct:t_pos=0.1, not {specs!r}"
        )
    return specs
