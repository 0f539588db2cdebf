"""Reward functions with TRL's signature: `reward(completions=..., **columns) -> list[float | None]`.

Columns are lists with an entry per completion: `prompts`, `completion_ids`, the fields of the problem's reference
(so that a function written for TRL finds its `answer`), and `grade`, the task grader's verdict. None means that
a completion could not be scored: it is left out, never taken for wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twotemp.errors import UserError
from twotemp.records import Grade, Problem, Sample

Reward = Callable[..., Sequence[float | None]]


def correct(*, completions: list[str], grade: Sequence[Grade], **columns: Any) -> list[float | None]:
    """Return 1 where the task's grader says passed, 0 where it does not, None where it could not tell."""
    return [None if g.outcome == "ungraded" else float(g.passed) for g in grade]


def answered(*, completions: list[str], grade: Sequence[Grade], **columns: Any) -> list[float | None]:
    """Return 1 where the grader could find an answer, right or wrong: a reward for the format."""
    return [None if g.outcome == "ungraded" else float(g.answer is not None) for g in grade]


def columns_of(
    problems: Sequence[Problem], samples: Sequence[Sample], grades: Sequence[Grade]
) -> dict[str, list[Any]]:
    """Return what reward functions see beside the texts, from one problem, sample and grade per completion."""
    names = dict.fromkeys(name for problem in problems for name in problem.reference)
    references = {name: [problem.reference.get(name) for problem in problems] for name in names}
    return {
        **references,
        "prompts": [problem.prompt for problem in problems],
        "completion_ids": [list(sample.tokens) for sample in samples],
        "grade": list(grades),
    }


def total(
    rewards: Mapping[Reward, float], completions: list[str], columns: Mapping[str, list[Any]]
) -> list[float]:
    """Return the weighted sum of all rewards of each completion; NaN where one of them is None."""
    sums = [0.0] * len(completions)
    for reward, weight in rewards.items():
        for index, value in enumerate(_values(reward, completions, columns)):
            sums[index] += math.nan if value is None else weight * value
    return sums


def _values(reward: Reward, completions: list[str], columns: Mapping[str, list[Any]]) -> list[float | None]:
    """Call a reward function and check what it returns."""
    name = getattr(reward, "__name__", type(reward).__name__)
    try:
        values = list(reward(completions=completions, **columns))
    except Exception as error:
        raise UserError(
            f"the reward {name!r} raised {type(error).__name__}: {error}. Nothing was learned from this step; "
            "fix it (return None for what it cannot score) and start the same command again"
        ) from error
    if len(values) != len(completions):
        raise UserError(
            f"the reward {name!r} returned {len(values)} values for {len(completions)} completions; return one each"
        )
    for value in values:
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise UserError(f"the reward {name!r} returned {value!r}; it must be a finite number, or None")
    return values
