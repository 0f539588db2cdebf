"""Files that are written whole or not at all, and disk errors as messages that name the fix.

`replacing` writes to a temporary path, which is synced and renamed. `Log` appends JSON lines, `FrameFile` batches of
rows to a `*.jsonl.zst` file, one zstd frame per batch. A process that dies while it writes leaves a torn last frame.
Its checksum comes last, so a frame either decodes completely or ends early: readers stop at the last whole frame, and
a writer never appends to a file that another writer made. There are no locks: every writer has its own file.

Run directories may come from other people, so a reader trusts nothing: a frame that would decompress to more than any
writer writes, a row that is not JSON, and a FIFO in place of a file are reported as damage.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from io import BytesIO
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import zstandard

from twotemp.errors import UserError
from twotemp.serialization import json_text

TEMPORARY = ".tmp-"
_HOST = platform.node()[:64]
_OWNER = re.compile(rf"{re.escape(TEMPORARY)}(?P<host>.*)\.(?P<pid>\d{{1,9}})-[0-9a-f]{{8}}(\..*)?")
_DAY = 86_400.0

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; what is created there is synced and then replaces `path`.

    If anything fails, `path` is unchanged. A folder replaces only an empty folder. What a killed process leaves
    behind is removed when the run directory is next claimed (`sweep`).
    """
    temporary = path.with_name(f"{TEMPORARY}{_HOST}.{os.getpid()}-{uuid.uuid4().hex[:8]}{path.suffix}")
    with disk_errors(path):
        try:
            yield temporary
            for part in (*temporary.rglob("*"), temporary):
                sync(part)
            temporary.replace(path)
            sync(path.parent)
        except BaseException:
            _remove(temporary)
            raise


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json_text(data, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; raise a UserError if it is missing, not a regular file, or not JSON."""
    try:
        if path.exists() and not path.is_file():  # reading a FIFO would wait for its writer
            raise ValueError("not a regular file")
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy") from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if they do not exist."""
    with disk_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # although missing parents are created: /proc and the like take no folders
            raise UserError(
                f"cannot create {path}: its file system refuses; choose another folder (--out)"
            ) from None


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a run directory; raise a UserError if another process holds it.

    The kernel releases the lock when the process ends, however it ends.
    """
    make_folder(folder)
    with disk_errors(folder, "open"):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is writing {folder}; wait until it has finished, or stop it and run the same "
                "command again to continue; for a separate run choose another folder (--out)"
            ) from None
        except OSError:  # a file system without locks: no process is refused
            pass
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def defer_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, so that its steps are all done or none is begun."""
    if current_thread() is not main_thread():  # only the main thread is ever interrupted
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            signal.raise_signal(signal.SIGINT)


class AppendFile:
    """A file to which whole pieces are appended; each is on disk when `append` returns."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.path = path
        with disk_errors(path):
            exclusive = os.O_EXCL if new else 0
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | exclusive, 0o644)
            self._end = os.fstat(self._fd).st_size
            sync(path.parent)

    def append(self, piece: bytes) -> None:
        """Append a piece, or nothing if an error occurs."""
        try:
            with disk_errors(self.path):
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
                os.fsync(self._fd)
        except BaseException:  # a full disk, or Ctrl-C: remove the partial piece
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(piece)

    def close(self) -> None:
        os.close(self._fd)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_temporary(path: Path) -> bool:
    return path.name.startswith(TEMPORARY)


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder and its subfolders.

    Those of running processes are neither removed nor opened: they may be renamed at any moment.
    """
    # Not through links, which in a run directory from elsewhere may lead anywhere.
    folders = [
        folder,
        *(p for p in folder.iterdir() if not p.is_symlink() and p.is_dir() and not is_temporary(p)),
    ]
    for path in (path for parent in folders for path in parent.glob(f"{TEMPORARY}*")):
        if _is_orphan(path):
            _remove(path)


def _is_orphan(path: Path) -> bool:
    """Return whether the process that owns a temporary file is gone; on another machine, whether it is a day old."""
    owner = _OWNER.fullmatch(path.name)
    if owner is None or not _HOST or owner["host"] != _HOST:
        with contextlib.suppress(OSError):
            return time.time() - path.stat().st_mtime > _DAY
        return False
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # a process of another user
        return False
    return False


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def disk_errors(path: Path, doing: str = "write") -> Iterator[None]:
    """Turn disk errors about `path` into a UserError that names the fix."""
    try:
        yield
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        raise UserError(f"cannot {doing} {path}: {os.strerror(code)}; {_fix(path, code)}") from error


def _code(error: Exception) -> int | None:
    """Return the errno of an error; Rust libraries (safetensors) put it into the message."""
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else None


def _fix(path: Path, code: int) -> str:
    if code in _FULL:
        return "free some space and run the same command again: everything stored before is intact"
    if code in _FORBIDDEN:
        return "choose a folder that you may write to (--out), or change its permissions"
    if code == errno.ENOENT:
        missing = next((p for p in reversed(path.parents) if not p.exists()), path)
        return f"{missing} does not exist (any more): create it, or choose another folder (--out)"
    if code in _NO_FOLDER:
        return "a file is where a folder is needed, or a folder is in the way; choose another one (--out)"
    return "check the disk and run the same command again: everything stored before is intact"


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
