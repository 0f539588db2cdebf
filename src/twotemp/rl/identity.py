"""run.json: what a run is. A folder is continued by the same run only, so that its steps belong together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.records import Problem

FILE = "run.json"
# They change time and memory, not what is computed (beyond the rounding of floats).
FREE = ("twotemp", "settings.batch_size", "settings.micro_batch", "settings.save_every")
# What a run that diverged needs to get on; when it changed is recorded.
MENDABLE = ("settings.learning_rate", "settings.max_grad_norm", "settings.bf16")


def questions(problems: Sequence[Problem]) -> str:
    """Held-out problems in few characters: how many, and a digest of which."""
    text = "\n".join(f"{problem.id} {problem.prompt}" for problem in problems)
    return f"{len(problems)} questions {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def read(run: Path) -> dict[str, Any]:
    path = run / FILE
    try:
        described: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); start again with another --out") from error
    return described


def continued(run: Path, described: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The description of the run in this folder, continued after `step`; another run is refused."""
    before = read(run)
    changes: list[dict[str, Any]] = before.get("changes", [])
    now = {**json.loads(json.dumps(described)), "changes": changes}
    different = _differences(before, now)
    refused = sorted(different.keys() - {*FREE, *MENDABLE})
    if refused:
        raise UserError(
            f"{run} is a run with other settings (it differs in {', '.join(refused)}); "
            "choose another --out, or give the same settings to continue it"
        )
    mended = {name: value for name, value in different.items() if name in MENDABLE}
    return {**now, "changes": [*changes, {"after step": step, **mended}]} if mended else now


def write(run: Path, described: Mapping[str, Any]) -> None:
    """Write run.json, whole or not at all; a file that says the same is left alone."""
    text = json.dumps(described, indent=2) + "\n"
    path = run / FILE
    try:
        run.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text("utf-8") == text:
            return
        partial = run / f".{FILE}.partial"
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        raise UserError(f"the run cannot be written to {run} ({error}); choose another --out") from error


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """What differs, by its full name, with the new value."""
    changed: dict[str, Any] = {}
    for key in before.keys() | now.keys():
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changed |= _differences(old, new, f"{inside}{key}.")
        elif old != new:
            changed[f"{inside}{key}"] = new
    return changed
