"""Programs that attack the grader or the machine, by expected outcome. `f` is right only if the attack works."""

from __future__ import annotations

import textwrap

from tests.helpers import hostile_forgeries, hostile_resources, hostile_system
from twotemp.graders.sandbox import Program

TIMEOUT = hostile_resources.TIMEOUT
FAILED = (
    hostile_resources.FAILED
    | hostile_system.PROCESSES_AND_NETWORK
    | hostile_system.FILES
    | hostile_system.SERVER_AND_KERNEL
    | hostile_forgeries.FORGERIES
)

TESTS = "assert f(1) == 2\nassert f(21) == 42"
GOOD = "def f(x): return 2 * x"


def program(code: str, seconds: float = 10.0, tests: str = TESTS) -> Program:
    """Return a program with its tests, which use it by the name `f`."""
    return Program(textwrap.dedent(code), tests, ("f",), seconds=seconds)
