"""Reward functions by name, for GRPO: `correct` and `answered`, which read a grade, and d1's, which read the text.

They have TRL's signature: `reward(completions=..., **columns) -> list[float | None]`. Columns are lists with an entry
per completion: `prompts`, `completion_ids`, the fields of the problem's reference (so that a function written for TRL
finds its `answer`), and `grade`, the task grader's verdict. None means that a completion could not be scored: it is
left out, never taken for wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from twotemp.errors import UserError, unknown
from twotemp.records import Grade

Reward = Callable[..., Sequence[float | None]]

_STRICT = re.compile(r"<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$")
_SOFT = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>")
_LONGEST = 20_000  # characters: the patterns take quadratic time on hostile text


def correct(*, completions: list[str], grade: Sequence[Grade], **columns: Any) -> list[float | None]:
    """Return 1 where the task's grader says passed, 0 where it does not, None where it could not tell."""
    return [None if g.outcome == "ungraded" else float(g.passed) for g in grade]


def answered(*, completions: list[str], grade: Sequence[Grade], **columns: Any) -> list[float | None]:
    """Return 1 where the grader could find an answer, right or wrong: a reward for the format."""
    return [None if g.outcome == "ungraded" else float(g.answer is not None) for g in grade]


def _of_text(score: Callable[[str], float]) -> Reward:
    """Return the reward function that gives each completion a score."""

    def reward(*, completions: list[str], **columns: Any) -> list[float | None]:
        return [score(text[:_LONGEST]) for text in completions]

    return reward


def _xml_answer(text: str) -> str:
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def _d1_answer(*, completions: list[str], answer: Sequence[Any], **columns: Any) -> list[float | None]:
    """Return 2 where the text of the last answer tag is the gold answer, as a string."""
    return [2.0 * (_xml_answer(text) == str(gold)) for text, gold in zip(completions, answer)]


def _d1_xml_count(text: str) -> float:
    """Return 1/8 for each tag that is there once, on its own line, less 1/1000 for each character after the end."""
    parts = [text.count(tag) == 1 for tag in ("<reasoning>\n", "\n</reasoning>\n")]
    score = 0.125 * sum(parts)
    if text.count("\n<answer>\n") == 1:
        score += 0.125 - 0.001 * len(text.split("\n</answer>\n")[-1])
    if text.count("\n</answer>") == 1:
        score += 0.125 - 0.001 * (len(text.split("\n</answer>")[-1]) - 1)
    return score


REWARDS: dict[str, Reward] = {  # by name; plug-ins add to it
    "correct": correct,
    "answered": answered,
    "d1-answer": _d1_answer,
    "d1-integer": _of_text(lambda text: 0.5 * _xml_answer(text).isdigit()),
    "d1-strict-format": _of_text(lambda text: 0.5 * bool(_STRICT.match(text))),
    "d1-soft-format": _of_text(lambda text: 0.5 * bool(_SOFT.match(text))),
    "d1-xml-count": _of_text(_d1_xml_count),
    # d1's script also looks for a box, but by a pattern that contains a backspace and never matches.
    "d1-tags": _of_text(lambda text: 0.75 if "<answer>" in text else 0.25),
}


def reward_name(reward: Reward) -> str:
    """Return the name under which a reward is known."""
    names = {function: name for name, function in REWARDS.items()}
    return names.get(reward) or str(getattr(reward, "__name__", type(reward).__name__))


def parse_rewards(texts: Iterable[str]) -> Mapping[Reward, float]:
    """Return the weights of rewards from texts such as `correct` (weight 1) and `d1-integer=0.5`."""
    weights: dict[Reward, float] = {}
    for text in texts:
        name, equals, weight = text.partition("=")
        if name not in REWARDS:
            raise unknown("reward", name, REWARDS)
        try:
            weights[REWARDS[name]] = float(weight) if equals else 1.0
        except ValueError:
            raise UserError(f"--reward {text}: the weight must be a number, as in {name}=0.5") from None
    return weights
