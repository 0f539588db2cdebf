"""Workers as processes of this machine.

Driver and worker are two ends of a socket pair that nobody else can reach, and what they say travels as pickles: no
byte of it comes from outside of our own processes, which is the only place where twotemp uses pickle.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import connection
from pickle import UnpicklingError

from twotemp.executors.messages import Lost, News
from twotemp.executors.worker import Make, work
from twotemp.processes import minimal_environment, python_command, start

Task = Callable[[connection.Connection], None]  # what a process does with its end of the pipe

SEND_SECONDS = 60  # a worker reads at once; one that does not is stopped or broken
END_SECONDS = 5  # for a worker that hung up to end by itself, with its own status and last words
_CODE = "from twotemp.executors.processes import main; main({})"


def environment(threads: int) -> dict[str, str]:
    """Of a worker with so many threads. It finds the modules that this process finds, and fetches nothing: a
    checkpoint of the hub is in the cache when workers start."""
    return {**minimal_environment(), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def main(descriptor: int) -> None:
    """What a new process runs."""
    link = connection.Connection(descriptor)
    link.recv()(link)


class Process:
    """A process that does a task, in a session of its own: Ctrl-C is for the driver alone. What it prints goes to a
    file, of which the last line is shown if it is lost."""

    def __init__(self, task: Task, threads: int) -> None:
        mine, theirs = socket.socketpair()
        # Whoever does not read for so long gets no more: `send` raises.
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with theirs:
            self._process = start(
                python_command("-c", _CODE.format(theirs.fileno())),
                environment=environment(threads),
                folder=os.getcwd(),  # checkpoints and plug-ins may be named relative to it
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=[theirs.fileno()],
            )
        self.link = connection.Connection(mine.detach())
        self.send(task)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        try:
            self.link.send(message)
        except OSError:
            self.end()

    def end(self) -> None:
        """Its end of the pipe closes, which whoever listens to it notices."""
        self._process.kill()

    def hear(self) -> list[News]:
        """All it has said by now."""
        news: list[News] = []
        try:
            while self.link.poll():
                news.append(self.link.recv())
        except (EOFError, OSError, UnpicklingError):
            news.append(Lost(self.reason()))
        return news

    def reason(self) -> str:
        """Why it is lost; for one that hung up."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self.end()
        status = self._process.wait()
        self._printed.seek(0)
        last = self._printed.read().decode(errors="replace").strip().splitlines()[-1:]
        if last and status >= 0:
            return last[0]
        return f"{signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"

    def kill(self) -> None:
        with suppress(OSError):
            self.link.close()
        self.end()
        self._process.wait()
        self._printed.close()


class Processes:
    """A `Crew` of processes."""

    def __init__(self, make: Make, *, threads: int = 1) -> None:
        self._make, self._threads = make, threads

    def start(self, place: int) -> Process:
        return Process(partial(work, self._make, place), self._threads)

    def hear(self, workers: Sequence[Process], seconds: float) -> list[tuple[int, News]]:
        speaking = set(connection.wait([worker.link for worker in workers], seconds))
        return [
            (number, news)
            for number, worker in enumerate(workers)
            if worker.link in speaking
            for news in worker.hear()
        ]

    def close(self) -> None:
        pass
