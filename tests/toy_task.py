"""A task that a random model solves now and then, and a grader without processes, for tests of what lies around."""

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
    problems = tuple(Problem(f"toy/{i}", "toy", f"{i} + {i + 1} =", {"turn": i}) for i in range(12))
    return ProblemSet(problems, "toy digest", "generated")


def right(problem: Problem, text: str) -> bool:
    """One answer in three is right, by a hash: no luck of the model's matters."""
    return hashlib.sha256(f"{problem.id}|{text}".encode()).digest()[0] % 3 == 0


class ToyGrader:
    name = "toy 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        for problem, text in items:
            yield Grade("passed" if right(problem, text) else "failed", text, "all")

    def same(self, problem: Problem, a: str, b: str) -> bool:
        return a == b

    def close(self) -> None:
        pass


def install(patch: pytest.MonkeyPatch) -> None:
    """Make `toy` (and its twin `toy-b`, with other problems) known as a task, and `toy` as a grader."""

    def twin(**options: object) -> ProblemSet:
        found = load()
        problems = tuple(Problem(p.id, "toy-b", f"{p.prompt} 7 +", p.reference) for p in found.problems)
        return ProblemSet(problems, "twin digest", "generated")

    patch.setitem(tasks.TASKS, "toy", Task("toy", "sums", "toy", LENGTH, load))
    patch.setitem(tasks.TASKS, "toy-b", Task("toy-b", "sums", "toy", LENGTH, twin))
    # Looked up when it is asked for: a test may put another class in its place.
    patch.setitem(graders.GRADERS, "toy", lambda: ToyGrader())


def micro_model(name: str = "micro", seed: int = 0) -> llada.LLaDA:
    """A random LLaDA with the embedded tasks' tokenizer."""
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
