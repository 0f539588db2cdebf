"""Tasks: named problems, their grader, and the length of an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from twotemp.errors import UserError
from twotemp.records import Problem


@dataclass(frozen=True)
class ProblemSet:
    """Problems and their origin, so that a run can record exactly what it was measured on."""

    problems: tuple[Problem, ...]
    digest: str  # sha256 of the data file, or of the generator's version and seed
    source: str  # a hub id, a file name, or "generated"


@dataclass(frozen=True)
class Task:
    """One benchmark. A new one is a file that defines a `Task`, plus a line in `tasks/__init__.py`."""

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
        prompt: str | None = None,
        subset: str | None = None,
        allow_altered: bool = False,
    ) -> ProblemSet:
        """Load the problems.

        Args:
            data: A local data file.
            prompt: The name of a prompt template; None: the first.
            subset: The name of a subset; None: the first.
            allow_altered: Accept a data file whose rows differ from the published benchmark.
        """
        if not allow_altered:
            return self.load(data=data, prompt=prompt, subset=subset)
        if data is None:
            raise UserError("--allow-altered-data is for a local file; give it with --data")
        return self.load(data=data, prompt=prompt, subset=subset, allow_altered=True)
