"""What a study has measured so far, on disk: append-only, and continued by running the same study again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from twotemp.folders import claim
from twotemp.folders.frames import SUFFIX, FrameFile, next_number, read_batches, writer_name


class Journal:
    """Rows of one study, kept with the settings they were measured under."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        claim(folder, "forks", settings)
        self.folder = folder
        self._file: FrameFile | None = None

    def rows(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob(f"forks-*{SUFFIX}")):
            for batch in read_batches(path):
                yield from batch

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """One batch: on the disk, whole, when this returns."""
        if self._file is None:
            self._file = FrameFile(self.folder / f"forks-{writer_name(next_number(self.folder))}")
        self._file.append(rows)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
