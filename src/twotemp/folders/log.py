"""Append-only JSON lines: a line is written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.folders.files import AppendFile, disk_errors, write_text
from twotemp.serialization import json_text


class Log:
    """A log that is continued: lines that `keep` rejects are removed, and so is a torn last line."""

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
        self.path = path
        self.rows = [row for row in read_log(path) if keep(row)]
        write_text(path, "".join(map(_line, self.rows)))

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; it is on disk when this returns."""
        with closing(AppendFile(self.path)) as file:
            file.append(_line(row).encode())
        self.rows.append(dict(row))


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return all whole rows, none if there is no file; text after the last newline is a torn row."""
    if not path.exists():
        return []
    if not path.is_file():  # reading a FIFO would wait for its writer
        raise UserError(f"{path} is damaged: it is not a regular file; remove it")
    with disk_errors(path, "read"):
        *lines, _ = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path} is damaged in line {number} ({error}): it was changed by something other than twotemp; "
                "restore it from a copy, or remove that line"
            ) from error
    return rows


def _line(row: Mapping[str, Any]) -> str:
    return json_text(row) + "\n"
