"""A warm fork server: forks a process for each program, keeps one for the tests, and measures their time.

request   header, code, tests (see `HEADER`); the program's process reads the code and the judge reads the tests,
          each straight from the standard input of the server, which therefore never holds either
reply     one line of JSON: {"outcome": "passed" | "failed" | "timeout" | "starved", "detail": ...}

Only a whole frame from the judge can say "passed". Its detail quotes the tests, and every later program starts as a
copy of this process, so the frame passes through a buffer that is wiped at once.

A program's time is the processor time of its process and of the judge, plus the time that they wait by their own
choice (a sleep); see `Clock`. "starved" means that a busy machine kept a program from computing: it has neither used
its time nor slept. The parent runs such a program again.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time

from . import BUSY_WALL_FACTOR, HEADER, IDLE_WALL_FACTOR, confine
from .candidate import serve
from .channel import read_exactly
from .judge import judge

_START_SECONDS = 60.0  # for both processes to read their parts of a request, on a busy machine
_RECYCLE = 1000  # requests one judge answers
_LARGEST_VERDICT = 1 << 16  # bytes; the judge cuts every part of a reason
_TICK = 0.5  # seconds; longer than a runnable process waits for its turn on a busy machine
_IDLE = 0.02  # share of a tick: a process that used less of the processor was waiting, not kept from it
_BUSY = 4.0  # a slowdown that one program and its judge, on the same core as the server, cannot cause
_PROBE_SECONDS = 0.02
_WAITS_PER_TURN = 2  # when the judge waits for it: for a request, and perhaps for space to reply
_BLOCKS_PER_WAIT = 32  # read from disk, while modules are imported: the kernel reads ahead
_OTHER_WAITS = 10  # a program that only computes has two

# Imported once, so that programs need not load them. Others are read from disk, more slowly.
_WARM = (
    "abc array bisect calendar cmath collections contextlib copy dataclasses datetime decimal enum fractions "
    "functools heapq io itertools json math numbers operator random re statistics string struct textwrap time "
    "traceback types typing unicodedata"
).split()


def main(readable: list[str] | None) -> None:
    """Serve until standard input closes.

    Args:
        readable: The paths that Landlock leaves readable; None in a mount namespace, which shows no others.
    """
    for name in _WARM:
        importlib.import_module(name)
    confine.drop_privileges(readable)
    server = ForkServer()
    gc.collect()
    gc.freeze()  # or every collection in a child would copy all of these pages
    _say("ready", "")
    while len(header := os.read(0, HEADER.size)) == HEADER.size:
        server.run(*HEADER.unpack(header))


def _say(outcome: str, detail: str) -> None:
    os.write(1, json.dumps({"outcome": outcome, "detail": detail}).encode() + b"\n")


class ForkServer:
    """Runs one program after the other, each in a process forked from this one."""

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_RDWR)
        self._seccomp = confine.seccomp_filter()
        self._judge: JudgeProcess | None = None

    def run(self, seconds: float, code: int, tests: int) -> None:
        """Run one program against its tests and write the reply.

        Args:
            seconds: The time limit.
            code: Bytes of source code that follow on standard input.
            tests: Bytes of tests that follow the code.
        """
        if self._judge is None or self._judge.asked >= _RECYCLE:
            self._end_judge()
            self._judge = JudgeProcess(self._null)
        requests, replies = os.pipe(), os.pipe()
        program = self._start_program(seconds, code, requests[0], replies[1])
        try:
            self._judge.begin(tests, requests[1], replies[0])
            for end in (*requests, *replies):
                os.close(end)
            clock = Clock((program, self._judge.process), seconds)
            answered = self._judge.relay(clock)
        finally:
            # It could not fork, so killing it is killing everything it started.
            used = _end(program)
        if answered:
            return
        turns = self._end_judge()
        if answered is not None:
            _say("failed", "a result of the program ended the judge")
        elif clock.busy and not slept(used.ru_nvcsw - used.ru_inblock // _BLOCKS_PER_WAIT, turns):
            _say("starved", f"the machine was too busy to give it {seconds:g} s")
        else:
            _say("timeout", f"took more than {seconds:g} s")

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

    def _end_judge(self) -> int:
        """End the judge; return how often it has waited since the request began."""
        judge, self._judge = self._judge, None
        return judge.end() if judge is not None else 0


class Clock:
    """The time that a program has left: processor time of its processes, and ticks in which they idled.

    An idle tick counts for no more than it was meant to last: if the server was kept waiting, so were they. A
    program that alternates between work and sleep idles in no tick, so the wall clock ends it after
    `IDLE_WALL_FACTOR` times its time limit, or `BUSY_WALL_FACTOR` times if a probe shows that the machine is busy;
    `slept` then says why it had not used its time.

    Args:
        processes: Ids of the program's process and the judge.
        seconds: The time limit.
    """

    def __init__(self, processes: tuple[int, ...], seconds: float) -> None:
        self.busy = False  # whether the wall clock ended the program, on a busy machine
        self._processes = processes
        self._seconds = seconds
        self._waited = 0.0  # seconds of idle ticks
        self._tick = 0.0
        self._began = self._looked = time.monotonic()
        self._used = self._before = self._processor_time()

    def tick(self) -> float:
        """Count the time since the last tick; return the seconds until the next one, 0 if time is up."""
        now, used = time.monotonic(), self._processor_time()
        if used - self._used < _IDLE * (now - self._looked):
            self._waited += min(self._tick, now - self._looked)
        self._looked, self._used = now, used
        if self._left() <= 0:
            return 0.0
        wall = now - self._began
        if wall > IDLE_WALL_FACTOR * self._seconds:
            busy = slowdown() > _BUSY
            if not busy or wall > BUSY_WALL_FACTOR * self._seconds:
                self.busy = busy
                return 0.0
        self._tick = min(_TICK, max(0.02, self._left()))
        return self._tick

    def _left(self) -> float:
        return self._seconds - self._waited - (self._used - self._before)

    def _processor_time(self) -> float:
        # The clock of another process, as clock_getcpuclockid(3) makes it: there is no /proc in here.
        return sum(time.clock_gettime((~process << 3) | 2) for process in self._processes)


def slept(waits: int, turns: int) -> bool:
    """Return whether a program waited by its own choice rather than for a core or for the judge.

    Args:
        waits: How often it gave up its core (voluntary context switches, which the kernel counts), but for a disk.
        turns: How often the judge did, which waits for every reply of the program.
    """
    return waits > _WAITS_PER_TURN * turns + _OTHER_WAITS


def slowdown() -> float:
    """Return how many times longer than on an idle machine a short computation takes now."""
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < _PROBE_SECONDS:
        pass
    return (time.monotonic() - began) / _PROBE_SECONDS


class JudgeProcess:
    """The process that runs the tests, kept from one request to the next: no program's code runs in it."""

    def __init__(self, null: int) -> None:
        self.asked = 0
        self._waits = 0  # how often it had waited when the request began
        self._buffer = bytearray(_LARGEST_VERDICT)
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
                waits = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
                theirs.send(waits.to_bytes(8, "little"))
                message = json.dumps(judge(requests, replies, **request)).encode() + b"\n"
                theirs.sendall(len(message).to_bytes(8, "little") + message)
        finally:
            os._exit(1)

    def begin(self, size: int, requests: int, replies: int) -> None:
        """Hand the judge the channel to the program; return when both have read their parts of the request.

        Args:
            size: Bytes of tests to read from standard input.
            requests: The writing end of the pipe to the program.
            replies: The reading end of the pipe from the program.
        """
        self.asked += 1
        socket.send_fds(self._ours, [size.to_bytes(8, "little")], [requests, replies])
        if not self._speaks(_START_SECONDS) or len(waits := self._ours.recv(8)) < 8:
            sys.exit("a request was not read to its end")  # standard input is out of step: start afresh
        self._waits = int.from_bytes(waits, "little")

    def relay(self, clock: Clock) -> bool | None:
        """Write the judge's reply to standard output.

        Returns:
            True if there was one, False if the judge ended without, None if there was none in time.
        """
        while (seconds := clock.tick()) > 0:
            if self._speaks(seconds):
                return self._relay_frame()
        return None

    def _relay_frame(self) -> bool:
        with memoryview(self._buffer) as view:
            try:
                size = int.from_bytes(read_exactly(self._ours.fileno(), 8), "little")
                done = 0
                while done < size <= _LARGEST_VERDICT:
                    if not (count := self._ours.recv_into(view[done:size])):
                        return False
                    done += count
                if done < size:
                    return False
                while done:
                    done -= os.write(1, view[size - done : size])
                return True
            except (EOFError, OSError):
                return False
            finally:
                view[:] = bytes(len(view))

    def _speaks(self, seconds: float) -> bool:
        return bool(select.select([self._ours], [], [], seconds)[0])

    def end(self) -> int:
        """End the process; return how often it has waited since the request began."""
        self._ours.close()
        return _end(self.process).ru_nvcsw - self._waits


def _end(process: int) -> resource.struct_rusage:
    """Kill a child; return what it has used."""
    os.kill(process, signal.SIGKILL)
    return os.wait4(process, 0)[2]


def _receive(channel: socket.socket) -> tuple[int, list[int]]:
    message, descriptors, _, _ = socket.recv_fds(channel, 8, 2)
    if len(descriptors) != 2:
        raise EOFError("the server ended")
    return int.from_bytes(message, "little"), descriptors
