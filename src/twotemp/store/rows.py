"""What a cell holds: its configuration, its rows on disk, and its graded samples as arrays.

A run directory may come from other people, so the parsers check what they read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from twotemp import __version__
from twotemp.errors import UserError
from twotemp.records import NOT_STORED, Grade, Key, Outcome, Policy, Sample
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
    """Return the part of a configuration that must be equal to mix samples: all but the version and unset options."""
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


_SAMPLE_FIELDS = {"cell", "written", *(f.name for f in fields(Sample))} - {"policy", *NOT_STORED}
_COUNTS = ("nfe", "forwards", "processed", "written")
_LISTS = ("prompt", "positions", "tokens")
_LARGEST = 2**63  # tables are int64


def row_key(row: Mapping[str, Any]) -> Key:
    """Return the key of the sample that a row stores, grades or scores."""
    return Key(row["request"], row["index"], row["seed"])


def sample_row(sample: Sample) -> dict[str, Any]:
    """Return a sample as it is stored: without its policy (the cell has it), and with the long fields last."""
    # Not `Sample.to_dict`, which would spend half of the time on the policy.
    row = {**vars(sample), "trace": None if sample.trace is None else sample.trace.to_dict()}
    for name in ("policy", *NOT_STORED):
        del row[name]
    long = {name: row.pop(name) for name in ("prompt", "positions", "tokens", "trace")}
    return {**row, "written": sample.written, **long}


def parse_light(line: bytes) -> dict[str, Any]:
    """Parse a sample's row without its long fields. The text where it is cut cannot occur inside a JSON string."""
    return _parse_sample(line.partition(b',"prompt":')[0] + b"}")


def parse_sample(line: bytes) -> dict[str, Any]:
    """Parse a sample's row."""
    row = _parse_sample(line)
    _require(row.keys() == _SAMPLE_FIELDS, "fields")
    _require(all(isinstance(row[name], list) and _integers(row[name]) for name in _LISTS), "tokens")
    _require(len(row["positions"]) == len(row["tokens"]), "positions")
    if row["trace"] is not None:
        _check_trace(dict(row["trace"]), len(row["tokens"]))
    return row


def _check_trace(trace: dict[str, Any], length: int) -> None:
    edits, accepted = trace.pop("edits", []), trace.pop("accepted", [])
    _require(trace.keys() == {"steps", "confidence", "entropy"}, "trace")
    _require(all(isinstance(column, list) and len(column) == length for column in trace.values()), "trace")
    _require(_integers(trace["steps"]), "steps")
    _require(all(isinstance(x, int | float) for x in (*trace["confidence"], *trace["entropy"])), "trace")
    _require(all(len(edit) == 3 and _integers(edit) for edit in edits), "edits")
    _require(_integers(accepted) and len(accepted) in (0, length), "accepted")


def parse_grade(line: bytes) -> dict[str, Any]:
    """Parse a grade's row."""
    row = _parse(line)
    _require(row["outcome"] in get_args(Outcome), "outcome")
    _require(isinstance(row["answer"], str | None), "answer")
    _require(isinstance(row["rule"], str) and isinstance(row["detail"], str), "detail")
    return row


def parse_score(line: bytes) -> dict[str, Any]:
    """Parse a score's row."""
    row = _parse(line)
    _require(math.isfinite(row["score"]), "score")
    return row


def _parse_sample(text: bytes) -> dict[str, Any]:
    row = _parse(text)
    _require(_integers(row[name] for name in _COUNTS) and math.isfinite(row["seconds"]), "costs")
    _require(isinstance(row["text"], str | None), "text")
    return row


def _parse(text: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(text)
    request, index, seed = row_key(row)
    _require(isinstance(request, str) and _integers((index, seed)), "key")
    return row


def _integers(values: Iterable[Any]) -> bool:
    return all(type(value) is int and -_LARGEST <= value < _LARGEST for value in values)


def _require(condition: bool, name: str) -> None:
    if not condition:
        raise ValueError(f"wrong {name}")


@dataclass(frozen=True)
class Table:
    """One array per question (questions sorted by id, samples by index); questions may differ in n.

    Samples on which the grader failed are left out and counted in `ungraded`; those not graded yet, in `pending`.
    """

    questions: tuple[str, ...]
    index: tuple[NDArray[np.int64], ...]
    passed: tuple[NDArray[np.bool_], ...]
    answers: tuple[tuple[str | None, ...], ...]
    nfe: tuple[NDArray[np.int64], ...]
    forwards: tuple[NDArray[np.int64], ...]
    seconds: tuple[NDArray[np.float64], ...]
    tokens: tuple[NDArray[np.int64], ...]  # positions written
    ungraded: int
    pending: int

    @property
    def n(self) -> NDArray[np.int64]:
        """Samples per question."""
        return np.array([len(p) for p in self.passed], dtype=np.int64)

    @property
    def correct(self) -> NDArray[np.int64]:
        """Right samples per question."""
        return np.array([p.sum() for p in self.passed], dtype=np.int64)


def build_table(rows: Iterable[Mapping[str, Any]], grades: Mapping[Key, Grade]) -> Table:
    """Build a table from samples as JSON data and their grades."""
    ungraded = pending = 0
    graded: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        grade = grades.get(row_key(row))
        if grade is None:
            pending += 1
        elif grade.outcome == "ungraded":
            ungraded += 1
        else:
            entry = (row["index"], grade.passed, grade.answer, row["nfe"], row["forwards"], row["seconds"])
            graded.setdefault(row["request"], []).append((*entry, row["written"]))
    questions = tuple(sorted(graded))
    columns = [list(zip(*sorted(graded[q], key=lambda entry: entry[0]))) for q in questions]

    def arrays(column: int, kind: type = np.int64) -> tuple[NDArray[Any], ...]:
        return tuple(np.array(c[column], dtype=kind) for c in columns)

    passed, answers = arrays(1, np.bool_), tuple(c[2] for c in columns)
    costs = (arrays(3), arrays(4), arrays(5, np.float64), arrays(6))  # NFE, forwards, seconds, tokens
    return Table(questions, arrays(0), passed, answers, *costs, ungraded=ungraded, pending=pending)
