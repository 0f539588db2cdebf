"""The fork server of the sandbox: its clock, its replacement, its self-test, and the choice of a confinement."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.hostile_programs import FAILED, GOOD, TESTS, TIMEOUT, program
from tests.helpers.hostile_system import SRC
from twotemp.errors import UserError
from twotemp.graders import sandbox as module
from twotemp.graders.sandbox import Program, Sandbox, describe, unavailable_reason, working_confinement
from twotemp.graders.sandboxed import server
from twotemp.graders.workers import ChildDied, Verdict

CONFINEMENTS = ("bwrap", "landlock")

SPIN = """
import time
def f(x):
    while time.process_time() < 0.3:
        pass
    return 2 * x
"""


def test_sleeping_takes_time(box: Sandbox) -> None:
    box.start()
    began = time.monotonic()
    assert box.ask(program(TIMEOUT["sleep"], 0.3)).outcome == "timeout"
    assert 0.3 <= time.monotonic() - began < 10


def test_a_busy_machine_makes_no_right_program_wrong(box: Sandbox) -> None:
    """Four processes on one core: 0.3 s of work take more than 1 s, within a limit of 0.5 s."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # inherited by what is started from here
    sandbox = Sandbox(box.confinement)
    sandbox.start()
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(3)]
    try:
        began = time.monotonic()
        assert sandbox.ask(program(SPIN, 0.5)).outcome == "passed"
        assert time.monotonic() - began > 0.5, "it was not busy enough to tell"
        assert sandbox.ask(program(TIMEOUT["loop"], 0.3)).outcome == "timeout"
    finally:
        sandbox.close()
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, cores)


def run_clock(
    monkeypatch: pytest.MonkeyPatch, share: float, slowdown: float, late: float = 1.0
) -> tuple[server.Clock, float]:
    """Return the clock of a process that gets a `share` of the processor, and the time at which it stopped.

    The clock is woken up `late` times as late as it asked for, on a machine with this `slowdown`.
    """
    now = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], clock_gettime=lambda process: share * now[0])
    monkeypatch.setattr(server, "time", clocks)
    monkeypatch.setattr(server, "slowdown", lambda: slowdown)
    clock = server.Clock((1,), 3.0)
    while (seconds := clock.tick()) > 0:
        now[0] += late * seconds
    return clock, now[0]


@pytest.mark.parametrize(
    ("share", "late", "busy"),
    [
        (1.0, 1.0, False),  # it computes
        (0.0, 1.0, False),  # it sleeps
        (0.01, 1.0, False),  # it sleeps, almost
        (0.2, 1.0, False),  # it computes on a busy machine
        (0.05, 1.0, True),  # it computes on a machine that is too busy
        (0.0, 1000.0, True),  # nothing gets anywhere, not even the clock
    ],
)
def test_clock(monkeypatch: pytest.MonkeyPatch, share: float, late: float, busy: bool) -> None:
    clock, stopped = run_clock(monkeypatch, share, late / max(share, 0.01), late)
    assert clock.busy is busy
    assert stopped == pytest.approx(3.0 / (share if share > 0.02 else 1), rel=0.05) or busy


@pytest.mark.parametrize(
    ("slowdown", "factor"), [(1.0, server.IDLE_WALL_FACTOR), (5.0, server.BUSY_WALL_FACTOR)]
)
def test_the_wall_clock_bounds_work_and_sleep_by_turns(
    monkeypatch: pytest.MonkeyPatch, slowdown: float, factor: float
) -> None:
    """A process that works in every tick, and sleeps for most of it."""
    clock, stopped = run_clock(monkeypatch, 0.05, slowdown)
    assert clock.busy is (factor == server.BUSY_WALL_FACTOR)
    assert 3.0 * factor < stopped < 3.0 * factor + 1


BUSY_SERVER = """
import sys
sys.path.insert(0, {folder!r})
from sandboxed import server
server.slowdown = lambda: 100.0
server._IDLE = 0.0  # as on a machine where a core comes too late in every tick
server.IDLE_WALL_FACTOR, server.BUSY_WALL_FACTOR = 0.0, {factor}
server.main({readable})
"""

SHORT_SLEEPS = """
import time
def f(x):
    while True:
        time.sleep(0.002)
"""


@pytest.mark.parametrize(
    ("factor", "code", "outcome"),
    [
        (5.0, SHORT_SLEEPS, "timeout"),
        (5.0, SHORT_SLEEPS.replace("0.002", "0.05"), "timeout"),
        (0.01, TIMEOUT["loop"], "starved"),  # the wall clock ends it before it has had its time
        (0.01, "import os\ndef f(x):\n    while True: os.sched_yield()", "failed"),
    ],
)
def test_a_busy_machine_starves_programs_that_compute_and_no_others(
    monkeypatch: pytest.MonkeyPatch, factor: float, code: str, outcome: str
) -> None:
    if (reason := unavailable_reason("landlock")) is not None:
        pytest.skip(f"landlock does not work on this machine: {reason}")
    sandbox = modified(monkeypatch, BUSY_SERVER, factor=factor)
    monkeypatch.setattr(sandbox, "control", program(GOOD, 1000.0))
    try:
        question = program(code, 0.3 if factor > 1 else 5.0)
        if outcome == "starved":
            with pytest.raises(module.Starved, match="too busy"):
                sandbox._ask(question)
        else:
            assert sandbox._ask(question).outcome == outcome
    finally:
        sandbox.close()


@pytest.mark.parametrize(("starved", "outcome"), [(1, "passed"), (2, "timeout"), (3, "ungraded")])
def test_a_starved_program_runs_again_and_a_control_decides(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, starved: int, outcome: str
) -> None:
    asked = []
    genuine = Sandbox._ask

    def ask(self: Sandbox, program: Program) -> Verdict:
        asked.append(program)
        if len(asked) <= starved:
            raise module.Starved("the machine was too busy")
        return genuine(self, program)

    box.start()
    monkeypatch.setattr(Sandbox, "_ask", ask)
    question = program(GOOD, 0.2)
    assert box.ask(question).outcome == outcome
    assert [each == question for each in asked] == [True, True, False][: min(starved + 1, 3)]
    assert asked[-1].seconds == 0.2


def test_a_dead_server_is_replaced(box: Sandbox) -> None:
    box.start()
    assert box._child is not None
    box._child._process.kill()
    assert box.ask(program(GOOD)).outcome == "passed"


@pytest.mark.parametrize("deaths", [2, 3])
def test_a_program_that_ends_two_servers_has_failed(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """If the server dies without the program as well, that is our fault."""
    asked = []
    genuine = Sandbox._ask

    def ask(self: Sandbox, program: Program) -> Verdict:
        asked.append(program)
        if len(asked) <= deaths:
            raise ChildDied("killed by a test")
        return genuine(self, program)

    monkeypatch.setattr(Sandbox, "_ask", ask)
    verdict = Sandbox(box.confinement).ask(program(GOOD))
    assert verdict.outcome == ("failed" if deaths == 2 else "ungraded")
    assert asked[2].tests != TESTS


def test_a_server_that_keeps_dying_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._CONFINEMENTS, "landlock", lambda: ["false"])
    verdict = Sandbox("landlock").ask(program(GOOD))
    assert verdict.outcome == "ungraded"
    assert "twice" in verdict.detail


def modified(monkeypatch: pytest.MonkeyPatch, script: str, **parts: object) -> Sandbox:
    """Return a sandbox confined by Landlock whose server starts with a script of the test's."""
    *interpreter, start = module._landlock()
    readable = start[start.index("main(") + 5 : -1]
    start = script.format(folder=str(SRC / "twotemp" / "graders"), readable=readable, **parts)
    monkeypatch.setitem(module._CONFINEMENTS, "landlock", lambda: [*interpreter, start])
    return Sandbox("landlock")


OPEN_SERVER = """
import sys
sys.path.insert(0, {folder!r})
from sandboxed import confine, server
{hole}
server.main({readable})
"""


@pytest.mark.parametrize(
    ("hole", "found"),
    [
        ("confine.enter = lambda *_: None", "socket"),
        ("confine._ALLOWED['socket'] = (41, 198)", "open a socket"),
        ("confine._ALLOWED['clone'] = (56, 220)", "self-test failed"),  # glibc aborts in the new thread
        ("confine._landlock = lambda _: None", "/proc"),
        ("confine._ALLOWED['kill'] = (62, 129)", "signal its parent"),
    ],
)
def test_the_self_test_finds_holes_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hole: str, found: str
) -> None:
    if (reason := unavailable_reason("landlock")) is not None:
        pytest.skip(f"landlock does not work on this machine: {reason}")
    modified(monkeypatch, OPEN_SERVER, hole=hole)
    monkeypatch.chdir(tmp_path)
    assert found in (unavailable_reason("landlock") or "")
    assert not list(tmp_path.iterdir())
    assert not Path("/tmp/twotemp-self-test").exists()


def test_describe() -> None:
    if all(unavailable_reason(confinement) is not None for confinement in CONFINEMENTS):
        pytest.skip("no confinement works on this machine")
    assert "seccomp" in describe()


def test_refusal_where_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    working_confinement.cache_clear()
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    monkeypatch.setattr(module.platform, "system", lambda: "Darwin")
    try:
        with pytest.raises(UserError, match="apt-get install bubblewrap"):
            working_confinement()
    finally:
        working_confinement.cache_clear()


def test_unknown_confinement() -> None:
    with pytest.raises(UserError, match="did you mean 'bwrap'"):
        unavailable_reason("bwarp")


@pytest.mark.parametrize("confinement", CONFINEMENTS)
def test_the_sandbox_works_for_a_user_without_rights(confinement: str) -> None:
    """Runs as the user `nobody` with the system's interpreter, because ours may lie in a private home."""
    python = shutil.which("python3", path="/usr/bin")
    if os.getuid() != 0 or shutil.which("setpriv") is None or python is None:
        pytest.skip("needs root, setpriv and a system python3 to become another user")
    if (reason := unavailable_reason(confinement)) is not None:
        pytest.skip(f"{confinement} does not work on this machine: {reason}")
    # Not in `tmp_path`: every pytest that starts on this machine makes its parent private again.
    with tempfile.TemporaryDirectory() as folder:
        run_as_nobody(python, confinement, Path(folder))


def run_as_nobody(python: str, confinement: str, folder: Path) -> None:
    package = folder / "twotemp"
    shutil.copytree(SRC / "twotemp" / "graders", package / "graders")
    for name in ("errors.py", "processes.py", "records.py", "serialization.py"):
        shutil.copy(SRC / "twotemp" / name, package)
    for path in (*folder.rglob("*"), folder):
        path.chmod(path.stat().st_mode | 0o555)
    script = f"""
import sys
sys.path.insert(0, {str(folder)!r})
from twotemp.graders.sandbox import Program, Sandbox
box = Sandbox({confinement!r})
box.start()
for code in ({GOOD!r}, {textwrap.dedent(FAILED["read /etc"])!r}, {textwrap.dedent(FAILED["kill everything"])!r}):
    print(box.ask(Program(code, {TESTS!r}, ("f",))).outcome)
"""
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")
    if "requires a different Python" in done.stderr or sys.version_info[:2] < (3, 11):
        pytest.skip("the system's python3 is too old")
    assert done.stdout.split() == ["passed", "failed", "failed"], done.stderr
