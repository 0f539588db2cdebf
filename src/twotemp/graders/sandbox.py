"""Run programs that a model wrote: the parent's side of `sandboxed`.

The fork server is confined in one of two ways, tried in this order, with the same limits and system calls in both:

    bwrap      bubblewrap: own namespaces, a read-only root with the interpreter and nothing else, no /proc
    landlock   where namespaces are not allowed (most containers): Landlock on the same paths instead

A confinement works if its self-test finds no hole. If neither works, programs are not run at all.

Programs have no threads, no processes, no files except the standard library, and no installed packages.

Tests differ from tests under plain `exec` as follows (tests/helpers/program_differences.txt has an example of each):

    an argument that the program changes in place stays unchanged for the tests: the program has a copy
    an operator between an object of the program and a value of the tests is not the program's (see `mirrors`)
    a `with` block of the program's class drops no exception if it contains an assertion
    the message of a failed assertion is not shown to the program
    functions and objects of the tests can be called or iterated by the program, and nothing else
    Python's built-ins and library stay as they are, whatever the program assigns to their names
    Exception, BaseException and AssertionError are refused as values of the program: they catch failed assertions
    only `__next__` and `__anext__` can end an iteration: StopIteration out of a call is a RuntimeError
    an object that converts to a number converts to the same number every time
    what the program prints is not seen
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from twotemp.errors import UserError, unknown
from twotemp.graders.sandboxed import BUSY_WALL_FACTOR, HEADER
from twotemp.graders.workers import Child, ChildDied, GraderWorker, Verdict

START_SECONDS = 120.0
GRACE_SECONDS = 90.0  # beyond the server's own time limit, which is the one that counts
ATTEMPTS = 2  # at running a program that a busy machine keeps from computing

_SERVER_FOLDER = Path(__file__).parent / "sandboxed"
_ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}  # the order of a set is the same in every worker


@dataclass(frozen=True)
class Program:
    """A program and its tests, which a separate process runs: it calls the program by `names`."""

    code: str
    tests: str
    names: tuple[str, ...]  # the program's, even where Python or the prelude has such a name
    prelude: str = ""  # run before the tests, without the program
    seconds: float = 3.0

    def to_bytes(self) -> bytes:
        """Return the request to the fork server."""
        code = self.code.encode(errors="surrogatepass")
        tests = json.dumps({"prelude": self.prelude, "names": self.names, "tests": self.tests}).encode()
        return HEADER.pack(self.seconds, len(code), len(tests)) + code + tests


class Starved(Exception):
    """A busy machine kept a program from computing: it has neither used its time nor slept."""


class Sandbox(GraderWorker[Program]):
    """One fork server. It is restarted when it dies, and tested for holes each time it starts."""

    child_name = "the sandbox"

    def __init__(self, confinement: str) -> None:
        super().__init__()
        self.confinement = confinement
        self.control = _SELF_TEST

    def ask(self, program: Program) -> Verdict:
        """Return the verdict; `ungraded` only if the sandbox or the machine fails for a control as well.

        A program could make itself wait, say by very many short questions to the tests. So where it was starved
        `ATTEMPTS` times, a control that does nothing but compute shows whether the machine was too busy.
        """
        for _ in range(ATTEMPTS):
            with suppress(Starved):
                return super().ask(program)
        try:
            super().ask(replace(_COMPUTING, seconds=program.seconds))
        except Starved as error:
            return Verdict("ungraded", str(error))
        return Verdict("timeout", f"did not end in {BUSY_WALL_FACTOR:g} times {program.seconds:g} s")

    def _ask(self, program: Program) -> Verdict:
        if self._child is None:
            self._child = Child(_CONFINEMENTS[self.confinement](), environment=_ENVIRONMENT)
            self._child.ready(START_SECONDS)
            try:
                self.start()
            except ChildDied:
                for folder in (Path("/tmp"), Path("/")):  # written through a hole
                    with suppress(OSError):
                        (folder / "twotemp-self-test").unlink()
                raise
        reply = self._child.ask(program.to_bytes(), BUSY_WALL_FACTOR * program.seconds + GRACE_SECONDS)
        if reply["outcome"] == "starved":
            raise Starved(reply["detail"])
        return Verdict(reply["outcome"], reply["detail"])


@cache
def working_confinement(wanted: str | None = None) -> str:
    """Return the first confinement that works on this machine.

    Args:
        wanted: The only one to try; None tries all.

    Raises:
        UserError: If none works.
    """
    reasons = []
    for confinement in (wanted,) if wanted else _CONFINEMENTS:
        if (reason := unavailable_reason(confinement)) is None:
            return confinement
        reasons.append(f"{confinement}: {reason}")
    raise UserError(
        "programs cannot be run safely on this machine, so they are not run at all ("
        + "; ".join(reasons)
        + "). Install bubblewrap (Debian: apt-get install bubblewrap) where user namespaces are allowed, or use "
        "a Linux kernel of 5.13 or newer with seccomp and Landlock (x86_64 or aarch64)."
    )


def describe() -> str:
    """Return a sentence about how programs are confined on this machine; raise UserError if they cannot be."""
    descriptions = {
        "bwrap": "bubblewrap, seccomp and resource limits",
        "landlock": "Landlock, seccomp and resource limits (bubblewrap is not installed or not allowed here)",
    }
    return descriptions[working_confinement()]


def unavailable_reason(confinement: str) -> str | None:
    """Return why a confinement does not work on this machine; None if it does."""
    if confinement not in _CONFINEMENTS:
        raise unknown("sandbox", confinement, _CONFINEMENTS)
    try:
        with closing(Sandbox(confinement)) as sandbox:
            sandbox.start()  # which runs the self-test
    except (ChildDied, Starved, TimeoutError, OSError) as error:
        return str(error)
    return None


def _interpreter() -> Path:
    # Not that of the virtual environment: programs get the standard library and no installed package.
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _python(executable: str, folder: str, readable: list[str] | None) -> list[str]:
    start = (
        f"import sys; sys.path.insert(0, {folder!r}); from sandboxed.server import main; main({readable!r})"
    )
    return [executable, "-s", "-S", "-P", "-B", "-c", start]


def _bwrap() -> list[str]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise OSError("bwrap is not installed")
    command = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--ro-bind", "/usr", "/usr"]
    for folder in ("/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    interpreter = _interpreter()
    inside = str(interpreter)
    if not interpreter.is_relative_to("/usr"):
        # It may lie in a private home folder: show only the interpreter and its library, elsewhere.
        inside = f"/python/bin/{interpreter.name}"
        command += ["--ro-bind", str(interpreter), inside, "--setenv", "LD_LIBRARY_PATH", "/python/lib"]
        command += ["--ro-bind", str(Path(sys.base_prefix, "lib")), "/python/lib"]
    for device in ("/dev/null", "/dev/random", "/dev/urandom"):
        command += ["--dev-bind", device, device]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    command += ["--ro-bind", str(_SERVER_FOLDER), "/twotemp/sandboxed"]
    command += ["--chdir", "/", "--remount-ro", "/", "--"]
    return command + _python(inside, "/twotemp", None)


def _landlock() -> list[str]:
    if platform.system() != "Linux":
        raise OSError("needs Linux")
    readable = "/usr/lib /usr/lib64 /lib /lib64 /etc/ld.so.cache /usr/share/zoneinfo".split()
    readable += [str(Path(sys.base_prefix, "lib")), str(_SERVER_FOLDER)]
    return _python(str(_interpreter()), str(_SERVER_FOLDER.parent), readable)


_CONFINEMENTS: dict[str, Callable[[], list[str]]] = {"bwrap": _bwrap, "landlock": _landlock}

_COMPUTING = Program(code="def f():\n    while True: pass", tests="f()", names=("f",))

_SELF_TEST = Program(
    seconds=20.0,
    names=("holes",),
    tests="open_holes = holes()\nassert not open_holes, f'a program can {open_holes}'",
    code="""
import os, socket, threading

def holes():
    def fork():
        if os.fork() == 0:
            os._exit(0)
    attempts = {
        "open a socket": lambda: socket.socket(),
        "fork": fork,
        "start a thread": lambda: threading.Thread(target=int).start(),
        "write to /tmp": lambda: open("/tmp/twotemp-self-test", "w"),
        "write beside itself": lambda: open("twotemp-self-test", "w"),
        "list /proc": lambda: os.listdir("/proc"),
        "read /proc": lambda: open("/proc/self/status"),
        "read /etc": lambda: open("/etc/passwd"),
        "list the root": lambda: os.listdir("/home"),
        "signal its parent": lambda: os.kill(os.getppid(), 0),
        "run a file": lambda: os.execv("/usr/bin/env", ["env"]),
    }
    succeeded = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (OSError, RuntimeError):
            continue
        succeeded.append(name)
    return ", ".join(succeeded)
""",
)
