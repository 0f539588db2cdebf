"""`twotemp` inside an experiment: where the command is stopped or fails, so does the experiment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from twotemp.cli import app
from twotemp.graders.workers import usable_cpus

# Rows in the same state are computed once, and candidates that are asked the same question share most of their
# states: one batch of all their rows takes half the time of batches of 64.
MANY_ROWS = ("--batch-size", "512")


def twotemp(*arguments: str) -> None:
    """In this process. Ctrl-C is an exit code to it, and what was half drawn must not be taken for a result."""
    if code := app(list(arguments), standalone_mode=False):
        sys.exit(code)


def side_by_side(commands: Iterable[Sequence[str]]) -> None:
    """One at a time on each core, in a process of its own: what they do in a second is comparable."""
    free: SimpleQueue[int] = SimpleQueue()
    for core in range(usable_cpus()):
        free.put(core)

    def alone(arguments: Sequence[str]) -> None:
        core = free.get()
        try:
            subprocess.run([sys.executable, "-m", __name__, str(core), *arguments], check=True)
        finally:
            free.put(core)

    with ThreadPoolExecutor(usable_cpus()) as threads:
        try:
            list(threads.map(alone, commands))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def stay_on(core: int) -> None:
    """Before torch counts the cores it may use. Elsewhere than on Linux a thread is not held to a core."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


if __name__ == "__main__":
    stay_on(int(sys.argv[1]))
    twotemp(*sys.argv[2:])
