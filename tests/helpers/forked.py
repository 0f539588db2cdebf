"""Processes that start as copies of one that has imported everything, instead of as new interpreters.

To import torch and transformers takes seconds of CPU; a test of what a process does when it is killed, interrupted or
lost does not need that again. The copies come from multiprocessing's fork server, which never ran a test: nothing
that a test patched is in them. The fixture `forked_processes` puts `Forked` in the place of `subprocess.Popen`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from multiprocessing import forkserver, reduction
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["twotemp.cli", "twotemp.engine", "twotemp.models.load", "twotemp.evaluation", "twotemp.rl.trainer"]
)


# A copy has no current folder in its path, and writes line by line.
NEEDLESS = ("-P", "-u")


class Handed:
    """A file descriptor that travels to the copy."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return received, (reduction.DupFd(self.number),)


def received(descriptor: Any) -> int:
    return descriptor.detach()


class Forked(subprocess.Popen):
    """`subprocess.Popen`, but that `python -c CODE` and `python -m MODULE` are run by a copy."""

    _copy: Any = None

    def _execute_child(self, args: Sequence[Any], *rest: Any) -> None:
        words = [str(word) for word in args]
        while words[1:] and words[1] in NEEDLESS:
            del words[1]
        if words[0] != sys.executable or words[1] not in ("-c", "-m"):
            super()._execute_child(args, *rest)
            return
        _, _, _, pass_fds, cwd, env, _, _, _, *pipes, _, _, _, _, _, new_session, _ = rest
        ends = {0: pipes[0], 1: pipes[3], 2: pipes[5]}
        files = {place: Handed(place if end == -1 else end) for place, end in ends.items()}
        files |= {number: Handed(number) for number in pass_fds}
        environment = dict(os.environ if env is None else env)
        self._copy = CONTEXT.Process(
            target=become, args=(words[1:], environment, os.fspath(cwd or os.getcwd()), files, new_session)
        )
        self._copy.start()
        self.pid, self._child_created = self._copy.pid, True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._copy is None:
            return super()._internal_poll(*args, **kwargs)
        if self.returncode is None:
            self.returncode = self._copy.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._copy is None:
            return super()._wait(timeout)
        self._copy.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


def become(words: list[str], env: dict[str, str], cwd: str, files: dict[int, int], new_session: bool) -> None:
    """Run like `python *words` in this environment and folder, with these files; so do the processes it starts."""
    if new_session:
        os.setsid()
    spare = max(*files, *files.values()) + 1
    for at, number in enumerate(files.values()):
        os.dup2(number, spare + at)
    for at, place in enumerate(files):
        os.dup2(spare + at, place)
        os.close(spare + at)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = (os.fdopen(place, "w", buffering=1) for place in (1, 2))
    for module in [*sys.modules.values()]:  # torchrun has it by name
        if getattr(module, "__dict__", {}).get("Popen") is Forked.__base__:
            module.Popen = Forked
    forkserver._forkserver.ensure_running = lambda: None  # its own copies come from the same server
    kind, what, *arguments = words
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(what, "<string>", "exec"), vars(main))


def stop() -> None:
    """End the server and wait for it, so that what the copies used counts as time of the tests."""
    server = forkserver._forkserver._forkserver_pid
    if server is not None:
        os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)
