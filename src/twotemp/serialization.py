"""JSON, YAML and dataclasses: numbers that JSON does not have, and records read from files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from twotemp.errors import UserError, unknown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LARGEST = 1 << 63  # tables are int64
Record = TypeVar("Record", bound="DataclassInstance")


def to_json(value: Any) -> Any:
    """Return data that JSON can represent, by the rule of this package: inf -> "inf", -inf -> "-inf", NaN -> null."""
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def from_json(value: float | str | None) -> float:
    """Return the number that `to_json` wrote. Only the reader knows that it is one: "inf" may also be text."""
    return math.nan if value is None else float(value)


def json_text(data: Any, indent: int | None = None, compact: bool = False) -> str:
    """Return data as JSON text, converted by `to_json`. This package writes JSON only here."""
    separators = (",", ":") if compact else None
    try:
        return json.dumps(data, indent=indent, separators=separators, allow_nan=False)
    except ValueError:  # such numbers are rare, and searching for them takes longer than writing
        return json.dumps(to_json(data), indent=indent, separators=separators, allow_nan=False)


def read_yaml(path: Path, kind: str) -> dict[str, Any]:
    """Return the keys and values of a YAML file, which error messages call `kind`."""
    import yaml

    try:
        text = path.read_text("utf-8")
        # A few nested aliases stand for more data than any memory holds.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise UserError(f"{path} has an alias (*name), which is not read; write out what it stands for")
        data = yaml.safe_load(text)
    except UserError:
        raise
    except FileNotFoundError:
        others = sorted(file.name for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = f"; there are {', '.join(others)}" if others else ""
        raise UserError(f"no {kind} {path}{hint}") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    except Exception as error:  # whatever wrong dates, wrong numbers and deep nesting raise in PyYAML
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(
            f"{path}{line} cannot be read as YAML; fix it, or give the path of a YAML {kind}"
        ) from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold `key: value` lines, not {type(data).__name__}")
    return data


def record(cls: type[Record], data: Mapping[str, Any], where: str) -> Record:
    """Return a dataclass made of a file's data, which anyone may have written; `where` it is, for error messages.

    Numbers are read as `to_json` wrote them. An unknown or missing key is an error, and so is a value of another type
    than its field has.
    """
    needed = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)}
    if not isinstance(data, Mapping):
        raise UserError(f"{where} must hold names and values, not {type(data).__name__}")
    for key in data:
        if key not in needed:
            raise unknown(f"key in {where}", str(key), needed)
    if missing := sorted(name for name in needed if needed[name] and name not in data):
        raise UserError(f"{where} lacks {', '.join(missing)}")
    types = _types(cls)
    values = {name: _read(value, types[name]) for name, value in data.items()}
    made = cls(**values)  # first its own checks, whose messages say more
    for name, value in values.items():
        if not _fits(value, types[name]):
            raise UserError(f"{name} in {where} is of the wrong type: {repr(value)[:80]}")
    return made


@cache
def _types(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(value: Any, kind: Any) -> Any:
    """Return a JSON value as a field of this type has it: numbers as floats, lists as tuples."""
    if kind is float and (value is None or value == "inf" or value == "-inf"):
        return from_json(value)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(item, get_args(kind)[0]) for item in value)
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a field's type, as far as types occur in files."""
    if kind is int:
        return type(value) is int and -_LARGEST <= value < _LARGEST
    if kind is float:
        return isinstance(value, float) or _fits(value, int)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple and parts[-1] is Ellipsis:
        return isinstance(value, tuple) and all(_fits(item, parts[0]) for item in value)
    return kind is Any or isinstance(value, origin or kind)
