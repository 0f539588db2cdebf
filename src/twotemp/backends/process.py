"""Workers as processes of this machine.

Driver and worker are the two ends of a socket pair that no other process can reach, and their messages travel as
pickles: no byte of them comes from outside our own processes, which is the only place where twotemp uses pickle.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pickle import UnpicklingError
from queue import SimpleQueue
from threading import Thread

from twotemp.backends.messages import Lost, Order, Report
from twotemp.backends.worker import MakeService, Worker
from twotemp.processes import minimal_environment, python_command, start

HOLD_SECONDS = 0.2  # see `Worker`
# How long a worker that has closed its end may take to exit; its status and last line say why.
EXIT_SECONDS = 5
_CODE = "from twotemp.backends.process import main; main({})"


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker with this many threads."""
    return {**minimal_environment(), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def main(descriptor: int) -> None:
    """Run a worker at its end of the socket pair."""
    connection = Connection(descriptor)
    make, index, hold_seconds = connection.recv()
    orders: SimpleQueue[Order] = SimpleQueue()

    def read() -> None:
        # A thread, so that a worker whose driver has ended exits at once, also while it loads the model.
        try:
            while True:
                orders.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)

    def send(report: Report) -> None:
        try:
            connection.send(report)
        except OSError:
            os._exit(0)

    Thread(target=read, daemon=True).start()
    worker = Worker(make, index, send, hold_seconds)
    while True:
        worker.execute(orders.get())


class ProcessLink:
    """The connection to a worker process. What the worker prints goes to a file; its last line explains a loss."""

    def __init__(self, make: MakeService, index: int, *, threads: int, hold_seconds: float) -> None:
        ours, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with theirs:
            self._process = start(
                python_command("-c", _CODE.format(theirs.fileno())),
                environment=worker_environment(threads),
                folder=os.getcwd(),
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
            )
        self.connection = Connection(ours.detach())
        self._outbox: SimpleQueue[object] = SimpleQueue()
        self.send((make, index, hold_seconds))
        Thread(target=self._write, name="twotemp-link", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Queue a message: a worker that does not read must not keep the caller waiting."""
        self._outbox.put(message)

    def _write(self) -> None:
        with suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self.connection.send(message)

    def receive(self) -> list[Report]:
        """Return all reports that have arrived."""
        reports: list[Report] = []
        try:
            while self.connection.poll():
                reports.append(self.connection.recv())
        except (EOFError, OSError, UnpicklingError):
            reports.append(Lost(self._reason()))
        return reports

    def _reason(self) -> str:
        """Return why a worker that has closed its end was lost."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        self._process.kill()
        status = self._process.wait()
        self._output.seek(0)
        last = self._output.read().decode(errors="replace").strip().splitlines()[-1:]
        if last and status >= 0:
            return last[0]
        return signal.Signals(-status).name if status < 0 else f"it ended with status {status}"

    def kill(self) -> None:
        self._outbox.put(None)
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self.connection.close()
        self._output.close()


class ProcessTransport:
    """A `Transport` to processes of this machine."""

    def __init__(self, make: MakeService, *, threads: int = 1, hold_seconds: float = HOLD_SECONDS) -> None:
        """Keep how to start workers.

        Args:
            make: Makes each worker's service; it is pickled.
            threads: CPU threads of each worker.
            hold_seconds: See `Worker`.
        """
        self._make, self._threads, self._hold_seconds = make, threads, hold_seconds

    def start(self, index: int) -> ProcessLink:
        return ProcessLink(self._make, index, threads=self._threads, hold_seconds=self._hold_seconds)

    def receive(self, links: Sequence[ProcessLink], seconds: float) -> list[tuple[int, Report]]:
        ready = set(wait([link.connection for link in links], seconds))
        return [
            (index, report)
            for index, link in enumerate(links)
            if link.connection in ready
            for report in link.receive()
        ]

    def close(self) -> None:
        pass
