"""Problems made from seeds: what the embedded tasks share.

Which split a problem belongs to is a hash of the problem itself, so train, validation and test are disjoint by
construction: no list of held-out problems has to be kept, and more training data can never leak a test problem.
A held-out set is named by its split, `test` or `validation`, or with a seed of your own, `test:7`: other problems of
the same split, to try a result again.
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
from twotemp.plain import json_text
from twotemp.records import Problem
from twotemp.tasks.base import ProblemSet, Task

Split = Literal["train", "validation", "test"]

HELD_OUT: tuple[Split, ...] = ("test", "validation")
PROBLEMS = 1000  # in each held-out set
SEED = 20  # of the sets that are named without one


@dataclass(frozen=True)
class Example:
    """A problem with one right answer, as text whose words are the tokens."""

    prompt: str
    answer: str
    key: str  # equal for problems that differ only in what does not change the work; decides the split
    reference: Mapping[str, Any] = field(default_factory=dict)


class MaskedCheck(NamedTuple):
    """A way to check an answer: cover some of the words, and see whether those that follow from the rest come out
    again. Positions are counted through problem and answer."""

    covered: Sequence[int]
    expected: Sequence[int]  # of these


@dataclass(frozen=True)
class Source:
    """A generator of examples for one level of a task."""

    name: str
    description: str
    grader: str
    length: int  # tokens an answer is padded to
    version: int  # raised whenever the same seed gives other problems
    draw: Callable[[Random], Example]
    # (words of problem and answer, where the answer begins) -> how a reader would check it
    checks: Callable[[Sequence[str], int], list[MaskedCheck]]

    def examples(self, seed: int, split: Split) -> Iterator[Example]:
        """An endless stream of the examples of one split; a problem may come again with another answer."""
        rng = Random(f"{self.name} {self.version} {seed}")
        while True:
            example = self.draw(rng)
            if split_of(f"{self.name} {example.key}") == split:
                yield example

    def distinct(self, seed: int, split: Split, count: int) -> list[Example]:
        """The first so many different problems of a split, each with the answer it came with first."""
        found: dict[str, Example] = {}
        for example in self.examples(seed, split):
            found.setdefault(example.key, example)
            if len(found) == count:
                break
        return list(found.values())

    def problem(self, example: Example, subset: str, number: int) -> Problem:
        return Problem(f"{self.name}/{subset}/{number}", self.name, example.prompt, example.reference)

    def task(self) -> Task:
        return Task(self.name, self.description, self.grader, self.length, self._load, subsets=HELD_OUT)

    def _load(
        self, data: Path | None, prompt: str | None, subset: str | None, allow_altered: bool = False
    ) -> ProblemSet:
        if data is not None:
            raise UserError(f"{self.name} generates its problems; leave the data path out")
        if prompt is not None:
            raise UserError(f"{self.name} has one prompt; leave the prompt's name out (got {prompt!r})")
        return made(self, subset or HELD_OUT[0])

    def held_out(self, subset: str) -> tuple[Split, int]:
        """`test` or `test:7` -> the split, and the seed its problems are drawn with."""
        name, colon, seed = subset.partition(":")
        for split in HELD_OUT:
            if name == split and (seed.isdecimal() or not colon):
                return split, int(seed) if colon else SEED
        raise unknown(f"subset of {self.name}", subset, (*HELD_OUT, "test:7"))


@cache
def made(source: Source, subset: str) -> ProblemSet:
    """The first distinct problems of a held-out set. Made once per process: an evaluation asks for them again."""
    split, seed = source.held_out(subset)
    found = enumerate(source.distinct(seed, split, PROBLEMS))
    problems = tuple(source.problem(example, subset, number) for number, example in found)
    content = json_text([(one.id, one.prompt, one.reference) for one in problems])
    return ProblemSet(problems, hashlib.sha256(content.encode()).hexdigest(), "generated")


def split_of(key: str) -> Split:
    """The split of a problem: two in twenty are for tests, one in twenty for validation."""
    bucket = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) % 20
    if bucket < 2:
        return "test"
    return "validation" if bucket == 2 else "train"
