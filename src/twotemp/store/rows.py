"""Rows as they are on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from twotemp.records import Key, Sample


def row_key(row: Mapping[str, Any]) -> Key:
    """Return the key of the sample that a row is or is about."""
    return Key(row["request"], row["index"], row["seed"])


def sample_row(sample: Sample) -> dict[str, Any]:
    """A sample as it is stored: without its policy, which is the cell's, and what is long at the end (`light`)."""
    # Not `Sample.to_dict`, which spends half of a driver's time on the policy that is not wanted here.
    row = {**vars(sample), "trace": None if sample.trace is None else sample.trace.to_dict()}
    del row["policy"], row["tag"]
    long = {name: row.pop(name) for name in ("prompt", "positions", "tokens", "trace")}
    return {**row, "written": len(sample.tokens), **long}


def light(line: bytes) -> dict[str, Any]:
    """A sample's row up to its long fields. The mark cannot stand inside a string: there, quotes are escaped."""
    row: dict[str, Any] = json.loads(line.partition(b',"prompt":')[0] + b"}")
    return row
