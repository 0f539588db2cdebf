"""Tasks: named problems, their grader, and the length of an answer; and problems generated from seeds.

The split of a generated problem is a hash of the problem itself, so train, validation and test are disjoint by
construction: no list of held-out problems has to be kept, and more training data can never leak a test problem. A
held-out set is named by its split, `test` or `validation`, or with another seed, `test:7`, for other problems of the
same split.
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


@dataclass(frozen=True)
class ProblemSet:
    """Problems and their origin, so that a run can record exactly what it was measured on."""

    problems: tuple[Problem, ...]
    digest: str  # sha256 of the data file, or of the generator's version and seed
    source: str  # a hub id, a file name, or "generated"


@dataclass(frozen=True)
class Task:
    """A benchmark, or a generator of problems."""

    name: str
    description: str
    grader: str  # a name in twotemp.graders
    length: int  # default number of tokens of an answer
    load: Callable[..., ProblemSet]  # load(data, prompt, subset[, allow_altered]), see `problems`
    prompts: tuple[str, ...] = ()  # named prompt templates, the default first
    subsets: tuple[str, ...] = ()

    def problems(
        self,
        *,
        data: Path | None = None,
        allow_altered: bool = False,
        prompt: str | None = None,
        subset: str | None = None,
    ) -> ProblemSet:
        """Load the problems.

        Args:
            data: A local data file.
            allow_altered: Accept a data file whose rows differ from the published benchmark.
            prompt: The name of a prompt template; None: the first.
            subset: The name of a subset; None: the first.
        """
        if not allow_altered:
            return self.load(data=data, prompt=prompt, subset=subset)
        if data is None:
            raise UserError("--allow-altered-data is for a local file; give it with --data")
        return self.load(data=data, prompt=prompt, subset=subset, allow_altered=True)


TASKS: dict[str, Task] = {}  # by name; the package fills it, and plug-ins add to it


def get(name: str) -> Task:
    """Return the task of this name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


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
