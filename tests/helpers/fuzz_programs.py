"""Hostile programs and the tests they try to pass, for fuzzing the sandbox.

A case is a program and a test. The test passes only if the program delivers a secret, a random number that is drawn
independently of the program's text and that the test never hands to the program. No generated program can therefore
implement the function: a case that passes is a hole, and so is one that is `ungraded`, because ungraded samples are
left out of scores. `honest` is the program that knows the secret; it shows that every test can be passed.

Programs come in groups that share one test, as the samples of one question do.

    python -m tests.helpers.fuzz_programs landlock --cases 3000
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from tests.helpers.fuzz_grammar import PREAMBLE, Grammar
from tests.helpers.fuzz_idioms import IDIOMS, NAMES, with_secret
from twotemp.graders.sandbox import Program, Sandbox

GROUP = 4  # programs for each test
SECONDS = 0.3


def cases(count: int, seed: int = 0) -> Iterator[Program]:
    """Yield hostile programs, each with a test that it cannot pass; all idioms come in turn."""
    order = random.Random(f"order {seed}").sample(IDIOMS, len(IDIOMS))
    for index in range(count):
        idiom = order[index // GROUP % len(order)]
        secret = random.Random(f"secret {seed} {index // GROUP}").randrange(10**6, 10**9)
        # The failed line that a reason quotes shows the secret, as the assertions of benchmarks do.
        text = with_secret(idiom.tests, secret) + f"  # S = {secret}"
        yield Program(Grammar(f"{seed} {index}", idiom).program(), text, NAMES, seconds=SECONDS)


def holes(sandbox: Sandbox, count: int, seed: int = 0) -> list[tuple[int, str, Program]]:
    """Run generated programs and return those that pass or are ungraded, with their index and outcome."""
    found = []
    for index, program in enumerate(cases(count, seed)):
        verdict = sandbox.ask(program)
        if verdict.outcome not in ("failed", "timeout"):
            found.append((index, f"{verdict.outcome}: {verdict.detail}", program))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("confinement")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sandbox = Sandbox(arguments.confinement)
    found = holes(sandbox, arguments.cases, arguments.seed)
    sandbox.close()
    for index, outcome, program in found:
        program_text = program.code.removeprefix(PREAMBLE)
        print(f"--- {index}: {outcome}\n{program_text}\n>>> {program.tests}\n")
    print(f"{len(found)} of {arguments.cases} programs passed or were not graded in {arguments.confinement}")


if __name__ == "__main__":
    main()
