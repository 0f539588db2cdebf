"""The likelihood by a denoiser as a reward: against the definition, and what decides it."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.toy_task import micro_model
from twotemp import rewards
from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.rewards.likelihood import (
    Likelihood,
    all_and_thirds,
    canvas_of,
    each_alone,
    likelihood_and_checks,
)

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


def directly(model, problem: Problem, text: str, masked_together) -> float:
    """The definition, one view at a time: the canvas of the task, masks at V, log q of what stood there."""
    prompt, answer = model.encode(problem.prompt), model.tokenizer(text)["input_ids"]
    eos = model.eos_ids[0]
    row = prompt + answer + [eos] * (LENGTHS[problem.task] - len(answer))
    total = 0.0
    for view in masked_together(len(prompt), len(prompt) + len(answer), len(row)):
        ids = torch.tensor([row])
        ids[0, view] = model.mask_id
        with torch.no_grad():
            logits = model.logits(ids, None, ids == model.mask_id)
        logits[:, list(model.forbidden_ids)] = -torch.inf
        total += float(logits.log_softmax(-1)[torch.arange(len(view)), torch.tensor(row)[view]].sum())
    return total


def alone(first: int, written: int, stop: int) -> list[list[int]]:
    return [[k] for k in range(first, min(written + 1, stop))]


def whole_and_every_third(first: int, written: int, stop: int) -> list[list[int]]:
    answer = list(range(first, stop))
    return [answer, *([k for k in answer if (k - first) % 3 == third] for third in range(3))]


@pytest.mark.parametrize("batch_size", [1, 5, 32])
@pytest.mark.parametrize(
    ("views", "same", "weight"), [(each_alone, alone, 1), (all_and_thirds, whole_and_every_third, 0.15)]
)
def test_scores_are_the_definition_in_any_batch(views, same, weight: float, batch_size: int) -> None:
    model = micro_model()
    found = Likelihood(model, views, "x", batch_size).score(ITEMS)
    expected = [weight * directly(model, problem, text, same) for problem, text in ITEMS]
    assert len(set(expected)) == 4
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_check_asks_for_less_than_it_covers() -> None:
    """4 * 9 = [36]: the problem and all that follows are covered, and the result alone is asked for."""
    model = micro_model()
    views = likelihood_and_checks(model)
    (problem, text), (_, shorter) = ITEMS[:2]
    likelihood, both = (Likelihood(model, v, "x", 3).score(ITEMS[:2]) for v in (all_and_thirds, views))
    prompt = len(model.encode(problem.prompt))
    for place, (answer, results) in enumerate(((text, (4, 10)), (shorter, (4,)))):
        row = torch.tensor(canvas_of(model, problem, answer).ids)
        expected = 0.0
        for result in results:
            at = prompt + result
            ids = row.clone()[None]
            ids[0, :prompt] = ids[0, at:] = model.mask_id
            with torch.no_grad():
                logits = model.logits(ids, None, torch.arange(len(row))[None] == at)
            logits[:, list(model.forbidden_ids)] = -torch.inf
            expected += float(logits.log_softmax(-1)[0, row[at]])
        assert both[place] - likelihood[place] == pytest.approx(expected, abs=1e-4)


def test_the_end_counts_only_where_the_canvas_has_room_for_it() -> None:
    """An answer of all 12 tokens has no EOS to be sure of; a shorter one has one."""
    for text, terms in (("4 * 9 = 36 , 36 - 2 = 34 ,", 12), ("4 * 9 = 36", 6), ("", 1)):
        canvas = canvas_of(micro_model(), PROBLEM, text)
        assert len(each_alone(canvas)) == terms


def test_each_name_has_its_views() -> None:
    asked = ITEMS[:2]
    for source, views in (("likelihood:tiny", all_and_thirds), ("pll:tiny", each_alone)):
        judge = rewards.load(source)
        assert judge.score(asked) == pytest.approx(Likelihood(judge.model, views, "x").score(asked), rel=1e-5)
    judge = rewards.load("verifier:tiny")
    views = likelihood_and_checks(judge.model)
    assert judge.score(asked) == pytest.approx(Likelihood(judge.model, views, "x").score(asked), rel=1e-5)
    assert judge.name.startswith("verifier:tiny ")


def test_a_token_that_the_model_never_writes_is_an_error_not_minus_infinity() -> None:
    with pytest.raises(UserError, match="a token in it that the model never writes"):
        Likelihood(micro_model(), all_and_thirds, "x").score([(PROBLEM, "4 <|mdm_mask|> 9")])


def test_the_embedded_verifier_is_for_the_embedded_tasks() -> None:
    judge = rewards.load()
    assert judge.name.startswith("verifier ")
    right, wrong = judge.score([ITEMS[0], (PROBLEM, "4 + 9 = 36 , 36 - 2 = 34")])
    assert right > wrong
    with pytest.raises(
        UserError, match=r"knows only the embedded tasks, not gsm8k.*--rm nvidia/AceMath-7B-RM"
    ):
        judge.score([(Problem("a", "gsm8k", "How many?"), "3")])


def test_the_embedded_denoiser_prefers_the_right_operation() -> None:
    scorer = rewards.load("pll:tiny")
    right, wrong = scorer.score([ITEMS[0], (PROBLEM, "4 + 9 = 36 , 36 - 2 = 34")])
    assert right > wrong + 1
    assert scorer.name.startswith("pll:tiny ")


def test_what_it_cannot_use_is_refused() -> None:
    with pytest.raises(UserError, match="leave the system text out"):
        rewards.load("pll:tiny", system="think")
    with pytest.raises(UserError, match="batch_size must be >= 1"):
        rewards.load("pll:tiny", batch_size=0)
    with pytest.raises(UserError, match="no model 'tinny'"):
        rewards.load("pll:tinny")
