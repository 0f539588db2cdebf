"""Append-only `*.jsonl.zst` files: one zstd frame per batch of rows, so that a batch is stored whole or not at all.

A process that dies while it writes leaves a torn last frame. Its checksum comes last, so a frame either decodes
completely or ends early: readers stop at the last whole frame, and a writer never appends to a file that another
writer made. There are no locks: every writer has its own file.

Run directories may come from other people, so a reader trusts nothing: a frame that would decompress to more than any
writer writes, a row that is not JSON, and a FIFO in place of a file are reported as damage.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import zstandard

from twotemp.errors import UserError
from twotemp.folders.files import AppendFile, disk_errors
from twotemp.serialization import json_text

SUFFIX = ".jsonl.zst"
MAX_FRAME = 1 << 28  # bytes of a frame's text; a larger batch is written as several frames
# A zstd block of 4 bytes can stand for 128 kB, so input is decompressed in pieces of 4 kB: at most 128 MB at once.
_PIECE = 1 << 12
_NUMBER = re.compile(rf"-(\d{{20}})\.[^-]*{re.escape(SUFFIX)}")


def next_number(folder: Path) -> int:
    """Return one more than the highest number in the names of a folder's files.

    This is Lamport's clock: a writer comes after all that it has seen, whatever the machines' clocks say.
    """
    matches = (_NUMBER.search(path.name) for path in folder.glob(f"*{SUFFIX}"))
    return 1 + max((int(match[1]) for match in matches if match), default=0)


def writer_name(number: int) -> str:
    """Return the end of the names of a writer's files: sorted by number, and unique."""
    return f"{number:020d}.{os.getpid()}.{uuid.uuid4().hex[:8]}{SUFFIX}"


class FrameFile:
    """A new file to which batches are appended; each is on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        self._file = AppendFile(path, new=True)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows as one frame, or as several if they are longer than `MAX_FRAME`."""
        frames: list[bytes] = []
        lines: list[bytes] = []
        size = 0
        for row in rows:
            line = (json_text(row, compact=True) + "\n").encode()
            if lines and size + len(line) > MAX_FRAME:
                frames.append(self._compressor.compress(b"".join(lines)))
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            self._file.append(b"".join([*frames, self._compressor.compress(b"".join(lines))]))

    def close(self) -> None:
        self._file.close()


def read_batches(
    path: Path, parse: Callable[[bytes], dict[str, Any]] = json.loads
) -> Iterator[list[dict[str, Any]]]:
    """Yield the whole batches of a file, in order. A torn tail is left out; damage before it raises a UserError.

    `parse` may raise whatever wrong data provoke: ValueError, TypeError, LookupError and the like mean damage.
    """
    for whole, (start, text) in enumerate(_frames(path)):
        try:
            batch = [parse(line) for line in BytesIO(text)]
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise _damaged(path, start, whole) from error
        yield batch


def _frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (first byte, decompressed text) of each whole frame."""
    if not path.is_file():  # opening a FIFO would wait for its writer
        raise UserError(
            f"{path} is damaged: it is not a regular file; remove it and run the same command again"
        )
    decompressor = zstandard.ZstdDecompressor()
    start, whole = 0, 0
    with disk_errors(path, "read"), path.open("rb") as file:
        data = file.read(_PIECE)
        while data:
            frame = decompressor.decompressobj()
            parts, length, size = [], 0, 0
            while data and not frame.eof:
                try:
                    parts.append(frame.decompress(data))
                except (zstandard.ZstdError, MemoryError) as error:
                    raise _damaged(path, start, whole) from error
                length += len(parts[-1])
                if length > MAX_FRAME:
                    raise _damaged(path, start, whole)
                size += len(data)
                data = frame.unused_data if frame.eof else file.read(_PIECE)
            if not frame.eof:
                return  # torn: the writer died here, or is still writing
            yield start, b"".join(parts)
            start += size - len(data)
            whole += 1
            data = data or file.read(_PIECE)


def _damaged(path: Path, start: int, whole: int) -> UserError:
    return UserError(
        f"{path} is damaged at byte {start}, after {whole} whole batches: it was changed by something other "
        f"than twotemp. Restore it from a copy, or keep the whole batches with `truncate -s {start} '{path}'` and "
        f"run the same command again, which draws only what is missing"
    )
