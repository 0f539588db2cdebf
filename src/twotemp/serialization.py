"""JSON, YAML and dataclasses: numbers that JSON does not have, and records read from files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from twotemp.errors import UserError, unknown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
        data = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        others = sorted(file.name for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = f"; there are {', '.join(others)}" if others else ""
        raise UserError(f"no {kind} {path}{hint}") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(
            f"{path}{line} cannot be read as YAML; fix it, or give the path of a YAML {kind}"
        ) from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold `key: value` lines, not {type(data).__name__}")
    return data


def record(cls: type[Record], data: Mapping[str, Any], where: str) -> Record:
    """Return a dataclass made of a file's data; an unknown or missing key is an error that says `where` it is."""
    needed = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)}
    for key in data:
        if key not in needed:
            raise unknown(f"key in {where}", str(key), needed)
    if missing := sorted(name for name in needed if needed[name] and name not in data):
        raise UserError(f"{where} lacks {', '.join(missing)}")
    return cls(**data)
