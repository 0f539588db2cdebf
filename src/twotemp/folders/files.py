"""Files and folders that are there whole or not at all, and what a disk says, in plain words."""

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
from collections.abc import Iterator
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from twotemp.errors import UserError
from twotemp.plain import json_text

TEMPORARY = ".tmp-"
_HOST = platform.node()[:64]
_OWNER = re.compile(rf"{re.escape(TEMPORARY)}(?P<host>.*)\.(?P<pid>\d+)-[0-9a-f]{{8}}(\..*)?")
_DAY = 86_400.0

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`: the file or folder that is made there is synced and then takes the place of `path`.

    Whatever stops this on the way, `path` is as it was. A folder takes the place of an empty one only. What a kill
    leaves behind is removed when the folder is next claimed (`sweep`).
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
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: Path, data: Any) -> None:
    write_text(path, json_text(data, indent=2) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy") from error


def make_folder(path: Path) -> None:
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Nobody else writes a run there meanwhile. The kernel lets go of it when the process ends, however it ends."""
    make_folder(folder)
    with disk_errors(folder, "open"):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is writing {folder}; wait until it has ended, or stop it and run the same command "
                "again, which continues; for a run of its own choose another folder (--out)"
            ) from None
        except OSError:  # a file system without locks: nobody is refused
            pass
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
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
    """A file that grows by whole pieces; each is on the disk when `append` returns."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.path = path
        with disk_errors(path):
            once = os.O_EXCL if new else 0
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | once, 0o644)
            self._end = os.fstat(self._fd).st_size
            sync(path.parent)

    def append(self, piece: bytes) -> None:
        try:
            with disk_errors(self.path):
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
                os.fsync(self._fd)
        except BaseException:  # a full disk, or Ctrl-C in the middle: take the half piece back
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(piece)

    def close(self) -> None:
        os.close(self._fd)


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_temporary(path: Path) -> bool:
    return path.name.startswith(TEMPORARY)


def sweep(folder: Path) -> None:
    """Remove what killed processes left in a folder and in those below it; what a living one writes stays.

    Nor is it looked into: it may take its place, and so vanish under this name, at any moment.
    """
    inside = [path for path in folder.iterdir() if path.is_dir() and not is_temporary(path)]
    for left in (path for place in (folder, *inside) for path in place.glob(f"{TEMPORARY}*")):
        if _is_orphan(left):
            _remove(left)


def _is_orphan(left: Path) -> bool:
    """Its process ran here and is gone. Of processes elsewhere only the age is known: a day."""
    owner = _OWNER.fullmatch(left.name)
    if owner is None or not _HOST or owner["host"] != _HOST:
        with contextlib.suppress(OSError):
            return time.time() - left.stat().st_mtime > _DAY
        return False
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's
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
    """What goes wrong with `path` becomes a UserError that names the fix; the fix depends on what it was."""
    try:
        yield
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        raise UserError(f"cannot {doing} {path}: {os.strerror(code)}; {_fix(path, code)}") from error


def _code(error: Exception) -> int | None:
    """The system's number of an error; Rust libraries (safetensors) say it in the text of their own errors."""
    if isinstance(error, OSError):
        return error.errno
    said = re.search(r"\(os error (\d+)\)", str(error))
    return int(said[1]) if said else None


def _fix(path: Path, code: int) -> str:
    if code in _FULL:
        return "make room and run the same command again: what was stored before is whole and stays"
    if code in _FORBIDDEN:
        return "choose a folder that you may use (--out), or change its permissions"
    if code == errno.ENOENT:
        missing = next((p for p in reversed(path.parents) if not p.exists()), path)
        return f"{missing} is not there (any more): make it, or choose another folder (--out)"
    if code in _NO_FOLDER:
        return "a file stands where a folder is needed, or a folder is in the way; choose another one (--out)"
    return "mend the disk and run the same command again: what was stored before is whole and stays"
