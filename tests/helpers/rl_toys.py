"""A micro model, a task that it can learn in seconds, and its grader, for the tests of `twotemp.rl`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recipes import tokenizer
from twotemp import tasks
from twotemp.backends.local import LocalBackend
from twotemp.graders.rewards import correct
from twotemp.models import llada
from twotemp.models.llada import LLaDA
from twotemp.policies import policy
from twotemp.records import Grade, Problem
from twotemp.rl.objective import OBJECTIVES, Objective, Terms
from twotemp.rl.parallel import accelerator
from twotemp.rl.rollouts import Dataset, collect, training_problems
from twotemp.rl.settings import Budget, GrpoSettings
from twotemp.rl.trainer import train

LENGTH = 4
SHARP = 4.0


def micro_model(seed: int = 2, tied: bool = False, width: int = 16) -> LLaDA:
    """Return a random LLaDA model with the tokenizer of the embedded tasks."""
    words = tokenizer.build()
    vocabulary = words.get_vocab()
    config = {
        "d_model": width,
        "n_heads": 2,
        "n_layers": 2,
        "mlp_hidden_size": 2 * width,
        "vocab_size": len(vocabulary),
        "max_sequence_length": 64,
        "mask_token_id": vocabulary[tokenizer.MASK],
        "eos_token_id": vocabulary[tokenizer.EOS],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "init_std": 0.2,
        "weight_tying": tied,
    }
    model = llada.new(config, words, seed=seed, name="micro")
    with torch.no_grad():
        model.module.model.norm.weight.mul_(
            SHARP
        )  # sharpens the logits, so that some tokens pass a threshold
    return model


class ManyNumbers:
    """A grader that passes answers in which at least half of the words are numbers, which is easy to learn."""

    name = "many numbers 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        for _, text in items:
            numbers = sum(word.isdigit() for word in text.split())
            yield Grade("passed" if 2 * numbers >= LENGTH else "failed", answer=text)

    def same(self, problem: Problem, a: str, b: str) -> bool:
        return a == b

    def close(self) -> None:
        pass


def settings(**changes: Any) -> GrpoSettings:
    """Return settings of a small run with these changes."""
    small = GrpoSettings(
        policy("tct", threshold=0.3, t_token=1.0),
        length=LENGTH,
        groups=2,
        size=4,
        likelihood="d1",
        iterations=2,
        beta=0.04,
        max_grad_norm=0.2,
        lora_rank=4,
        lora_alpha=8,
        learning_rate=2e-3,
        save_every=2,
    )
    return replace(small, **changes)


TASK = tasks.get("countdown-3")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint of a run."""
    from twotemp.rl import checkpoint

    _, weights, moments = checkpoint.read(folder)
    return {**weights, **moments}


def go(
    out: Path, budget: str = "4steps", *, grader=None, model=None, stop=lambda: False, extra=None, data=None,
    questions=10, drawing=None, **changes
):  # fmt: skip
    """Train the micro model on the toy task; `changes` are settings."""
    held_out = TASK.problems().problems[:questions]
    return train(
        model or micro_model(),
        Dataset(TASK, grader or ManyNumbers(), data, held_out),
        settings(**changes),
        Budget.parse(budget),
        out,
        accelerator=accelerator(cpu=True),
        rewards={correct: 1.0, **extra} if extra else None,
        stop=stop,
        drawing=drawing,
    )


def terms_of(new, old, reference, advantage, weight) -> Terms:
    """Return terms for an objective, each the only one of its row."""
    rows = torch.arange(len(new))
    return Terms(new, old, reference, weight, rows, rows, advantage, torch.ones(len(new)), rows)


def poison_loss(set_item: Callable[[str, Objective], None], when: Callable[[], bool]) -> None:
    """Make the loss of GRPO NaN where `when()`; `set_item` replaces an entry of `OBJECTIVES`."""
    entry = OBJECTIVES["grpo"]

    def poisoned(terms, clip):
        return entry.loss(replace(terms, new=terms.new * float("nan")) if when() else terms, clip)

    set_item("grpo", replace(entry, loss=poisoned))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Return whether two sets of named tensors are equal, bit by bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def rollouts_of(model, size: int = 4, problems=None):
    """Return rollouts of three problems, or of these, by the policy of `settings`."""
    problems = problems or {seed: next(training_problems(TASK, seed)) for seed in range(3)}
    tct = settings().policy
    return collect(
        LocalBackend(model, batch_size=64), ManyNumbers(), problems, tct, {correct: 1.0}, size=size, seed=0,
        length=LENGTH, block=None,
    )  # fmt: skip
