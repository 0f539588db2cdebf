"""Grade Python programs: find the code in a text, combine it with its tests, run both in the sandbox."""

from __future__ import annotations

import ast
import builtins
import platform
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from twotemp.errors import UserError, unknown
from twotemp.graders import evalplus
from twotemp.graders.extraction import find_code
from twotemp.graders.sandbox import Program, Sandbox, working_confinement
from twotemp.graders.workers import PooledGrader
from twotemp.records import Grade, Problem

VERSION = "5"
RUNS_TEXT = {"eval", "exec", "compile", "pickle.loads", "pickle.load", "marshal.loads", "marshal.load"}
SECONDS = 3.0  # of processor time (and sleep) for a program, unless the problem says otherwise
LONGEST = 100_000  # characters; no real answer is longer


class ProgramGrader(PooledGrader[Program]):
    """Problem.reference is one of

        {"kind": "asserts" (default), "entry_point": "f", "tests": ["assert f(2) == 4", ...]}
        {"kind": "humaneval", "prompt": ..., "test": ..., "entry_point": ...}
        {"kind": "mbpp", "tests": [...], "setup": ...}
        {"kind": "evalplus", "entry_point": ..., "solution": ..., "inputs": [...], "atol": 0[, "prompt": ...]}

    each with an optional "timeout" in seconds, the first also with a "prefix" and a "setup". A program can
    import the standard library only.

    Args:
        workers: The number of sandboxes; by default one for each usable core.
        sandbox: The confinement, "bwrap" or "landlock"; by default the first one that works.
    """

    name = f"programs {VERSION} / python {platform.python_version()}"

    def __init__(self, workers: int | None = None, sandbox: str | None = None) -> None:
        confinement = working_confinement(sandbox)  # raises here, before anything is graded
        super().__init__(lambda: Sandbox(confinement), workers)

    def same(self, problem: Problem, a: str, b: str) -> bool:
        return _normal(a) == _normal(b)

    def _start_grading(self, problem: Problem, text: str) -> Callable[[], Grade]:
        names = entry_points(problem)
        # HumanEval's prompt precedes the code, so the body of the function alone is enough.
        code, rule = find_code(text, names, body="prompt" in problem.reference)
        if len(code) > LONGEST:
            return lambda: Grade("failed", None, rule, f"longer than {LONGEST} characters")
        running = self._submit(assemble(problem, code, names))

        def result() -> Grade:
            verdict = running.result()
            return Grade(verdict.outcome, code, rule, verdict.detail)

        return result


def entry_points(problem: Problem) -> tuple[str, ...]:
    """Return the names by which the tests use the program."""
    reference = problem.reference
    if reference.get("kind") != "mbpp":
        return (_need(problem, "entry_point"),)
    return _called(str(reference.get("setup") or ""), tuple(_need(problem, "tests")))


@lru_cache(maxsize=4096)
def _called(setup: str, tests: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that the tests call and Python does not have: MBPP does not say what its functions are.

    Where there is none (MBPP 126 redefines `sum`), return all names that the tests call.
    """
    tree = ast.parse("\n".join((setup, *tests)))
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = dict.fromkeys(function.id for function in calls if isinstance(function, ast.Name))
    return tuple(name for name in names if not hasattr(builtins, name)) or tuple(names)


def assemble(problem: Problem, code: str, names: tuple[str, ...]) -> Program:
    """Return a program with its tests; the order of the parts depends on the benchmark.

    Args:
        problem: The problem, whose reference has the tests.
        code: The code found in a text.
        names: The names by which the tests use it.

    Returns:
        What the sandbox runs.
    """
    reference = problem.reference
    kind = reference.get("kind", "asserts")
    seconds = float(reference.get("timeout") or SECONDS)
    if kind in ("humaneval", "evalplus"):
        # The prompt has the imports and helpers, and makes a lone function body a function.
        prompt = _need(problem, "prompt") if kind == "humaneval" else str(reference.get("prompt") or "")
        if kind == "evalplus":
            tests = evalplus.tests(reference)
        else:
            tests = _checked(problem.id, f"{_need(problem, 'test')}\ncheck({names[0]})")
        return Program(f"{prompt}\n{code}", tests, names, prelude=prompt, seconds=seconds)
    if kind in ("mbpp", "asserts"):
        # The setup follows the code: MBPP 367 builds objects of a class that the program defines.
        tests = _checked(problem.id, "\n".join((str(reference.get("setup") or ""), *_need(problem, "tests"))))
        return Program(f"{reference.get('prefix') or ''}{code}", tests, names, seconds=seconds)
    raise unknown("kind of program tests", kind, ("asserts", "evalplus", "humaneval", "mbpp"))


@lru_cache(maxsize=4096)
def _checked(problem: str, tests: str) -> str:
    """Return tests that evaluate no text: a text that the program returned would run beside them."""
    try:
        calls = [node for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Call)]
    except SyntaxError:  # the verdict on every program will say so
        return tests
    for call in calls:
        name = ast.unparse(call.func)
        if name in RUNS_TEXT and not (call.args and isinstance(call.args[0], ast.Constant)):
            raise UserError(
                f"the tests of problem {problem!r} call {name}, which would run what a program returned beside "
                "the tests; compare values instead (ast.literal_eval reads them from text)"
            )
    return tests


def _need(problem: Problem, field: str) -> Any:
    reference: Mapping[str, Any] = problem.reference
    if field not in reference:
        raise UserError(
            f"problem {problem.id!r} has no {field!r} in its reference; the program grader needs it"
        )
    return reference[field]


def _normal(code: str) -> str:
    """Return code without blank lines, comment lines and trailing space. It may be too broken to parse."""
    lines = (line.rstrip() for line in code.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
