"""A task that a random model sometimes solves, and a grader without processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from recipes.tokenizer import build
from twotemp import graders, tasks
from twotemp.models import llada
from twotemp.records import Grade, Problem
from twotemp.tasks import ProblemSet, Task

LENGTH = 8


def load(data: Path | None = None, prompt: str | None = None, subset: str | None = None) -> ProblemSet:
    """Return the problems of the task `toy`."""
    problems = tuple(Problem(f"toy/{i}", "toy", f"{i} + {i + 1} =", {"turn": i}) for i in range(12))
    return ProblemSet(problems, "toy digest", "generated")


def right(problem: Problem, text: str) -> bool:
    """Tell whether an answer counts as right; a hash decides, so that one in three is right for every model."""
    return hashlib.sha256(f"{problem.id}|{text}".encode()).digest()[0] % 3 == 0


class ToyGrader:
    """A grader that grades by `right`."""

    name = "toy 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        for problem, text in items:
            yield Grade("passed" if right(problem, text) else "failed", text, "all")

    def same(self, problem: Problem, a: str, b: str) -> bool:
        return a == b

    def close(self) -> None:
        pass


def install(patch: pytest.MonkeyPatch) -> None:
    """Register the tasks `toy` and `toy-b`, which have different problems with equal ids, and the grader `toy`."""

    def twin(**options: object) -> ProblemSet:
        originals = load().problems
        problems = tuple(Problem(p.id, "toy-b", f"{p.prompt} 7 +", p.reference) for p in originals)
        return ProblemSet(problems, "twin digest", "generated")

    patch.setitem(tasks.TASKS, "toy", Task("toy", "sums", "toy", LENGTH, load))
    patch.setitem(tasks.TASKS, "toy-b", Task("toy-b", "sums", "toy", LENGTH, twin))
    # The lambda looks the class up when it is called, so that a test may replace it.
    patch.setitem(graders.GRADERS, "toy", lambda: ToyGrader())


def micro_model(name: str = "micro", seed: int = 0) -> llada.LLaDA:
    """Return a random LLaDA model with the tokenizer of the embedded tasks."""
    tokenizer = build()
    config = {
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "mlp_hidden_size": 24,
        "vocab_size": len(tokenizer),
        "max_sequence_length": 128,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "mask_token_id": tokenizer.convert_tokens_to_ids("<|mdm_mask|>"),
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        "init_std": 0.3,
    }
    return llada.new(config, tokenizer, seed=seed, name=name)
