"""Start Python processes as forks of a process that has already imported everything.

Importing torch and transformers takes seconds of CPU, which a test of a killed or interrupted process does not need
to repeat. The forks come from multiprocessing's fork server, which never ran a test, so that they contain nothing
that a test patched. The fixture `forked_processes` replaces `subprocess.Popen` by `ForkedPopen`.
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


# Options without effect: a fork has no current folder in its path, and its output is line-buffered.
IGNORED_OPTIONS = ("-P", "-u")


class InheritedDescriptor:
    """A file descriptor that is passed to the fork."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return detach, (reduction.DupFd(self.number),)


def detach(descriptor: Any) -> int:
    """Return the descriptor's number in the fork."""
    return descriptor.detach()


class ForkedPopen(subprocess.Popen):
    """`subprocess.Popen` that runs `python -c CODE` and `python -m MODULE` in a fork."""

    _fork: Any = None

    def _execute_child(self, args: Sequence[Any], *rest: Any) -> None:
        words = [str(word) for word in args]
        while words[1:] and words[1] in IGNORED_OPTIONS:
            del words[1]
        if words[0] != sys.executable or words[1] not in ("-c", "-m"):
            super()._execute_child(args, *rest)
            return
        _, _, _, pass_fds, cwd, env, _, _, _, *pipes, _, _, _, _, _, new_session, _ = rest
        ends = {0: pipes[0], 1: pipes[3], 2: pipes[5]}
        files = {target: InheritedDescriptor(target if end == -1 else end) for target, end in ends.items()}
        files |= {number: InheritedDescriptor(number) for number in pass_fds}
        environment = dict(os.environ if env is None else env)
        self._fork = CONTEXT.Process(
            target=become, args=(words[1:], environment, os.fspath(cwd or os.getcwd()), files, new_session)
        )
        self._fork.start()
        self.pid, self._child_created = self._fork.pid, True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._fork is None:
            return super()._internal_poll(*args, **kwargs)
        if self.returncode is None:
            self.returncode = self._fork.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._fork is None:
            return super()._wait(timeout)
        self._fork.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


def become(words: list[str], env: dict[str, str], cwd: str, files: dict[int, int], new_session: bool) -> None:
    """Run like `python *words`; processes that it starts are forks as well.

    Args:
        words: the arguments of the interpreter.
        env: the environment.
        cwd: the working directory.
        files: descriptor in the new process -> descriptor in the fork.
        new_session: start a new session.
    """
    if new_session:
        os.setsid()
    spare = max(*files, *files.values()) + 1
    for offset, number in enumerate(files.values()):
        os.dup2(number, spare + offset)
    for offset, target in enumerate(files):
        os.dup2(spare + offset, target)
        os.close(spare + offset)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    for module in [*sys.modules.values()]:  # torchrun has imported Popen by name
        if getattr(module, "__dict__", {}).get("Popen") is ForkedPopen.__base__:
            module.Popen = ForkedPopen
    forkserver._forkserver.ensure_running = lambda: None  # forks of this process come from the same server
    option, value, *arguments = words
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(value, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(value, "<string>", "exec"), vars(main))


def stop() -> None:
    """Stop the fork server and wait for it, so that the CPU time of the forks counts as time of the tests."""
    server = forkserver._forkserver._forkserver_pid
    if server is not None:
        os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)
