"""What a study has measured so far, on disk: append-only, and continued by running the same study again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.store.frames import FrameFile, disk_errors, read_batches, write_once


class Journal:
    """Rows of one study, kept with the settings they were measured under."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._file: FrameFile | None = None
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        if not path.exists():
            write_once(path, settings)
        stored = json.loads(path.read_text())
        changes = [
            f"{key}: {stored.get(key)!r}, now {settings.get(key)!r}"
            for key in sorted({*stored, *settings})
            if stored.get(key) != settings.get(key)
        ]
        if changes:
            raise UserError(
                f"{folder} holds a study made with other settings ({'; '.join(changes)}); use the same settings to "
                "continue it, or another folder (--out)"
            )

    def rows(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob("forks-*.jsonl.zst")):
            for batch in read_batches(path):
                yield from batch

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """One batch: on the disk, whole, when this returns."""
        if self._file is None:
            self._file = FrameFile(self.folder / f"forks-{time.time_ns():020d}.{os.getpid()}.jsonl.zst")
        self._file.append(rows)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
