"""Which problems a cell was drawn from: its task, and the local data files that the run directory records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.folders import read_json, write_json
from twotemp.store import Cell
from twotemp.tasks import ProblemSet, Task
from twotemp.tasks.imported import imported

DATA = "data.json"  # beside run.json: the local data files by task


def task_of(cell: Cell) -> Task:
    """Return the task of a cell: the one imported with its samples, else the registered one."""
    return imported(cell.config.task, cell.path) or tasks.get(cell.config.task)


def record_data_files(run: Path, files: Mapping[str, tuple[Path, bool]]) -> None:
    """Record the local data files of a run, so that later commands need not name them again.

    Args:
        run: The run directory.
        files: By task, the file and whether it may differ from the published rows.
    """
    recorded = _recorded_files(run)
    entries = {
        task: {"file": str(file.resolve()), "altered": altered} for task, (file, altered) in files.items()
    }
    if recorded | entries != recorded:
        write_json(run / DATA, recorded | entries)


def _recorded_files(run: Path) -> dict[str, Any]:
    data = read_json(run / DATA) if (run / DATA).exists() else {}
    if not isinstance(data, dict) or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("file"), str)
        and isinstance(entry.get("altered"), bool)
        for entry in data.values()
    ):
        raise UserError(f"{run / DATA} is damaged; remove it, and name data files with --data TASK=FILE")
    return data


def problems_of(
    cell: Cell, data: Mapping[str, Path] | None = None, allow_altered: bool = False, *, hub: bool = True
) -> ProblemSet:
    """Return the problems that a cell was drawn from; raise a UserError if the data have changed since.

    Args:
        cell: A cell of a run.
        data: Local data files by task; default: those that the run directory records.
        allow_altered: Accept a file in `data` whose rows differ from the published ones.
        hub: Whether problems that are neither generated nor in a local file may be downloaded.
    """
    config, recorded = cell.config, _recorded_files(cell.path.parent)
    file = (data or {}).get(config.task)
    if file is None and config.task in recorded:
        file, allow_altered = Path(recorded[config.task]["file"]), recorded[config.task]["altered"]
        if not file.is_file():
            raise UserError(
                f"{cell.path} was drawn from {file}, which no longer exists; give its new location: "
                f"--data {config.task}=FILE"
            )
    local = config.task not in tasks.BENCHMARKS or imported(config.task, cell.path) is not None
    if file is None and not hub and not local:
        raise UserError(
            f"the questions of {config.task} are not in a local file; give one: --data {config.task}=FILE"
        )
    problems = task_of(cell).problems(
        data=file,
        prompt=config.prompt or None,
        subset=config.subset,
        allow_altered=allow_altered and file is not None,
    )
    if problems.digest != config.data:
        raise UserError(
            f"{cell.path} was drawn from other data than {problems.source} ({config.data[:12]}…, not "
            f"{problems.digest[:12]}…); give the file it was drawn from: --data {config.task}=FILE"
        )
    return problems
