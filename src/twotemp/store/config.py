"""The configuration of a cell: everything that determines its samples."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from twotemp import __version__
from twotemp.errors import UserError
from twotemp.records import Policy
from twotemp.serialization import record, to_json

Option = str | int | float | bool | None


@dataclass(frozen=True)
class Config:
    """The complete configuration of one (task, policy) cell of a run, and the version that created it."""

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
    # Everything else that changes samples: cache, compile. An option that is off (False, None) may be left out.
    options: Mapping[str, Option] = field(default_factory=dict)
    version: str = __version__

    def __post_init__(self) -> None:
        texts = (self.task, self.data, self.prompt, self.subset or "", self.model, self.fingerprint)
        if not all(isinstance(value, str) for value in texts) or not isinstance(self.options, Mapping):
            raise UserError(
                "task, data, prompt, subset, model and fingerprint must be strings, options a mapping"
            )
        if not all(type(value) is int for value in (self.length, self.block or 0, self.seed)):
            raise UserError("length, block and seed must be integers")
        for key, value in self.options.items():
            if not isinstance(value, Option) or (isinstance(value, float) and not math.isfinite(value)):
                raise UserError(
                    f"option {key!r} must be a string, a finite number, a flag or null, not {value!r}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        return {**vars(self), "policy": self.policy.to_dict(), "options": dict(self.options)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        """Return the configuration that `to_dict` wrote."""
        policy = {"policy": Policy.from_dict(data["policy"])} if "policy" in data else {}
        return record(cls, {**data, **policy}, "the configuration")


def identity(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two configurations must share for their samples to be mixed: all but version and unset options."""
    options = {
        key: value for key, value in data["options"].items() if value is not None and value is not False
    }
    # A later version may add fields to a policy, so those at their defaults count as left out.
    policy = Policy.from_dict(data["policy"])
    changed = {
        f.name: getattr(policy, f.name) for f in fields(policy) if getattr(policy, f.name) != f.default
    }
    kept = {key: value for key, value in data.items() if key != "version"}
    return {**kept, "policy": to_json(changed), "options": options}


def digest(data: Mapping[str, Any]) -> str:
    """Return a short hash of JSON data."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
