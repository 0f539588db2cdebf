"""Running programs that a model wrote: the parent's side of `sandboxed`.

Two ways to confine the fork server, tried in this order, with the same limits and system calls in both:

    bwrap      bubblewrap: own namespaces, a read-only root with the interpreter and nothing else, no /proc
    landlock   where namespaces are not allowed (most containers): Landlock on the same paths instead

A way counts as working when its self-test finds no hole. If neither works, programs are not run at all.

What a program does without: threads, processes, files other than the standard library's, installed packages.

What the tests do without, beside plain `exec` (tests/program_differences.txt has an example of each):

    an argument changed in place stays as it was for them: the program has a copy
    an operator between an object of the program's and a value of theirs is not the program's (see `mirrors`)
    a failed assertion ends a `with` block of the program's class, and its message is not shown to the program
    the program sees of their functions and objects that they can be called or iterated, and no more
    Python's built-ins and library stay as they are, whatever the program makes of the names
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
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from twotemp.errors import UserError, unknown
from twotemp.graders.sandboxed import FAR, HEADER
from twotemp.graders.workers import Child, ChildDied, Verdict

START_SECONDS = 120.0
GRACE_SECONDS = 90.0  # beyond what the server allows; its clock is the one that counts

_HERE = Path(__file__).parent / "sandboxed"
_ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}  # the order of a set is the same in every worker


@dataclass(frozen=True)
class Program:
    """A program and its tests. The tests are run by a process of their own, which calls `names` in the other."""

    code: str
    tests: str
    names: tuple[str, ...]  # the program's for the tests even where Python or the prelude has such a name
    prelude: str = ""  # run before the tests, without the program
    seconds: float = 3.0

    def to_bytes(self) -> bytes:
        code = self.code.encode(errors="surrogatepass")
        tests = json.dumps({"prelude": self.prelude, "names": self.names, "tests": self.tests}).encode()
        return HEADER.pack(self.seconds, len(code), len(tests)) + code + tests


class Sandbox:
    """One fork server. It is restarted when it dies, and tested for holes each time it starts."""

    def __init__(self, way: str) -> None:
        self.way = way
        self._child: Child | None = None

    def ask(self, program: Program) -> Verdict:
        """Return the verdict on a program; `ungraded` only if a server fails for our own program as well."""
        why = ""
        for _ in range(2):
            try:
                return self._ask(program)
            except (ChildDied, TimeoutError) as error:
                self.close()
                why = str(error)
        # Either the program kills servers, or servers die anyway. A fresh one that passes its self-test tells.
        try:
            self.start()
        except (ChildDied, TimeoutError, OSError):
            self.close()
            return Verdict("ungraded", f"the sandbox died twice: {why}")
        return Verdict("failed", f"the program ended the sandbox twice: {why}")

    def _ask(self, program: Program) -> Verdict:
        if self._child is None:
            self._child = Child(_WAYS[self.way](), environment=_ENVIRONMENT)
            self._child.ready(START_SECONDS)
            if (verdict := self._ask(_SELF_TEST)).outcome != "passed":
                for folder in (Path("/tmp"), Path("/")):  # what it wrote through a hole
                    with suppress(OSError):
                        (folder / "twotemp-self-test").unlink()
                raise ChildDied(f"its self-test failed: {verdict.detail}")
        reply = self._child.ask(program.to_bytes(), FAR * program.seconds + GRACE_SECONDS)
        return Verdict(reply["outcome"], reply["detail"])

    def start(self) -> None:
        """Start now rather than at the first program; raises ChildDied or TimeoutError if it cannot."""
        self._ask(_SELF_TEST)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


@cache
def working_way(wanted: str | None = None) -> str:
    """The first way to confine programs that works on this machine, or the one wanted; UserError if none does."""
    reasons = []
    for way in (wanted,) if wanted else _WAYS:
        if (reason := why_not(way)) is None:
            return way
        reasons.append(f"{way}: {reason}")
    raise UserError(
        "programs cannot be run safely on this machine, so they are not run at all ("
        + "; ".join(reasons)
        + "). Install bubblewrap (Debian: apt-get install bubblewrap) where user namespaces are allowed, or use "
        "a Linux kernel of 5.13 or newer with seccomp and Landlock (x86_64 or aarch64)."
    )


def describe() -> str:
    """How programs would be confined on this machine, for people; UserError if they cannot be."""
    found = {
        "bwrap": "bubblewrap, seccomp and resource limits",
        "landlock": "Landlock, seccomp and resource limits (bubblewrap is not installed or not allowed here)",
    }
    return found[working_way()]


def why_not(way: str) -> str | None:
    """Why a way to confine programs does not work here; None if it does."""
    if way not in _WAYS:
        raise unknown("sandbox", way, _WAYS)
    try:
        with closing(Sandbox(way)) as sandbox:
            sandbox.start()  # which tests it
    except (ChildDied, TimeoutError, OSError) as error:
        return str(error)
    return None


def _interpreter() -> Path:
    # Not the virtual environment's: programs get the standard library and no installed package.
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
        # It may lie in a private home: show its library and itself, at a path of their own.
        inside = f"/python/bin/{interpreter.name}"
        command += ["--ro-bind", str(interpreter), inside, "--setenv", "LD_LIBRARY_PATH", "/python/lib"]
        command += ["--ro-bind", str(Path(sys.base_prefix, "lib")), "/python/lib"]
    for device in ("/dev/null", "/dev/random", "/dev/urandom"):
        command += ["--dev-bind", device, device]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    command += ["--ro-bind", str(_HERE), "/twotemp/sandboxed", "--chdir", "/", "--remount-ro", "/", "--"]
    return command + _python(inside, "/twotemp", None)


def _landlock() -> list[str]:
    if platform.system() != "Linux":
        raise OSError("needs Linux")
    readable = [
        str(Path(sys.base_prefix, "lib")),
        "/usr/lib",
        "/usr/lib64",
        "/lib",
        "/lib64",
        "/etc/ld.so.cache",
    ]
    readable += ["/usr/share/zoneinfo", str(_HERE)]
    return _python(str(_interpreter()), str(_HERE.parent), readable)


_WAYS: dict[str, Callable[[], list[str]]] = {"bwrap": _bwrap, "landlock": _landlock}

_SELF_TEST = Program(
    seconds=20.0,
    names=("holes",),
    tests="found = holes()\nassert not found, f'a program can {found}'",
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
    found = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (OSError, RuntimeError):
            continue
        found.append(name)
    return ", ".join(found)
""",
)
