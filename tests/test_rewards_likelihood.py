"""Pseudo-log-likelihood as a reward: against the definition, and what decides it."""

from __future__ import annotations

import pytest
import torch

from tests.toy_task import micro_model
from twotemp import rewards
from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.rewards.likelihood import PseudoLikelihood

PROBLEM = Problem("a", "countdown-3", "4 9 2 -> 34")
OTHER = Problem("b", "words-2", "pen 9 cup 12 . Ann buys 2 for 21 . 2 of her cheapest cost ?")
ITEMS = [
    (PROBLEM, "4 * 9 = 36 , 36 - 2 = 34"),
    (PROBLEM, "4 * 9 = 36"),
    (PROBLEM, ""),
    (OTHER, "9 + 12 = 21"),
    (PROBLEM, "4 * 9 = 36"),
]
LENGTHS = {"countdown-3": 12, "words-2": 32}


def directly(model, problem: Problem, text: str) -> float:
    """The definition, one position at a time: the canvas of the task, a mask at k, log q of what stood there."""
    prompt, answer = model.encode(problem.prompt), model.tokenizer(text)["input_ids"]
    eos = model.eos_ids[0]
    row = prompt + answer + [eos] * (LENGTHS[problem.task] - len(answer))
    total = 0.0
    for k in range(len(prompt), min(len(prompt) + len(answer) + 1, len(row))):
        ids = torch.tensor([row])
        ids[0, k] = model.mask_id
        with torch.no_grad():
            logits = model.logits(ids, None, ids == model.mask_id)[0]
        logits[list(model.forbidden_ids)] = -torch.inf
        total += float(logits.log_softmax(-1)[row[k]])
    return total


@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_scores_are_the_definition_in_any_batch(batch_size: int) -> None:
    model = micro_model()
    found = PseudoLikelihood(model, batch_size).score(ITEMS)
    expected = [directly(model, problem, text) for problem, text in ITEMS]
    assert len(set(expected)) == 4
    assert found == pytest.approx(expected, abs=1e-4)


def test_the_end_counts_only_where_the_canvas_has_room_for_it() -> None:
    """An answer of all 12 tokens has no EOS to be sure of; a shorter one has one."""
    scorer = PseudoLikelihood(micro_model())
    for text, terms in (("4 * 9 = 36 , 36 - 2 = 34 ,", 12), ("4 * 9 = 36", 6), ("", 1)):
        _, positions = scorer._canvas("countdown-3", PROBLEM.prompt, text)
        assert len(positions) == terms


def test_the_embedded_denoiser_prefers_the_right_operation() -> None:
    scorer = rewards.load("pll:tiny")
    right, wrong = scorer.score([ITEMS[0], (PROBLEM, "4 + 9 = 36 , 36 - 2 = 34")])
    assert right > wrong + 1
    assert scorer.name.startswith("pll tiny ")


def test_what_it_cannot_use_is_refused() -> None:
    with pytest.raises(UserError, match="leave the system text out"):
        rewards.load("pll:tiny", system="think")
    with pytest.raises(UserError, match="batch_size must be >= 1"):
        rewards.load("pll:tiny", batch_size=0)
    with pytest.raises(UserError, match="no model 'tinny'"):
        rewards.load("pll:tinny")
