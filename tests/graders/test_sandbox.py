"""Hostile programs, each in both confinements. In every one `f` is right only if the attack worked, so a pass would
be a hole; afterwards the same server must still run a normal program."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path

import pytest

from tests.helpers.hostile_programs import FAILED, GOOD, TESTS, TIMEOUT, program
from tests.helpers.hostile_system import SRC
from tests.helpers.program_pairs import read
from twotemp.graders.sandbox import Sandbox, unavailable_reason

CONFINEMENTS = ("bwrap", "landlock")

CASES = [(name, code, TESTS, "timeout", 0.25) for name, code in TIMEOUT.items()]
CASES += [(name, code, TESTS, "failed", 20.0) for name, code in FAILED.items()]
for pair in read("hostile_objects"):
    ends = ("timeout", 0.25) if pair.name.startswith("endless") else ("failed", 20.0)
    CASES.append((pair.name, pair.code, pair.tests, *ends))


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


LOOK = """
import os
def f(path):
    found = []
    for look in (os.stat, os.readlink, open):
        try:
            look(path)
            found.append(look.__name__)
        except OSError:
            pass
    return found
"""


def test_what_a_program_can_learn_of_other_paths_is_documented(box: Sandbox, tmp_path: Path) -> None:
    """Without bubblewrap it can ask for a file's size and for where a link leads, as SECURITY.md says."""
    (tmp_path / "file").write_text("secret")
    (tmp_path / "link").symlink_to("file")
    learned = [["stat"], ["stat", "readlink"]] if box.confinement == "landlock" else [[], []]
    paths = [str(tmp_path / name) for name in ("file", "link")]
    tests = f"found = [f(path) for path in {paths}]\nassert found == {learned}, found"
    verdict = box.ask(program(LOOK, tests=tests))
    assert verdict.outcome == "passed", verdict
    page = " ".join((SRC.parent / "SECURITY.md").read_text().split())
    assert "Where Landlock confines without bubblewrap, a program can still ask" in page
    assert "(`stat`, `readlink`); it cannot open it" in page


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
