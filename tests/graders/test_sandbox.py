"""Hostile programs, each in both confinements. In every one `f` is right only if the attack worked, so a pass would
be a hole; afterwards the same server must still run a normal program."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.hostile_programs import FAILED, TIMEOUT
from tests.helpers.hostile_system import SRC
from tests.helpers.program_pairs import read
from twotemp.errors import UserError
from twotemp.graders import sandbox as module
from twotemp.graders.sandbox import Program, Sandbox, describe, unavailable_reason, working_confinement
from twotemp.graders.sandboxed import server
from twotemp.graders.workers import ChildDied, Verdict

TESTS = "assert f(1) == 2\nassert f(21) == 42"
GOOD = "def f(x): return 2 * x"
CONFINEMENTS = ("bwrap", "landlock")

CASES = [(name, code, TESTS, "timeout", 0.25) for name, code in TIMEOUT.items()]
CASES += [(name, code, TESTS, "failed", 20.0) for name, code in FAILED.items()]
for pair in read("hostile_objects"):
    ends = ("timeout", 0.25) if pair.name.startswith("endless") else ("failed", 20.0)
    CASES.append((pair.name, pair.code, pair.tests, *ends))


@pytest.fixture(scope="module", params=CONFINEMENTS)
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    os.environ["SECRET_OF_THE_TEST"] = "1"
    if (reason := unavailable_reason(request.param)) is not None:
        pytest.skip(f"{request.param} does not work on this machine: {reason}")
    sandbox = Sandbox(request.param)
    yield sandbox
    sandbox.close()


def program(code: str, seconds: float = 10.0, tests: str = TESTS) -> Program:
    return Program(textwrap.dedent(code), tests, ("f",), seconds=seconds)


def test_there_are_enough_kinds() -> None:
    assert len(CASES) >= 110


@pytest.mark.parametrize(
    ("code", "tests", "outcome", "seconds"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_hostile_program(box: Sandbox, code: str, tests: str, outcome: str, seconds: float) -> None:
    box.start()
    child = box._child
    began = time.monotonic()
    verdict = box.ask(program(code, seconds, tests))
    assert verdict.outcome == outcome, verdict
    assert time.monotonic() - began < 60
    assert box.ask(program(GOOD)).outcome == "passed"
    assert box._child is child, "the server did not survive"


def test_nothing_is_left_behind() -> None:
    """Orphans of ours come back to us, a subreaper, and there are none."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    before = set(descendants())
    for confinement in CONFINEMENTS:
        if unavailable_reason(confinement) is not None:
            continue
        sandbox = Sandbox(confinement)
        for name in (
            "daemon",
            "fork bomb",
            "sleep",
            "thread bomb",
            "subprocess",
            "loop that ignores signals",
        ):
            sandbox.ask(program((TIMEOUT | FAILED)[name], 0.5))
        assert set(descendants()) - before
        sandbox.close()
        assert gone(before)
        # Nor when the server is killed in the middle of a program.
        sandbox = Sandbox(confinement)
        sandbox.start()
        assert sandbox._child is not None
        os.write(sandbox._child._in, program(TIMEOUT["sleep"], 300.0).to_bytes())
        time.sleep(0.3)
        sandbox._child.kill()
        assert gone(before)
        sandbox.close()


def gone(before: set[int]) -> bool:
    deadline = time.monotonic() + 10
    while left := set(descendants()) - before:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def descendants() -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, frontier = [], {os.getpid()}
    while frontier := {pid for pid, parent in parents.items() if parent in frontier}:
        found += frontier
    return found


def test_values_cross_and_stay_themselves(box: Sandbox) -> None:
    plain = [
        "0",
        "-1",
        "2**70",
        "-2**70",
        "10**5000",
        "True",
        "None",
        "0.1",
        "float('inf')",
        "'a\\ud800\\0b'",
    ]
    plain += [
        "b'\\xff'",
        "1 + 2j",
        "[1, [2]]",
        "(1, (2,))",
        "{1: 'a', (1, 2): [3]}",
        "{1, 2}",
        "[]",
        "()",
        "{}",
    ]
    for value in plain:
        tests = f"value = {value}\nassert f(value) == value and type(f(value)) is type(value), f(value)"
        verdict = box.ask(program("def f(x): return x", tests=tests))
        assert verdict.outcome == "passed", (value, verdict)


def test_python_semantics_that_tests_rely_on(box: Sandbox) -> None:
    code = """
        import collections, decimal, fractions
        Point = collections.namedtuple("Point", "x y")
        class Node:
            def __init__(self, value):
                self.value, self.next = value, None
        class Odd(Exception):
            pass
        def f(kind):
            if kind == "error":
                raise KeyError("missing")
            if kind == "own error":
                raise Odd("strange")
            return {
                "generator": (i for i in range(3)), "map": map(str, [1]), "counter": collections.Counter("aab"),
                "point": Point(1, 2), "node": Node(5), "keys": {"a": 1}.keys(), "half": fractions.Fraction(1, 2),
                "decimal": decimal.Decimal("0.5"), "length": lambda node: 1 + (node.next is not None),
            }[kind]
    """
    tests = """
assert list(f("generator")) == [0, 1, 2] and list(f("map")) == ["1"]
assert f("counter") == {"a": 2, "b": 1} and f("point") == (1, 2) and f("keys") == {"a"}
assert f("half") == 0.5 == f("decimal")
try:
    f("error")
    raise AssertionError
except KeyError:
    pass
try:
    f("own error")
    raise AssertionError
except Exception as error:
    assert "strange" in str(error)
node = f("node")
assert node.value == 5 and node != f("node")
node.next = f("node")
assert node.next.value == 5 and f("length")(node) == 2
"""
    verdict = box.ask(program(code, tests=tests))
    assert verdict.outcome == "passed", verdict


def test_reasons_are_for_people(box: Sandbox) -> None:
    assert "assert f(1) == 2" in box.ask(program("def f(x): return x")).detail
    assert "NameError" in box.ask(program("def g(x): return x")).detail
    assert "SyntaxError" in box.ask(program("def f(x) return x")).detail


SPIN = """
import time
def f(x):
    while time.process_time() < 0.6:
        pass
    return 2 * x
"""


def test_sleeping_takes_time(box: Sandbox) -> None:
    box.start()
    began = time.monotonic()
    assert box.ask(program(TIMEOUT["sleep"], 0.3)).outcome == "timeout"
    assert 0.3 <= time.monotonic() - began < 10


def test_a_busy_machine_makes_no_right_program_wrong(box: Sandbox) -> None:
    """Four processes on one core: 0.6 s of work take more than 2 s, within a limit of 1 s."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # inherited by what is started from here
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(3)]
    sandbox = Sandbox(box.confinement)
    try:
        sandbox.start()
        began = time.monotonic()
        assert sandbox.ask(program(SPIN, 1.0)).outcome == "passed"
        assert time.monotonic() - began > 1.0, "it was not busy enough to tell"
        assert sandbox.ask(program(TIMEOUT["loop"], 0.3)).outcome == "timeout"
    finally:
        sandbox.close()
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize(
    ("share", "late", "left"),
    [
        (1.0, 1.0, False),  # it computes
        (0.0, 1.0, False),  # it sleeps
        (0.01, 1.0, False),  # it sleeps, almost
        (0.2, 1.0, False),  # it computes on a busy machine
        (0.05, 1.0, True),  # it computes on a machine that is too busy
        (0.0, 1000.0, True),  # nothing gets anywhere, not even the clock
    ],
)
def test_clock(monkeypatch: pytest.MonkeyPatch, share: float, late: float, left: bool) -> None:
    """A process that gets a `share` of the processor, looked at by a clock that is woken up `late`."""
    now = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], clock_gettime=lambda process: share * now[0])
    monkeypatch.setattr(server, "time", clocks)
    monkeypatch.setattr(server, "slowdown", lambda: late / max(share, 0.01))
    clock = server.Clock((1,), 3.0)
    while (seconds := clock.next_look()) > 0:
        now[0] += late * seconds
    assert clock.starved is left
    assert now[0] == pytest.approx(3.0 / (share if share > 0.02 else 1), rel=0.05) or left


def test_work_and_sleep_by_turns_is_bounded_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that uses a twentieth of an idle machine's processor idles in no tick."""
    now = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], clock_gettime=lambda process: 0.05 * now[0])
    monkeypatch.setattr(server, "time", clocks)
    monkeypatch.setattr(server, "slowdown", lambda: 1.0)
    clock = server.Clock((1,), 3.0)
    while (seconds := clock.next_look()) > 0:
        now[0] += seconds
    assert not clock.starved
    assert 3.0 * server.IDLE_WALL_FACTOR < now[0] < 3.0 * server.IDLE_WALL_FACTOR + 1


def test_sleeping_on_a_busy_machine_is_not_being_kept_from_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work takes five times longer, and the program uses a fiftieth of the time: it timed out."""
    now = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], clock_gettime=lambda process: 0.03 * now[0])
    monkeypatch.setattr(server, "time", clocks)
    monkeypatch.setattr(server, "slowdown", lambda: 5.0)
    clock = server.Clock((1,), 3.0)
    while (seconds := clock.next_look()) > 0:
        now[0] += seconds
    assert not clock.starved
    assert 3.0 * server.BUSY_WALL_FACTOR < now[0] < 3.0 * server.BUSY_WALL_FACTOR + 1


SCAN = """
import ctypes, gc, re, sys
mark = 'assert f(1) == ' + str(43014060 * 2 + 1)
def f(x):
    items = [*gc.get_objects(), *(name for module in sys.modules.values() for name in vars(module))]
    spots = {id(item) >> 18 for item in items}
    pattern = re.compile(rb'assert f.1. == ([0-9]{8})')
    return sorted({int(n) for spot in spots for n in pattern.findall(ctypes.string_at(spot << 18, 1 << 18))})
"""


def test_earlier_tests_are_not_in_the_memory_of_a_program(box: Sandbox) -> None:
    """The reason for a failure quotes the test; the process that every program is forked from must not keep it."""
    for secret in range(11111111, 11111199, 4):
        verdict = box.ask(
            program("def f(x): return 0", tests=f"assert f(1) == {secret}  # {'x' * (secret % 150)}")
        )
        assert str(secret) in verdict.detail
    verdict = box.ask(program(SCAN, tests="found = f(1)\nassert found == [86028121], found"))
    assert verdict.outcome == "passed", verdict  # it finds its own mark and nothing else


def test_random_inputs_of_tests_are_the_same_each_time_and_unknown_to_the_program(box: Sandbox) -> None:
    tests = "import random\nx = random.random()\nassert f(1) == x, x"
    guess = "import random\nrandom.seed(0)\ndef f(x): return random.random()"
    verdict = box.ask(program(guess, tests=tests))
    assert verdict.outcome == "failed"
    assert box.ask(program(guess, tests=tests)) == verdict


@pytest.mark.parametrize(
    "tests",
    [
        "pass",
        "assert True",
        "import unittest\nclass Test(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 2)\n"
        "if __name__ == '__main__': unittest.main()",
    ],
)
def test_tests_that_do_not_use_the_program_do_not_pass(box: Sandbox, tests: str) -> None:
    verdict = box.ask(program(GOOD, tests=tests))
    assert (verdict.outcome, verdict.detail) == ("failed", "the tests ended without using the program")


def test_a_dead_server_is_replaced(box: Sandbox) -> None:
    box.start()
    assert box._child is not None
    box._child._process.kill()
    assert box.ask(program(GOOD)).outcome == "passed"


@pytest.mark.parametrize("deaths", [2, 3])
def test_a_program_that_ends_two_servers_has_failed(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """Unless the server dies without it, too."""
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
    *interpreter, start = module._landlock()
    readable = start[start.index("main(") + 5 : -1]
    start = OPEN_SERVER.format(folder=str(SRC / "twotemp" / "graders"), hole=hole, readable=readable)
    monkeypatch.setitem(module._CONFINEMENTS, "landlock", lambda: [*interpreter, start])
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
def test_as_another_user(confinement: str, tmp_path: Path) -> None:
    """The same as `nobody`, who owns nothing: with the system's interpreter, as ours may be in a private home."""
    python = shutil.which("python3", path="/usr/bin")
    if os.getuid() != 0 or shutil.which("setpriv") is None or python is None:
        pytest.skip("needs root, setpriv and a system python3 to become another user")
    if (reason := unavailable_reason(confinement)) is not None:
        pytest.skip(f"{confinement} does not work on this machine: {reason}")
    package = tmp_path / "twotemp"
    shutil.copytree(SRC / "twotemp" / "graders", package / "graders")
    for name in ("errors.py", "processes.py", "records.py", "serialization.py"):
        shutil.copy(SRC / "twotemp" / name, package)
    for path in (*tmp_path.rglob("*"), *tmp_path.parents, tmp_path):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o555)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
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
