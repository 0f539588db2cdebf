"""The measurements of a study on disk: append-only, and continued by running the same study again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from twotemp.folders import claim
from twotemp.folders.files import SUFFIX, FrameFile, next_number, read_batches, writer_name


class Journal:
    """The rows of one study, stored with its settings."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        claim(folder, "forks", settings)
        self.folder = folder
        self._file: FrameFile | None = None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield all rows."""
        for path in sorted(self.folder.glob(f"forks-*{SUFFIX}")):
            for batch in read_batches(path):
                yield from batch

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows as one batch, which is on disk, whole, when this returns."""
        if self._file is None:
            self._file = FrameFile(self.folder / f"forks-{writer_name(next_number(self.folder))}")
        self._file.append(rows)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
