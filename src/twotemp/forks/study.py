"""A study of one task's forks in a run directory: what is stored, and measuring what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twotemp.backends import Backend
from twotemp.folders import claim, expect, only_writer, read_run
from twotemp.folders.files import SUFFIX, FrameFile, next_number, read_batches, writer_name
from twotemp.forks.probe import Fork, Settings, find, measure
from twotemp.graders.base import Grader
from twotemp.models.base import LanguageModel
from twotemp.models.checkpoint import fingerprint
from twotemp.records import Problem, Sample

CHUNK = 32  # forks measured together, per worker; a kill loses at most these


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(f"forks-*{SUFFIX}")):
        for batch in read_batches(path):
            yield from batch


class Journal:
    """The measurements of a study on disk: append-only, and continued by running the same study again."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        claim(folder, "forks", settings)
        self.folder = folder
        self._file: FrameFile | None = None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over all rows."""
        return _rows(self.folder)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows as one batch, which is completely on disk when this returns."""
        if self._file is None:
            self._file = FrameFile(self.folder / f"forks-{writer_name(next_number(self.folder))}")
        self._file.append(rows)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True)
class Study:
    """The forks of one task."""

    task: str
    threshold: float  # entropy (nats) above which a position is a fork
    forks: tuple[Fork, ...]

    def slopes(self) -> np.ndarray:
        """Return the slopes of the forks that LC did not commit in its first step."""
        return np.array([f.line.slope for f in self.forks if len(f.path) > 1])

    def r2(self) -> np.ndarray:
        """Return R^2 of the forks with at least three points and an entropy that changes."""
        return np.array([f.line.r2 for f in self.forks if np.isfinite(f.line.r2)])

    def distinct(self) -> np.ndarray:
        """Return the number of different answers of each fork whose alternatives could all be graded."""
        return np.array([f.distinct for f in self.forks if not f.ungraded], dtype=np.int64)


def stored(folder: Path) -> Study:
    """Return the stored part of the study of a task; its threshold is the least entropy of its forks."""
    expect(folder, "forks")
    forks = tuple(map(Fork.from_dict, _rows(folder)))
    task = str((read_run(folder) or {}).get("task"))
    return Study(task, min((fork.entropy for fork in forks), default=math.nan), forks)


def study(
    model: LanguageModel,
    task: str,
    samples: Iterable[Sample],
    problems: Mapping[str, Problem],
    grader: Grader,
    settings: Settings,
    folder: Path,
    *,
    backend: Backend | None = None,
    together: int = CHUNK,
    on_progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Measure every fork of some completions that the folder does not hold yet.

    Args:
        model, problems, grader, backend: See `measure`.
        task: The name of the task.
        samples: Left-to-right completions with traces.
        settings: Of the study.
        folder: Where the measurements are stored.
        together: How many forks are measured at a time.
        on_progress: Called with (forks measured, all forks).
    """
    candidates, threshold = find(samples, model.eos_ids, settings.quantile)
    facts = {"model": model.name, "fingerprint": fingerprint(model), "task": task, "grader": grader.name}
    with only_writer(folder), closing(Journal(folder, {**facts, **asdict(settings)})) as journal:
        done = {fork.name: fork for fork in map(Fork.from_dict, journal.rows())}
        todo = [candidate for candidate in candidates if candidate.name not in done]
        for start in range(0, len(todo), together):
            if on_progress is not None:
                on_progress(len(candidates) - len(todo) + start, len(candidates))
            chunk = todo[start : start + together]
            forks = measure(model, chunk, problems, grader, settings, backend=backend)
            journal.append(asdict(fork) for fork in forks)
            done |= {fork.name: fork for fork in forks}
    if on_progress is not None:
        on_progress(len(candidates), len(candidates))
    return Study(task, threshold, tuple(done[candidate.name] for candidate in candidates))
