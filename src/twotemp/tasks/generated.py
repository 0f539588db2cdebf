"""Problems generated from seeds, for the embedded tasks.

The split of a problem is a hash of the problem itself, so train, validation and test are disjoint by construction: no
list of held-out problems has to be kept, and more training data can never leak a test problem. A held-out set is
named by its split, `test` or `validation`, or with another seed, `test:7`, for other problems of the same split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

from twotemp.errors import UserError, unknown
from twotemp.records import Problem
from twotemp.serialization import json_text
from twotemp.tasks.base import ProblemSet, Task

Split = Literal["train", "validation", "test"]

HELD_OUT: tuple[Split, ...] = ("test", "validation")
PROBLEMS = 1000  # in each held-out set
SEED = 20  # of the held-out sets that are named without a seed


@dataclass(frozen=True)
class Example:
    """A problem with a right answer, as text whose words are tokens."""

    prompt: str
    answer: str
    key: str  # equal for problems with the same solution steps; determines the split
    reference: Mapping[str, Any] = field(default_factory=dict)


class MaskedCheck(NamedTuple):
    """A check of an answer: mask some words, and test whether a model restores those that follow from the rest.

    Positions count the words of problem and answer.
    """

    covered: Sequence[int]  # the masked positions
    expected: Sequence[int]  # those among them that the rest determines


@dataclass(frozen=True)
class Source:
    """A generator of examples for one level of a task."""

    name: str
    description: str
    grader: str
    length: int  # tokens an answer is padded to
    version: int  # increased whenever the same seed gives other problems
    draw: Callable[[Random], Example]
    # Maps (words of problem and answer, index where the answer begins) to the checks of the answer.
    checks: Callable[[Sequence[str], int], list[MaskedCheck]]

    def examples(self, seed: int, split: Split) -> Iterator[Example]:
        """Yield examples of one split without end; a problem may recur with another answer."""
        rng = Random(f"{self.name} {self.version} {seed}")
        while True:
            example = self.draw(rng)
            if split_of(f"{self.name} {example.key}") == split:
                yield example

    def distinct(self, seed: int, split: Split, count: int) -> list[Example]:
        """Return the first `count` different problems of a split, each with its first answer."""
        examples: dict[str, Example] = {}
        for example in self.examples(seed, split):
            examples.setdefault(example.key, example)
            if len(examples) == count:
                break
        return list(examples.values())

    def problem(self, example: Example, subset: str, number: int) -> Problem:
        """Return an example as a problem of a subset."""
        return Problem(f"{self.name}/{subset}/{number}", self.name, example.prompt, example.reference)

    def task(self) -> Task:
        """Return the task with the held-out problems of this source."""
        return Task(self.name, self.description, self.grader, self.length, self._load, subsets=HELD_OUT)

    def _load(
        self, data: Path | None, prompt: str | None, subset: str | None, allow_altered: bool = False
    ) -> ProblemSet:
        if data is not None:
            raise UserError(f"{self.name} generates its problems; leave the data path out")
        if prompt is not None:
            raise UserError(f"{self.name} has one prompt; leave the prompt's name out (got {prompt!r})")
        return held_out_problems(self, subset or HELD_OUT[0])

    def held_out(self, subset: str) -> tuple[Split, int]:
        """Parse `test` or `test:7`: return the split, and the seed of its problems."""
        name, colon, seed = subset.partition(":")
        for split in HELD_OUT:
            if name == split and (seed.isdecimal() or not colon):
                return split, int(seed) if colon else SEED
        raise unknown(f"subset of {self.name}", subset, (*HELD_OUT, "test:7"))


@cache
def held_out_problems(source: Source, subset: str) -> ProblemSet:
    """Return the first distinct problems of a held-out set, generated once per process."""
    split, seed = source.held_out(subset)
    examples = enumerate(source.distinct(seed, split, PROBLEMS))
    problems = tuple(source.problem(example, subset, number) for number, example in examples)
    content = json_text([(problem.id, problem.prompt, problem.reference) for problem in problems])
    return ProblemSet(problems, hashlib.sha256(content.encode()).hexdigest(), "generated")


def split_of(key: str) -> Split:
    """Return the split of a problem: 2 of 20 are for testing, 1 of 20 for validation."""
    bucket = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) % 20
    if bucket < 2:
        return "test"
    return "validation" if bucket == 2 else "train"
