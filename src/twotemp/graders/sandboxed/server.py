"""A warm fork server. For each request it forks the program's process and the judge's, and holds the clock.

    request   header, code, tests (see `_HEADER`); the code is read by the program's process and the tests by
              the judge's, each straight from our standard input, so that this process, which every program
              is forked from, never holds either
    reply     one JSON line: {"outcome": "passed" | "failed" | "timeout", "detail": ...}
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable

from . import confine
from .candidate import serve
from .judge import Program, judge
from .values import read_exactly

_HEADER = struct.Struct("<dQQ")  # seconds, bytes of code, bytes of tests
_START_SECONDS = 60.0  # for both processes to have read what is theirs, on a busy machine

# Imported once, so that programs find them warm. Others are found on disk, more slowly.
_WARM = (
    "abc array bisect calendar cmath collections contextlib copy dataclasses datetime decimal enum fractions "
    "functools heapq io itertools json math numbers operator random re statistics string struct textwrap time "
    "traceback types typing unicodedata"
).split()


def main(readable: list[str] | None) -> None:
    """Serve until standard input closes. `readable`: paths for Landlock, where there is no mount namespace."""
    for name in _WARM:
        importlib.import_module(name)
    confine.drop_privileges(readable)
    null = os.open(os.devnull, os.O_RDWR)
    seccomp = confine.seccomp_filter()
    gc.collect()
    gc.freeze()  # or every collection in a child would copy all of these pages
    _say({"ready": True})
    while len(header := os.read(0, _HEADER.size)) == _HEADER.size:
        _say(_run(null, seccomp, *_HEADER.unpack(header)))


def _say(message: dict[str, object]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _run(null: int, seccomp: confine.Filter, seconds: float, code: int, tests: int) -> dict[str, object]:
    to_program, to_judge, to_us = os.pipe(), os.pipe(), os.pipe()
    ends = (*to_program, *to_judge, *to_us)
    children: list[int] = []

    def start(body: Callable[[], None], *keep: int) -> None:
        if child := os.fork():
            children.append(child)
            return
        try:
            confine.enter(seccomp, seconds, null, keep)
            body()
        finally:
            os._exit(1)

    def program() -> None:
        source = read_exactly(0, code).decode(errors="surrogatepass")
        os.write(to_judge[1], b"r")
        os.dup2(null, 0)
        serve(source, to_program[0], to_judge[1])

    def judging() -> None:
        read_exactly(to_judge[0], 1)  # standard input is ours once the program's process has read its part
        request = json.loads(read_exactly(0, tests))
        os.write(to_us[1], b"r")
        os.dup2(null, 0)
        verdict = judge(Program(to_program[1], to_judge[0]), **request)
        os.write(to_us[1], json.dumps(verdict).encode())

    try:
        start(program, to_program[0], to_judge[1])
        start(judging, to_program[1], to_judge[0], to_us[1])
        for end in ends:
            if end != to_us[0]:
                os.close(end)
        if _read(to_us[0], 1, time.monotonic() + _START_SECONDS) != b"r":
            sys.exit("a request was not read to its end")  # standard input is out of step: start afresh
        verdict = _read(to_us[0], 1 << 16, time.monotonic() + seconds)
        if verdict is None:
            return {"outcome": "timeout", "detail": f"took more than {seconds:g} s"}
        return json.loads(verdict) if verdict else {"outcome": "failed", "detail": "the judge ran out of memory"}
    finally:
        # No process here can fork, so killing the two is killing everything.
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(to_us[0])


def _read(descriptor: int, size: int, deadline: float) -> bytes | None:
    """One read by the deadline; None if there was nothing by then, b"" at the end of the pipe."""
    left = max(0.0, deadline - time.monotonic())
    return os.read(descriptor, size) if select.select([descriptor], [], [], left)[0] else None
