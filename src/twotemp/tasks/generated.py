"""Problems made from seeds: what the embedded tasks share.

Which split a problem belongs to is a hash of the problem itself, so train, validation and test are disjoint by
construction: no list of held-out problems has to be kept, and more training data can never leak a test problem.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from twotemp.errors import UserError, unknown
from twotemp.records import Problem
from twotemp.tasks.base import ProblemSet, Task

Split = Literal["train", "validation", "test"]

HELD_OUT: tuple[Split, ...] = ("test", "validation")
PROBLEMS = 200  # in each held-out set
SEED = 20


@dataclass(frozen=True)
class Example:
    """A problem with one right answer, as text whose words are the tokens."""

    prompt: str
    answer: str
    key: str  # equal for problems that differ only in presentation; decides the split
    reference: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A generator of examples for one level of a task."""

    name: str
    description: str
    grader: str
    length: int  # tokens an answer is padded to
    version: int  # raised whenever the same seed gives other problems
    draw: Callable[[Random], Example]

    def examples(self, seed: int, split: Split) -> Iterator[Example]:
        """An endless stream of the examples of one split; a problem may come again with another answer."""
        rng = Random(f"{self.name} {self.version} {seed}")
        while True:
            example = self.draw(rng)
            if split_of(f"{self.name} {example.key}") == split:
                yield example

    def task(self) -> Task:
        return Task(self.name, self.description, self.grader, self.length, self._load, subsets=HELD_OUT)

    def _load(
        self,
        data: Path | None = None,
        prompt: str | None = None,
        subset: str | None = None,
        allow_altered: bool = False,
    ) -> ProblemSet:
        if data is not None:
            raise UserError(f"{self.name} generates its problems; leave the data path out")
        if prompt is not None:
            raise UserError(f"{self.name} has one prompt; leave the prompt's name out (got {prompt!r})")
        split = subset or "test"
        if split not in HELD_OUT:
            raise unknown(f"subset of {self.name}", split, HELD_OUT)
        distinct: dict[str, Example] = {}
        for example in self.examples(SEED, split):  # type: ignore[arg-type]
            distinct.setdefault(example.key, example)
            if len(distinct) == PROBLEMS:
                break
        problems = tuple(
            Problem(f"{self.name}/{split}/{i}", self.name, example.prompt, example.reference)
            for i, example in enumerate(distinct.values())
        )
        identity = f"{self.name} version {self.version} seed {SEED} {split} {PROBLEMS}"
        return ProblemSet(problems, hashlib.sha256(identity.encode()).hexdigest(), "generated")


def split_of(key: str) -> Split:
    """The split of a problem: one in twenty is for tests, one in twenty for validation."""
    bucket = hashlib.blake2b(key.encode(), digest_size=8).digest()[0] % 20
    if bucket == 0:
        return "test"
    return "validation" if bucket == 1 else "train"
