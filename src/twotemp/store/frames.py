"""Append-only `*.jsonl.zst` files: one zstd frame a batch of rows, so that a batch is stored whole or not at all.

A process that dies while it writes leaves a torn last frame. Its checksum comes last, so a frame either decodes
completely or ends early: readers stop at the last whole frame, and a writer never appends to a file it did not
make itself. No locks: every writer has a file of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from twotemp.errors import UserError

_CHUNK = 1 << 20


class FrameFile:
    """A new file that batches are appended to; each is on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0  # the end of the last whole frame
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        with disk_errors(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            sync_folder(path.parent)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        # allow_nan=False: NaN and Infinity are not JSON, and other readers would stumble over them.
        text = "".join(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n" for row in rows)
        if not text:
            return
        frame = memoryview(self._compressor.compress(text.encode()))
        try:
            with disk_errors(self.path):
                rest = frame
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
                os.fsync(self._fd)
        except BaseException:  # a full disk, or Ctrl-C in the middle: take the half frame back
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(frame)

    def close(self) -> None:
        os.close(self._fd)


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
    with path.open("rb") as file:
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


def write_once(path: Path, data: Mapping[str, Any]) -> None:
    """A small JSON file that is there complete or not at all."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    with disk_errors(path):
        with temporary.open("w") as file:
            file.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make names in a folder durable, as fsync does for the bytes of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}. What was stored before is whole and stays; make room (or mend "
            f"the disk or its permissions) and run the same command again to continue"
        ) from error
