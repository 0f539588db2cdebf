"""What decides the samples of a cell (`Config`), and which of them a row is about (`Key`)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from typing import Any, NamedTuple

from twotemp.errors import UserError, unknown
from twotemp.records import Policy, Sample

Option = str | int | float | bool | None


class Key(NamedTuple):
    """Which sample of a cell."""

    question: str
    sample: int  # its index among the n samples of the question
    seed: int

    @classmethod
    def of(cls, sample: Sample) -> Key:
        return cls(sample.request, sample.index, sample.seed)


@dataclass(frozen=True)
class Config:
    """The complete configuration of one (task, policy) cell of a run."""

    task: str
    data: str  # ProblemSet.digest
    prompt: str  # name of the prompt template
    subset: str | None
    model: str
    fingerprint: str  # of the model's weights
    policy: Policy
    length: int
    block: int | None
    seed: int
    options: Mapping[str, Option] = field(default_factory=dict)  # whatever else changes samples: cache, dtype
    version: str = field(default_factory=lambda: version("twotemp"))

    def __post_init__(self) -> None:
        for key, value in self.options.items():
            if not isinstance(value, Option) or (isinstance(value, float) and not math.isfinite(value)):
                raise UserError(
                    f"option {key!r} must be a string, a finite number, a flag or null, not {value!r}"
                )

    @property
    def hash(self) -> str:
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data. T_pos = inf, which JSON does not know, becomes "inf"."""
        data = asdict(self)
        data["policy"] = {k: "inf" if v == math.inf else v for k, v in data["policy"].items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        known = {f.name for f in fields(cls)}
        for key in data:
            if key not in known:
                raise unknown("configuration field", key, known)
        if missing := known - set(data):
            raise UserError(f"the configuration lacks {', '.join(sorted(missing))}")
        policy = {k: math.inf if v == "inf" else v for k, v in data["policy"].items()}
        return cls(**{**data, "policy": Policy.from_dict(policy)})

    def differences(self, other: Config) -> list[str]:
        """One line for each field in which two configurations differ."""
        here, there = _flat(self.to_dict()), _flat(other.to_dict())
        names = sorted(set(here) | set(there))
        return [f"{n}: {there.get(n)!r}, now {here.get(n)!r}" for n in names if here.get(n) != there.get(n)]


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return flat
