"""Experiment files: one YAML file describes one figure or table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.policies import parse
from twotemp.serialization import read_yaml, record

# Fields that a plan has under the same name.
_SHARED = ("n", "questions", "length", "block", "seed", "cache", "trace")


@dataclass(frozen=True)
class Experiment:
    """Models, tasks, policies and the number of samples, as an experiment file lists them."""

    title: str
    shows: str  # the figure or table of the paper that it reproduces
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
        self.plan()  # report a wrong policy or number when the file is read

    def plan(self, tasks: Sequence[TaskChoice] | None = None) -> Plan:
        """Return the plan, with other task choices if they are given."""
        return Plan(
            tasks=tuple(tasks or (TaskChoice(name) for name in self.tasks)),
            policies=tuple(parse(spec) for spec in self.policies),
            **{name: getattr(self, name) for name in _SHARED},
        )


def read(path: Path | str) -> Experiment:
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
