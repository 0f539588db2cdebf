"""Python programs: find the code in the text, put it together with its tests, run both in the sandbox."""

from __future__ import annotations

import ast
import builtins
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from twotemp.errors import UserError, unknown
from twotemp.graders.code_extraction import find_code
from twotemp.graders.sandbox import Program, Sandbox, working_confinement
from twotemp.graders.workers import Verdict, WorkerPool, in_order, usable_cpus
from twotemp.records import Grade, Problem

VERSION = "3"
SECONDS = 3.0  # of processor time (and sleep) for a program, unless the problem says otherwise
LONGEST = 100_000  # characters; no answer to a question is longer


class ProgramGrader:
    """Problem.reference is one of

        {"kind": "asserts" (default), "entry_point": "f", "tests": ["assert f(2) == 4", ...]}
        {"kind": "humaneval", "prompt": ..., "test": ..., "entry_point": ...}
        {"kind": "mbpp", "tests": [...], "setup": ...}

    each with an optional "timeout" in seconds, the first also with a "prefix" and a "setup". A program is
    given the standard library only.
    """

    name = f"programs {VERSION} / python {platform.python_version()}"

    def __init__(self, workers: int | None = None, sandbox: str | None = None) -> None:
        way = working_confinement(sandbox)  # refuses here, before anything is graded
        self._pool: WorkerPool[Program, Verdict] = WorkerPool(
            lambda: Sandbox(way), workers or usable_cpus(), keep=lambda verdict: verdict.outcome != "ungraded"
        )

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        return in_order((self._judge(problem, text) for problem, text in items), 4 * (self._pool.size - 1))

    def same(self, problem: Problem, a: str, b: str) -> bool:
        return _normal(a) == _normal(b)

    def close(self) -> None:
        self._pool.close()

    def _judge(self, problem: Problem, text: str) -> Callable[[], Grade]:
        names = entry_points(problem)
        # HumanEval's prompt stands in front, so the body alone will do.
        code, rule = find_code(text, names, body=problem.reference.get("kind") == "humaneval")
        if len(code) > LONGEST:
            return lambda: Grade("failed", None, rule, f"longer than {LONGEST} characters")
        running = self._pool.submit(assemble(problem, code, names))

        def result() -> Grade:
            verdict = running.result()
            return Grade(verdict.outcome, code, rule, verdict.detail)

        return result


def entry_points(problem: Problem) -> tuple[str, ...]:
    """What the tests use of the program."""
    reference = problem.reference
    if reference.get("kind") != "mbpp":
        return (_need(problem, "entry_point"),)
    return _called(str(reference.get("setup") or ""), tuple(_need(problem, "tests")))


@lru_cache(maxsize=4096)
def _called(setup: str, tests: tuple[str, ...]) -> tuple[str, ...]:
    """MBPP does not name its functions: they are what the tests call and Python does not have.

    Where there is no such name (MBPP 126 redefines `sum`) it is all that the tests call.
    """
    tree = ast.parse("\n".join((setup, *tests)))
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = dict.fromkeys(function.id for function in calls if isinstance(function, ast.Name))
    return tuple(name for name in names if not hasattr(builtins, name)) or tuple(names)


def assemble(problem: Problem, code: str, names: tuple[str, ...]) -> Program:
    """The one place that says in which order the pieces of a benchmark are put together."""
    reference = problem.reference
    kind = reference.get("kind", "asserts")
    seconds = float(reference.get("timeout") or SECONDS)
    if kind == "humaneval":
        # The prompt in front brings the imports and helpers, and makes a lone function body a function.
        prompt = _need(problem, "prompt")
        tests = f"{_need(problem, 'test')}\ncheck({names[0]})"
        return Program(f"{prompt}\n{code}", tests, names, prelude=prompt, seconds=seconds)
    if kind in ("mbpp", "asserts"):
        # The setup comes after the code: MBPP 367 builds objects of the program's own class.
        tests = "\n".join((str(reference.get("setup") or ""), *_need(problem, "tests")))
        return Program(f"{reference.get('prefix') or ''}{code}", tests, names, seconds=seconds)
    raise unknown("kind of program tests", kind, ("asserts", "humaneval", "mbpp"))


def _need(problem: Problem, field: str) -> Any:
    reference: Mapping[str, Any] = problem.reference
    if field not in reference:
        raise UserError(
            f"problem {problem.id!r} has no {field!r} in its reference; the program grader needs it"
        )
    return reference[field]


def _normal(code: str) -> str:
    """Without blank lines, comment lines and trailing space. Not parsed: it is whatever a model wrote."""
    lines = (line.rstrip() for line in code.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
