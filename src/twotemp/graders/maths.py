"""Grade mathematical answers: exact arithmetic for single numbers, math-verify for everything else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from twotemp.errors import UserError
from twotemp.graders import quantities
from twotemp.graders.base import answer_kind
from twotemp.graders.extraction import final_answer
from twotemp.graders.workers import Child, GraderWorker, PooledGrader, Verdict
from twotemp.processes import minimal_environment, python_command
from twotemp.records import Grade, Problem

VERSION = "4"
LONGEST = 300  # characters of an answer; longer ones are not answers, and may be slow to parse
SECONDS = 10.0  # to parse and compare one pair; the slowest real one seen takes 0.4 s on an idle machine
START_SECONDS = 120.0  # importing sympy on a busy machine
MEMORY = 1 << 30  # bytes of address space of one worker
RECYCLE = 2000  # questions a worker answers before a fresh one replaces it: sympy's caches only grow

# LaTeX commands in a sum of numbers; any other letter makes it a formula or a name.
_ARITHMETIC = re.compile(r"\\(?:[dt]?frac|sqrt|times|cdot|div|left|right|pi|approx)(?![A-Za-z])")


class MathsGrader(PooledGrader[tuple[str, str]]):
    """Problem.reference = {"answer": "\\frac{1}{2}", "kind": "number" (default) or "latex"}.

    One number, in digits or words, is compared exactly, and units only where both sides name one. math-verify
    compares everything else, in worker processes with limits of time and memory. An answer that it cannot read as a
    whole is wrong, whatever parts of it are. There as well a decimal is an exact fraction: 3.14159265 is not pi, nor
    is 0.333333 a third. Percentages are never scaled for a "number"; as "latex", 50 % is also 1/2. In an equation
    between numbers (2 + 2 = 5) every side must be the answer.

    Args:
        workers: The number of worker processes; by default one for each usable core.
    """

    def __init__(self, workers: int | None = None) -> None:
        super().__init__(_VerifyWorker, workers)
        library = _math_verify_version()
        self.name = f"maths {VERSION} / " + (f"math-verify {library}" if library else "plain numbers only")

    def same(self, problem: Problem, a: str, b: str) -> bool:
        _, kind = _reference(problem)
        # math-verify takes its first argument for the reference answer and is not symmetric.
        pairs = ((a, b), (b, a)) if a != b else ((a, b),)
        return any(self._compare(kind, *pair)().outcome == "passed" for pair in pairs)

    def _start_grading(self, problem: Problem, text: str) -> Callable[[], Grade]:
        gold, kind = _reference(problem)
        extracted = final_answer(text)
        if extracted.answer is None:
            return lambda: Grade("failed", None, extracted.rule, "no answer found")
        compared = self._compare(kind, gold, extracted.answer)

        def result() -> Grade:
            verdict = compared()
            return Grade(verdict.outcome, extracted.answer, extracted.rule, verdict.detail)

        return result

    def _compare(self, kind: str, gold: str, answer: str) -> Callable[[], Verdict]:
        """Return a function that returns the verdict; the cheapest comparison that decides is used."""
        if answer == gold:
            return lambda: Verdict("passed")
        if len(answer) > LONGEST or len(gold) > LONGEST:
            return lambda: Verdict("failed", f"longer than {LONGEST} characters")
        sides = [side for side in answer.split("=") if _numeric(side)]
        if len(sides) > 1:
            verdicts = [self._compare(kind, gold, side.strip()) for side in sides]
            return lambda: next(
                (v for v in (v() for v in verdicts) if v.outcome != "passed"), Verdict("passed")
            )
        number = kind == "number"
        left, right = (quantities.read(text, prose=number) for text in (gold, answer))
        if left is not None and right is not None:
            equal = quantities.same(left, right, percent_is_hundredth=not number)
            return lambda: Verdict("passed" if equal else "failed")
        return self._submit((_for_math_verify(gold, left), _for_math_verify(answer, right))).result


def _reference(problem: Problem) -> tuple[str, str]:
    kind = answer_kind(problem)
    if "answer" not in problem.reference:
        raise UserError(f"problem {problem.id!r} has no reference answer; the maths grader needs `answer`")
    return str(problem.reference["answer"]), kind


def _numeric(side: str) -> bool:
    """Return whether a side of an equation is a sum of numbers, and not a name, a formula or a sentence."""
    named = any(c.isalpha() for c in _ARITHMETIC.sub("", side))
    return not named and (r"\pi" in side or any(c.isdigit() for c in side))


def _for_math_verify(text: str, quantity: quantities.Quantity | None) -> str:
    """Return an answer with exact numbers, in LaTeX that math-verify can read; it lacks \\varnothing."""
    if quantity is not None and not quantity.measure:
        return quantities.latex(quantity.value)
    return quantities.exact(quantities.shown(text.replace(r"\varnothing", r"\emptyset")))


def _math_verify_version() -> str | None:
    try:
        return version("math-verify")
    except PackageNotFoundError:
        return None


class _VerifyWorker(GraderWorker[tuple[str, str]]):
    """The parent's side of `verify_worker`."""

    child_name = "the math-verify worker"
    control = ("1", r"\frac{2}{2}")

    def __init__(self) -> None:
        if _math_verify_version() is None:
            raise UserError(
                "comparing mathematical expressions needs math-verify: pip install 'twotemp[eval]' "
                "(without it only plain numbers can be graded)"
            )
        super().__init__()
        self._asked = 0

    def _ask(self, pair: tuple[str, str]) -> Verdict:
        if self._asked >= RECYCLE:
            self.close()
        if self._child is None:
            command = python_command("-m", "twotemp.graders.verify_worker")
            self._child = Child(command, environment=minimal_environment(), memory=MEMORY)
            self._child.ready(START_SECONDS)
            self._asked = 0
        self._asked += 1
        question = json.dumps({"gold": pair[0], "answer": pair[1]}) + "\n"
        try:
            reply = self._child.ask(question.encode(), SECONDS)
        except TimeoutError:
            self.close()
            return Verdict("timeout", f"math-verify took more than {SECONDS:g} s")
        return Verdict("passed" if reply["same"] else "failed", reply.get("detail", ""))
