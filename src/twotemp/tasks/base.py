"""What a task is: named problems, the grader that judges them, and how long an answer may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from twotemp.errors import UserError
from twotemp.records import Problem


@dataclass(frozen=True)
class ProblemSet:
    """Problems with where they came from, so that a run can say exactly what it was measured on."""

    problems: tuple[Problem, ...]
    digest: str  # sha256 of the data file, or of the generator's version and seed
    source: str  # a hub id, a file name, or "generated"


@dataclass(frozen=True)
class Task:
    """One benchmark. A new one is a file that defines a `Task`, plus a line in `tasks/__init__.py`."""

    name: str
    description: str
    grader: str  # a name in twotemp.graders
    length: int  # tokens of answer, by default
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
        """`allow_altered`: take a data file whose rows are not those of the published benchmark."""
        if not allow_altered:
            return self.load(data=data, prompt=prompt, subset=subset)
        if data is None:
            raise UserError("--allow-altered-data is for a file of your own; give it with --data")
        return self.load(data=data, prompt=prompt, subset=subset, allow_altered=True)
