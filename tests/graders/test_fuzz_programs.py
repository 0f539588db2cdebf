"""No generated program passes a test that it cannot pass, and none is left ungraded (`fuzz_programs` says more)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers import fuzz_idioms, fuzz_programs
from tests.helpers.fuzz_grammar import PREAMBLE
from twotemp.graders.sandbox import Program, Sandbox


def test_a_program_that_knows_the_secret_passes_every_test(box: Sandbox) -> None:
    verdicts = [(idiom.tests, box.ask(fuzz_idioms.honest(idiom, 86028121))) for idiom in fuzz_idioms.IDIOMS]
    assert [(tests, verdict) for tests, verdict in verdicts if verdict.outcome != "passed"] == []


def test_the_secret_is_in_no_program() -> None:
    programs = list(fuzz_programs.cases(400))
    secrets = [program.tests.splitlines()[0].removeprefix("S = ") for program in programs]
    assert not any(secret in program.code for secret, program in zip(secrets, programs))
    assert len({*secrets}) == 400 / fuzz_programs.GROUP
    assert len({program.code for program in programs}) == 400


def test_every_program_compiles() -> None:
    compile(PREAMBLE, "<preamble>", "exec")
    for program in fuzz_programs.cases(400, seed=7):
        assert program.code.startswith(PREAMBLE)
        compile(program.code.removeprefix(PREAMBLE), "<program>", "exec")


def test_a_hole_would_be_found(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the tests revealed their secret, a program that only repeats its arguments would pass."""

    def revealing(*_: object) -> Iterator[Program]:
        yield Program("def f(x): return x", "assert f(7) == 7", ("f",))
        yield Program("def f(x): return 0", "assert f(7) == 7", ("f",))

    monkeypatch.setattr(fuzz_programs, "cases", revealing)
    assert [index for index, *_ in fuzz_programs.holes(box, 2)] == [0]


def test_no_hostile_program_passes(box: Sandbox) -> None:
    assert fuzz_programs.holes(box, 75, seed=len(box.confinement)) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)  # six minutes in each confinement on an idle machine
def test_none_of_thousands_of_hostile_programs_passes(box: Sandbox) -> None:
    assert fuzz_programs.holes(box, 3000, seed=2) == []
