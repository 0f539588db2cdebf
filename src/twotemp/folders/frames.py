"""Append-only `*.jsonl.zst` files: one zstd frame per batch of rows, so that a batch is stored whole or not at all.

A process that dies while it writes leaves a torn last frame. Its checksum comes last, so a frame either decodes
completely or ends early: readers stop at the last whole frame, and a writer never appends to a file it did not
make itself. No locks: every writer has a file of its own.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from twotemp.errors import UserError
from twotemp.folders.files import AppendFile, disk_errors
from twotemp.plain import json_text

SUFFIX = ".jsonl.zst"
_CHUNK = 1 << 20
_NUMBER = re.compile(rf"-(\d{{20}})\.[^-]*{re.escape(SUFFIX)}")


def next_number(folder: Path) -> int:
    """One more than the highest number in the names of a folder's files: so a writer comes after all it has seen.

    Lamport's clock: no machine's time is asked.
    """
    found = (_NUMBER.search(path.name) for path in folder.glob(f"*{SUFFIX}"))
    return 1 + max((int(match[1]) for match in found if match), default=0)


def writer_name(number: int) -> str:
    """The end of the names of a writer's files: they sort by number, and no two writers have the same."""
    return f"{number:020d}.{os.getpid()}.{uuid.uuid4().hex[:8]}{SUFFIX}"


class FrameFile:
    """A new file that batches are appended to; each is on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        self._file = AppendFile(path, new=True)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json_text(row, compact=True) + "\n" for row in rows)
        if text:
            self._file.append(self._compressor.compress(text.encode()))

    def close(self) -> None:
        self._file.close()


def read_batches(
    path: Path, parse: Callable[[bytes], dict[str, Any]] = json.loads
) -> Iterator[list[dict[str, Any]]]:
    """The whole batches of a file, in order. A torn tail is left out; damage before the tail is an error."""
    for whole, (start, text) in enumerate(_frames(path)):
        try:
            yield [parse(line) for line in text.splitlines()]
        except ValueError as error:
            raise _damaged(path, start, whole) from error


def _frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """(first byte, decompressed text) of each whole frame."""
    decompressor = zstandard.ZstdDecompressor()
    start, whole = 0, 0
    with disk_errors(path, "read"), path.open("rb") as file:
        data = file.read(_CHUNK)
        while data:
            frame = decompressor.decompressobj()
            parts, size = [], 0
            while data and not frame.eof:
                try:
                    parts.append(frame.decompress(data))
                except zstandard.ZstdError as error:
                    raise _damaged(path, start, whole) from error
                size += len(data)
                data = frame.unused_data if frame.eof else file.read(_CHUNK)
            if not frame.eof:
                return  # torn: the writer died here, or is still writing
            yield start, b"".join(parts)
            start += size - len(data)
            whole += 1
            data = data or file.read(_CHUNK)


def _damaged(path: Path, start: int, whole: int) -> UserError:
    return UserError(
        f"{path} is damaged at byte {start}, after {whole} whole batches: it was changed by something else than "
        f"twotemp. Restore it from a copy, or keep what is whole with `truncate -s {start} '{path}'` and run the "
        f"same command again: it makes only what is missing"
    )
