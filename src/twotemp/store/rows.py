"""Rows as they are on disk. A run directory may come from other people, so the parsers check what they read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, get_args

from twotemp.records import Key, Outcome, Sample

_SAMPLE_FIELDS = {"cell", "written", *(f.name for f in fields(Sample))} - {"policy", "tag"}
_COUNTS = ("nfe", "forwards", "processed", "written")
_LISTS = ("prompt", "positions", "tokens")
_LARGEST = 2**63  # tables are int64


def row_key(row: Mapping[str, Any]) -> Key:
    """Return the key of the sample that a row is or is about."""
    return Key(row["request"], row["index"], row["seed"])


def sample_row(sample: Sample) -> dict[str, Any]:
    """Return a sample as it is stored: without its policy, which is the cell's, and with the long fields last."""
    # Not `Sample.to_dict`, which would spend half of the time on the policy.
    row = {**vars(sample), "trace": None if sample.trace is None else sample.trace.to_dict()}
    del row["policy"], row["tag"]
    long = {name: row.pop(name) for name in ("prompt", "positions", "tokens", "trace")}
    return {**row, "written": len(sample.tokens), **long}


def parse_light(line: bytes) -> dict[str, Any]:
    """Parse a sample's row up to its long fields. The mark cannot occur in a string, where quotes are escaped."""
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
    edits = trace.pop("edits", [])
    _require(trace.keys() == {"steps", "confidence", "entropy"}, "trace")
    _require(all(isinstance(column, list) and len(column) == length for column in trace.values()), "trace")
    _require(_integers(trace["steps"]), "steps")
    _require(all(isinstance(x, int | float) for x in (*trace["confidence"], *trace["entropy"])), "trace")
    _require(all(len(edit) == 3 and _integers(edit) for edit in edits), "edits")


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
