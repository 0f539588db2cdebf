"""The only module that starts child processes.

A child must not run files that happen to lie in the current folder, which may be a run directory from elsewhere, and
must not inherit tokens or passwords. So `start` starts every child of this package, and every Python child has the
flags of `python_command`; `tests/test_processes.py` fails if another module starts one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

ChildStream = int | IO[bytes] | None

# What a child needs to find programs, libraries and checkpoints, and to compute.
NEEDED = set(
    "PATH HOME USER TMPDIR LANG LD_LIBRARY_PATH LD_PRELOAD XDG_CACHE_HOME HF_HOME HF_HUB_CACHE "
    "TOKENIZERS_PARALLELISM".split()
)
NEEDED_PREFIXES = tuple("LC_ CUDA_ NVIDIA_ HIP_ ROCR_ TORCH PYTORCH_ TRITON_ OMP_ GOMP_ KMP_ MKL_".split())


def minimal_environment() -> dict[str, str]:
    """Return the environment for a Python child: no secrets, no downloads, this process's import path.

    An empty entry of `sys.path` stands for the current folder and is left out.
    """
    kept = {k: v for k, v in os.environ.items() if k in NEEDED or k.startswith(NEEDED_PREFIXES)}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HUB_OFFLINE": "1"}


def python_command(*arguments: str) -> list[str]:
    """Return the command that runs this interpreter without the current folder on its import path."""
    return [sys.executable, "-P", *arguments]


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: str = "/",
    stdin: ChildStream = subprocess.DEVNULL,
    stdout: ChildStream = subprocess.DEVNULL,
    stderr: ChildStream = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    memory: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child process in its own session, so that Ctrl-C reaches this process alone.

    Args:
        command: The program and its arguments; for Python, made by `python_command`.
        environment: All of the child's environment variables.
        folder: The child's working directory. Other users cannot write to the default.
        stdin, stdout, stderr, pass_fds: As for `subprocess.Popen`.
        memory: Limit of the child's address space in bytes.

    Returns:
        The running process.
    """
    process = subprocess.Popen(
        list(command),
        env=dict(environment),
        cwd=folder,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        bufsize=0,
        start_new_session=True,
    )
    if memory is not None:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (memory, memory))
    return process
