"""Child processes: one function starts them all, without files of the current folder and without secrets."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from twotemp.processes import minimal_environment, python_command, start

SRC = Path(__file__).resolve().parents[1] / "src" / "twotemp"
STARTS_PROCESSES = {"subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call"}
STARTS_PROCESSES |= {"subprocess.check_output", "subprocess.getoutput", "subprocess.getstatusoutput"}
STARTS_PROCESSES |= {
    "os.fork",
    "os.forkpty",
    "os.system",
    "os.popen",
    "os.posix_spawn",
    "os.posix_spawnp",
    "pty.fork",
}
STARTS_PROCESSES |= {
    f"os.{kind}{how}" for kind in ("exec", "spawn") for how in "l le lp lpe v ve vp vpe".split()
}
STARTS_PROCESSES |= {"asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "pty.spawn"}
MODULES = (
    "multiprocessing",
    "torch.multiprocessing",
    "concurrent.futures.process",
    "concurrent.futures.ProcessPoolExecutor",
)
ALLOWED = {
    "processes.py": {"subprocess.Popen"},  # the function itself
    "graders/sandboxed/server.py": {"os.fork"},  # the confined fork server: a copy of itself, no new program
}
CONNECTIONS = ("multiprocessing.connection",)  # pipes, which start nothing


def starts(source: str) -> set[str]:
    """Return the names in a module that start a process, however they were imported."""
    names: dict[str, str] = {}
    found: set[str] = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        else:
            continue
        names |= imported
        found |= {n for n in imported.values() if n.startswith(MODULES) and not n.startswith(CONNECTIONS)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            head, dot, rest = ast.unparse(node).partition(".")
            found |= {names.get(head, head) + dot + rest} & STARTS_PROCESSES
    return found


def test_no_other_module_starts_a_process() -> None:
    others = {str(path.relative_to(SRC)): starts(path.read_text()) for path in SRC.rglob("*.py")}
    assert {name: found for name, found in others.items() if found} == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run([])",
        "from subprocess import Popen as P\nP([])",
        "def f():\n    from multiprocessing import Process",
        "import multiprocessing.pool",
        "import os as o\no.system('')",
        "from concurrent.futures import ProcessPoolExecutor",
    ],
)
def test_the_rule_sees_every_spelling(source: str) -> None:
    assert starts(source)


def test_pipes_are_allowed() -> None:
    assert not starts(
        "from multiprocessing import connection\nfrom multiprocessing.connection import Connection"
    )


def spoil(folder: Path) -> Path:
    """Write modules that a child may look for; whichever is imported leaves a mark."""
    for name in (
        "json sympy torch math_verify logging signal site sitecustomize usercustomize twotemp typing".split()
    ):
        (folder / f"{name}.py").write_text(
            f"open({str(folder / 'mark')!r}, 'w').write({name!r})\nraise SystemExit(7)\n"
        )
    return folder / "mark"


def test_a_child_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = spoil(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for folder in ("/", str(tmp_path)):
        command = python_command("-c", "import json, logging, sympy, typing")
        assert start(command, environment=minimal_environment(), folder=folder).wait() == 0
    assert not mark.exists()


SCRIPT = """
import sys
from twotemp.graders import get
from twotemp.records import Problem
grader = get("maths", workers=1)
problem = Problem("p", "maths", "", {"answer": "x^2 + 1", "kind": "latex"})
print([grade.outcome for grade in grader.grade([(problem, r"\\boxed{1 + x^2}")])])
grader.close()
"""


@pytest.mark.parametrize("what", ["maths", "doctor"])
def test_commands_run_nothing_from_a_foreign_folder(tmp_path: Path, what: str) -> None:
    """As the installed command does, which has no current folder on its own path (`-P`)."""
    pytest.importorskip("math_verify")
    mark = spoil(tmp_path)
    code = SCRIPT if what == "maths" else "from twotemp.cli import main; sys.argv[1:] = ['doctor']; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_TOKEN": "secret"}
    command = [sys.executable, "-P", "-c", f"import sys\n{code}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert not mark.exists()
    assert ("['passed']" if what == "maths" else "bfloat16") in done.stdout, done.stderr


def test_a_child_gets_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in minimal_environment().values()


def test_memory_is_limited() -> None:
    command = python_command("-c", "bytearray(1 << 30)")
    assert start(command, environment=minimal_environment(), memory=1 << 28).wait() == 1
    assert start(command, environment=minimal_environment()).wait() == 0
