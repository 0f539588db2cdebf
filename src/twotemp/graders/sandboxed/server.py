"""A warm fork server: forks a process for each program, keeps one for the tests, and holds the clock.

request   header, code, tests (see `HEADER`); the code is read by the program's process and the tests by
          the judge's, each straight from our standard input, so that this process, which every program
          is forked from, never holds either
reply     one JSON line: {"outcome": "passed" | "failed" | "timeout" | "ungraded", "detail": ...}

"passed" is what the judge sent as a whole frame, and nothing else is. A program's time is what it and its tests
use of the processor, plus what they wait by their own choice (a sleep); see `Clock`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time

from . import FAR, HEADER, PATIENCE, confine
from .candidate import serve
from .channel import read_exactly
from .judge import Program, judge

_START_SECONDS = 60.0  # for both processes to have read what is theirs, on a busy machine
_RECYCLE = 1000  # requests one judge answers
_TICK = 0.5  # seconds; longer than a runnable process waits for its turn on a busy machine
_IDLE = 0.02  # of a tick: who used less of the processor was not kept from it, but waiting
_BUSY = 4.0  # a slowdown that one program and its judge, on the same core as the server, cannot cause
_PROBE_SECONDS = 0.02

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
    server = Server()
    gc.collect()
    gc.freeze()  # or every collection in a child would copy all of these pages
    _say({"ready": True})
    while len(header := os.read(0, HEADER.size)) == HEADER.size:
        _say(server.run(*HEADER.unpack(header)))


def _say(message: dict[str, object]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


class Server:
    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_RDWR)
        self._seccomp = confine.seccomp_filter()
        self._judge: _Judge | None = None

    def run(self, seconds: float, code: int, tests: int) -> dict[str, object]:
        if self._judge is None or self._judge.asked >= _RECYCLE:
            self._end_judge()
            self._judge = _Judge(self._null)
        requests, replies = os.pipe(), os.pipe()
        program = self._start_program(seconds, code, requests[0], replies[1])
        try:
            self._judge.begin(tests, requests[1], replies[0])
            for end in (*requests, *replies):
                os.close(end)
            clock = Clock((program, self._judge.process), seconds)
            verdict = self._judge.verdict(clock)
        finally:
            # It could not fork, so killing it is killing everything it started.
            os.kill(program, signal.SIGKILL)
            os.waitpid(program, 0)
        if verdict is None:
            self._end_judge()
            if clock.busy and clock.left() > 0:
                return {"outcome": "ungraded", "detail": f"the machine was too busy to give it {seconds:g} s"}
            return {"outcome": "timeout", "detail": f"took more than {seconds:g} s"}
        if not verdict:
            self._end_judge()
            return {"outcome": "failed", "detail": "the judge died of a result"}
        judged: dict[str, object] = json.loads(verdict)
        return judged

    def _start_program(self, seconds: float, code: int, requests: int, replies: int) -> int:
        if child := os.fork():
            return child
        try:
            confine.enter(self._seccomp, seconds, self._null, (requests, replies))
            source = read_exactly(0, code).decode(errors="surrogatepass")
            os.dup2(self._null, 0)
            os.write(replies, b"r")
            serve(source, requests, replies)
        finally:
            os._exit(1)

    def _end_judge(self) -> None:
        if self._judge is not None:
            self._judge.end()
            self._judge = None


class Clock:
    """How much of its time a program has left: time = processor time of `processes` + ticks they idled.

    An idle tick counts for no more than it was meant to last: if we ourselves were kept waiting, so were they.
    A program that works and sleeps by turns idles in no tick, so the wall clock ends it after `PATIENCE` times
    its time; unless a loop of our own shows that the machine is busy, and then after `FAR` times at the latest.
    """

    def __init__(self, processes: tuple[int, ...], seconds: float) -> None:
        self._processes = processes
        self._seconds = seconds
        self._waited = 0.0
        self._tick = 0.0
        self.busy = False  # whether the machine was, when it was last asked
        self._began = self._looked = time.monotonic()
        self._used = self._before = self._processor_time()

    def next_look(self) -> float:
        """Seconds until it makes sense to look again; 0 if time is up."""
        now, used = time.monotonic(), self._processor_time()
        if used - self._used < _IDLE * (now - self._looked):
            self._waited += min(self._tick, now - self._looked)
        self._looked, self._used = now, used
        wall = (now - self._began) / self._seconds
        if self.left() <= 0 or (wall > PATIENCE and (not self._busy() or wall > FAR)):
            return 0.0
        self._tick = min(_TICK, max(0.02, self.left()))
        return self._tick

    def _busy(self) -> bool:
        self.busy = slowdown() > _BUSY
        return self.busy

    def left(self) -> float:
        return self._seconds - self._waited - (self._used - self._before)

    def _processor_time(self) -> float:
        # The clock of another process, as clock_getcpuclockid(3) makes it: there is no /proc in here.
        return sum(time.clock_gettime((~process << 3) | 2) for process in self._processes)


def slowdown() -> float:
    """Return how many times longer than alone a short computation takes here and now."""
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < _PROBE_SECONDS:
        pass
    return (time.monotonic() - began) / _PROBE_SECONDS


class _Judge:
    """The process that runs the tests, kept from one request to the next: no program's code runs in it."""

    def __init__(self, null: int) -> None:
        self.asked = 0
        self._ours, theirs = socket.socketpair()
        self.process = os.fork()
        if self.process:
            theirs.close()
            return
        try:
            confine.die_with_parent()
            self._ours.close()
            os.dup2(null, 1)
            while True:
                size, (requests, replies) = _receive(theirs)
                read_exactly(replies, 1)  # the program's process has read its part of standard input
                request = json.loads(read_exactly(0, size))
                theirs.send(b"r")
                program = Program(requests, replies)
                verdict = judge(program, **request)
                program.close()
                message = json.dumps(verdict).encode()
                theirs.sendall(len(message).to_bytes(8, "little") + message)
        finally:
            os._exit(1)

    def begin(self, size: int, requests: int, replies: int) -> None:
        """Hand over the channel to the program; returns when both processes have read what is theirs."""
        self.asked += 1
        socket.send_fds(self._ours, [size.to_bytes(8, "little")], [requests, replies])
        if not self._speaks(_START_SECONDS) or self._ours.recv(1) != b"r":
            sys.exit("a request was not read to its end")  # standard input is out of step: start afresh

    def verdict(self, clock: Clock) -> bytes | None:
        """Return the verdict as JSON; None if there is none in time, b"" if the judge died of a result."""
        while (seconds := clock.next_look()) > 0:
            if self._speaks(seconds):
                try:
                    size = int.from_bytes(read_exactly(self._ours.fileno(), 8), "little")
                    return read_exactly(self._ours.fileno(), size)
                except (EOFError, OSError):
                    return b""
        return None

    def _speaks(self, seconds: float) -> bool:
        return bool(select.select([self._ours], [], [], seconds)[0])

    def end(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self._ours.close()


def _receive(channel: socket.socket) -> tuple[int, list[int]]:
    message, descriptors, _, _ = socket.recv_fds(channel, 8, 2)
    if len(descriptors) != 2:
        raise EOFError("the server ended")
    return int.from_bytes(message, "little"), descriptors
