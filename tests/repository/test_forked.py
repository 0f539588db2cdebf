"""Forked processes behave like new interpreters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("forked_processes")


def run(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its output."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, **options)


def test_output_arguments_environment_folder_and_status(tmp_path):
    code = "import os, sys; print(*sys.argv[1:], dict(os.environ), os.getcwd()); sys.exit(input())"
    done = run(code, "a", "b", env={"A": "1"}, cwd=tmp_path, input="seven")
    assert (done.stdout, done.stderr, done.returncode) == (f"a b {{'A': '1'}} {tmp_path}\n", "seven\n", 1)


def test_a_fork_contains_nothing_that_a_test_patched(monkeypatch):
    monkeypatch.setattr("twotemp.tasks.get", None)
    assert run("from twotemp import tasks; print(tasks.get is None)").stdout == "False\n"


def test_a_fork_has_torch_imported():
    """This is what saves time."""
    assert run("import sys; print('torch' in sys.modules)").stdout == "True\n"


def test_a_fork_can_be_killed_and_start_processes():
    code = "import os, signal, subprocess, sys; "
    inner = code + "os.kill(os.getpid(), signal.SIGKILL)"
    assert run(inner).returncode == -signal.SIGKILL
    outer = (
        code + f"print(subprocess.run([sys.executable, '-c', {inner!r}]).returncode, 'torch' in sys.modules)"
    )
    assert run(outer).stdout == f"{-signal.SIGKILL} True\n"


def test_passed_descriptors_keep_their_numbers_and_the_session_is_new():
    reader, writer = os.pipe()
    code = f"import os; os.write({writer}, str(os.getsid(0) == os.getpid()).encode())"
    process = subprocess.Popen([sys.executable, "-P", "-c", code], pass_fds=[writer], start_new_session=True)
    os.close(writer)
    assert process.wait(60) == 0
    assert os.read(reader, 9) == b"True"
    assert os.read(reader, 9) == b"", "no other process has the other end open"
    os.close(reader)


def test_a_wait_can_time_out():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    assert process.poll() is None
    process.kill()
    assert process.wait() == -signal.SIGKILL
