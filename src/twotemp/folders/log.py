"""JSON lines that are only ever added to: a line is there whole or not at all."""

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
    """A log that is continued: lines that `keep` refuses go, and so does a last line that a kill has torn."""

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
        self.path = path
        self.rows = [row for row in read_log(path) if keep(row)]
        write_text(path, "".join(map(_line, self.rows)))

    def add(self, row: Mapping[str, Any]) -> None:
        """On the disk when this returns."""
        with closing(AppendFile(self.path)) as file:
            file.append(_line(row).encode())
        self.rows.append(dict(row))


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole lines, none where there is no file; what stands after the last newline is not whole."""
    if not path.exists():
        return []
    with disk_errors(path, "read"):
        *lines, _ = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(
                f"{path} is damaged in line {number} ({error}): it was changed by something else than twotemp; "
                "restore it from a copy, or remove that line"
            ) from error
    return rows


def _line(row: Mapping[str, Any]) -> str:
    return json_text(row) + "\n"
