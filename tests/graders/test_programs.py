"""Finding code in text, putting programs together, one run for identical ones, and all reference solutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import DataFile
from tests.helpers.benchmark_rows import MADE_UP, Row, read
from twotemp.errors import UserError
from twotemp.graders import programs as module
from twotemp.graders import sandbox
from twotemp.graders.programs import ProgramGrader, assemble, entry_points
from twotemp.graders.sandbox import Program, Sandbox, unavailable_reason, working_confinement
from twotemp.graders.workers import Verdict
from twotemp.records import Problem

DOUBLE = Problem("p", "t", "", {"entry_point": "f", "tests": ["assert f(1) == 2", "assert f(4) == 8"]})
RIGHT = "def f(x): return 2 * x"
WRONG = "def f(x): return x"


def working(confinement: str) -> str:
    if (reason := unavailable_reason(confinement)) is not None:
        pytest.skip(f"{confinement} does not work on this machine: {reason}")
    return confinement


@pytest.fixture
def any_confinement() -> str:
    try:
        return working_confinement()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=("bwrap", "landlock"))
def grader(request: pytest.FixtureRequest) -> Iterator[ProgramGrader]:
    grader = ProgramGrader(workers=2, sandbox=working(request.param))
    yield grader
    grader.close()


def test_entry_points_of_mbpp() -> None:
    def names(*tests: str, setup: str = "") -> tuple[str, ...]:
        return entry_points(Problem("p", "mbpp", "", {"kind": "mbpp", "tests": tests, "setup": setup}))

    assert names("assert set(g(1)) == set([2])") == ("g",)
    assert names("assert sum(10, 15) == 6") == ("sum",)
    assert names("assert ok(root) == True", setup="root = Node(1)\nroot.left = Node(2)") == ("Node", "ok")


def test_outcomes(grader: ProgramGrader) -> None:
    slow = Problem("s", "t", "", {**DOUBLE.reference, "timeout": 0.3})
    texts = [(DOUBLE, RIGHT), (DOUBLE, WRONG), (slow, "def f(x):\n    while True: pass"), (DOUBLE, "")]
    grades = list(grader.grade(texts))
    assert [grade.outcome for grade in grades] == ["passed", "failed", "timeout", "failed"]
    assert grades[0].answer == RIGHT
    assert grades[1].rule == "raw"
    assert "assert f(1) == 2" in grades[1].detail


def test_order_of_many(grader: ProgramGrader) -> None:
    texts = [f"# {i}\n{RIGHT if i % 3 else WRONG}" for i in range(30)]
    grades = grader.grade((DOUBLE, text) for text in texts)
    assert [grade.passed for grade in grades] == [bool(i % 3) for i in range(30)]


def test_humaneval_and_mbpp_orders(grader: ProgramGrader) -> None:
    prompt = (
        'import math\n\ndef helper(x):\n    return x + 1\n\ndef f(x):\n    """ Twice the next number. """\n'
    )
    test = "def check(candidate):\n    assert candidate(1) == 4 == f(1)\n    assert helper(1) == 2\n"
    human = Problem("h", "t", "", {"kind": "humaneval", "prompt": prompt, "test": test, "entry_point": "f"})
    tree = {
        "kind": "mbpp",
        "tests": ["assert depth(root) == 2"],
        "setup": "root = Node(1)\nroot.left = Node(2)",
    }
    node = "class Node:\n    def __init__(self, value):\n        self.value, self.left = value, None\n"
    depth = "def depth(node):\n    return 1 + depth(node.left) if node else 0\n"
    items = [
        (human, "    return 2 * helper(x)"),  # the body alone
        (human, f"```python\n{prompt}    return 2 * math.ceil(helper(x))\n```"),  # all of it again
        (human, "def f(x):\n    return 2 * helper(x)"),  # the function alone
        (human, "def f(x):\n    return x"),
        # A helper that the tests use is the prompt's, whatever the program makes of it.
        (human, "def helper(x): return 2\ndef f(x): return 4"),
        (Problem("m", "t", "", tree), f"```python\n{node}{depth}```"),
        (Problem("m", "t", "", tree), f"```python\n{depth}```"),
    ]
    assert [g.passed for g in grader.grade(items)] == [True, True, True, False, True, True, False]


def test_prefix_and_setup(grader: ProgramGrader) -> None:
    reference = {"entry_point": "f", "prefix": "def f(x):", "setup": "n = 3", "tests": ["assert f(n) == 6"]}
    (grade,) = grader.grade([(Problem("p", "t", "", reference), " return 2 * x")])
    assert grade.passed


def test_identical_programs_run_once(any_confinement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Program] = []

    class Counting(Sandbox):
        def ask(self, program: Program) -> Verdict:
            asked.append(program)
            broken = "broken" in program.code
            return Verdict("ungraded" if broken else "passed", "")

    monkeypatch.setattr(module, "Sandbox", Counting)
    grader = ProgramGrader(workers=2)
    grades = list(grader.grade([(DOUBLE, RIGHT)] * 50 + [(DOUBLE, WRONG)] * 50))
    assert all(grade.passed for grade in grades)
    assert len(asked) == 2
    # Our own failures are not remembered: the next run may do better.
    for _ in range(2):
        assert next(grader.grade([(DOUBLE, "broken")])).outcome == "ungraded"
    assert len(asked) == 4
    grader.close()


@pytest.mark.parametrize(
    "text",
    ["x" * 200_000, "```" * 100_000, "```\n" * 100_000, "\0", "\ud800", "(" * 50_000, "def f(x):" * 9_000],
)
def test_hostile_text(grader: ProgramGrader, text: str) -> None:
    assert next(grader.grade([(DOUBLE, text)])).outcome == "failed"


def test_same(any_confinement: str) -> None:
    grader = ProgramGrader(workers=1)
    assert grader.same(DOUBLE, RIGHT, f"# doubles\n\n{RIGHT}   \n")
    assert not grader.same(DOUBLE, RIGHT, WRONG)
    grader.close()


def test_bad_references() -> None:
    with pytest.raises(UserError, match="did you mean 'mbpp'"):
        assemble(Problem("p", "t", "", {"kind": "mbp", "entry_point": "f", "tests": []}), "", ("f",))
    with pytest.raises(UserError, match="no 'entry_point'"):
        entry_points(Problem("p", "t", "", {"tests": []}))


@pytest.mark.parametrize(
    "call", ["eval(f(1))", "exec(f(1))", "pickle.loads(f(1))", "eval(compile(f(1), '', 'eval'))"]
)
@pytest.mark.parametrize("kind", ["asserts", "humaneval", "mbpp"])
def test_tests_that_evaluate_what_a_program_returned_are_refused(call: str, kind: str) -> None:
    """Its text would run beside them."""
    reference = {"kind": kind, "entry_point": "f", "prompt": "", "test": f"def check(f): assert {call} == 2"}
    reference |= {"tests": ["import pickle", f"assert {call} == 2"]}
    with pytest.raises(UserError, match=r"'p' call.*compare values"):
        assemble(Problem("p", "t", "", reference), RIGHT, ("f",))


def test_tests_may_evaluate_their_own_text(grader: ProgramGrader) -> None:
    reference = {
        "entry_point": "f",
        "tests": ["import ast", "assert f(1) == eval('1 + 1') == ast.literal_eval('2')"],
    }
    (grade,) = grader.grade([(Problem("p", "t", "", reference), RIGHT)])
    assert grade.passed


def test_a_sandbox_that_does_not_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    working_confinement.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    with pytest.raises(UserError, match="bwrap: bwrap is not installed"):
        ProgramGrader(sandbox="bwrap")
    with pytest.raises(UserError, match="did you mean 'landlock'"):
        ProgramGrader(sandbox="landlok")
    working_confinement.cache_clear()


def check_references(grader: ProgramGrader, name: str, rows: list[Row]) -> None:
    items = []
    for row in rows:
        reference: dict[str, Any] = {"kind": name, "timeout": 120 if row["task_id"] == 123 else 20}
        if name == "humaneval":
            reference |= {key: row[key] for key in ("prompt", "test", "entry_point")}
            solution = row["prompt"] + row["canonical_solution"]
        else:
            reference |= {"tests": row["test_list"], "setup": row["test_setup_code"]}
            solution = row["code"]
        items.append((Problem(str(row["task_id"]), name, "", reference), f"```python\n{solution}\n```"))
    grades = list(grader.grade(items))
    assert len(grades) == len(rows)
    assert [(p.id, g.detail) for (p, _), g in zip(items, grades) if not g.passed] == []


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_references_of_the_benchmarks_form_pass(grader: ProgramGrader, name: str) -> None:
    check_references(grader, name, MADE_UP[name](4))


def test_references_pass(data_file: DataFile, grader: ProgramGrader) -> None:
    """All of HumanEval's and MBPP's; its number 123 takes four seconds on an idle machine."""
    for name, count in (("humaneval", 164), ("mbpp", 500)):
        rows = read(data_file(f"data/{name}.jsonl"))
        assert len(rows) == count
        check_references(grader, name, rows)
