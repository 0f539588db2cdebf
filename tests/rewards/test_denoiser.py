"""Denoisers as reward models, against the definition of their scores."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.toy_task import micro_model
from twotemp import rewards
from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.rewards.denoiser import DenoiserReward, answer_row, pseudo, scaled_thirds

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


def directly(model, problem: Problem, text: str, views) -> float:
    """The definition, one view at a time: mask its positions in the whole row, read log q of the hidden tokens."""
    prompt, answer = model.encode(problem.prompt), model.tokenizer(text)["input_ids"]
    eos = model.eos_ids[0]
    row = prompt + answer + [eos] * (LENGTHS[problem.task] - len(answer))
    total = 0.0
    for view in views(len(prompt), len(prompt) + len(answer), len(row)):
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
    ("build", "views", "weight"), [(pseudo, alone, 1), (scaled_thirds, whole_and_every_third, 0.15)]
)
def test_scores_are_the_definition_in_any_batch(build, views, weight: float, batch_size: int) -> None:
    model = micro_model()
    scores = DenoiserReward(model, build, "x", batch_size).score(ITEMS)
    expected = [weight * directly(model, problem, text, views) for problem, text in ITEMS]
    assert len(set(expected)) == 4
    assert scores == pytest.approx(expected, abs=1e-4)


def test_a_check_asks_for_less_than_it_hides() -> None:
    """4 * 9 = [36]: the problem and all that follows are hidden, and the result alone is asked for."""
    model = micro_model()
    (problem, text), (_, shorter) = ITEMS[:2]
    without, with_checks = (
        DenoiserReward(model, scaled_thirds, "x", 3, checks=checks).score(ITEMS[:2])
        for checks in (False, True)
    )
    prompt = len(model.encode(problem.prompt))
    for index, (answer, results) in enumerate(((text, (4, 10)), (shorter, (4,)))):
        completion = answer_row(model, problem, answer)
        row = torch.tensor(completion.prompt + completion.tokens)
        expected = 0.0
        for result in results:
            position = prompt + result
            ids = row.clone()[None]
            ids[0, :prompt] = ids[0, position:] = model.mask_id
            with torch.no_grad():
                logits = model.logits(ids, None, torch.arange(len(row))[None] == position)
            logits[:, list(model.forbidden_ids)] = -torch.inf
            expected += float(logits.log_softmax(-1)[0, row[position]])
        assert with_checks[index] - without[index] == pytest.approx(expected, abs=1e-4)


def test_eos_counts_only_where_the_row_has_room_for_it() -> None:
    """An answer of all 12 tokens has no EOS; a shorter one has one that counts, whatever fills the rest."""
    model = micro_model()
    for text, terms in (("4 * 9 = 36 , 36 - 2 = 34 ,", 12), ("4 * 9 = 36", 6), ("", 1)):
        completion = answer_row(model, PROBLEM, text)
        assert completion.scored(model.eos_ids) == terms
        assert len(completion.tokens) == 12


def test_each_source_has_its_queries() -> None:
    items = ITEMS[:2]
    for source, build in (
        ("likelihood:tiny", scaled_thirds),
        ("pll:tiny", pseudo),
        ("verifier:tiny", scaled_thirds),
    ):
        reward = rewards.load(source)
        same = DenoiserReward(reward.model, build, "x", checks=source.startswith("verifier"))
        assert reward.score(items) == pytest.approx(same.score(items), rel=1e-5)
        assert reward.name.startswith(f"{source} ")


def test_a_token_that_the_model_never_writes_is_an_error_not_minus_infinity() -> None:
    with pytest.raises(UserError, match="does it contain a token that the model never writes"):
        DenoiserReward(micro_model(), scaled_thirds, "x").score([(PROBLEM, "4 <|mdm_mask|> 9")])


def test_no_answers_have_no_scores() -> None:
    assert DenoiserReward(micro_model(), pseudo, "x").score([]) == []


def test_the_embedded_verifier_is_for_the_embedded_tasks() -> None:
    reward = rewards.load()
    assert reward.name.startswith("verifier ")
    right, wrong = reward.score([ITEMS[0], (PROBLEM, "4 + 9 = 36 , 36 - 2 = 34")])
    assert right > wrong
    with pytest.raises(
        UserError, match=r"knows only the embedded tasks, not gsm8k.*--rm nvidia/AceMath-7B-RM"
    ):
        reward.score([(Problem("a", "gsm8k", "How many?"), "3")])


def test_the_embedded_denoiser_prefers_the_right_operation() -> None:
    reward = rewards.load("pll:tiny")
    right, wrong = reward.score([ITEMS[0], (PROBLEM, "4 + 9 = 36 , 36 - 2 = 34")])
    assert right > wrong + 1


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UserError, match="leave the system text out"):
        rewards.load("pll:tiny", system="think")
    with pytest.raises(UserError, match="batch_size must be >= 1"):
        rewards.load("pll:tiny", batch_size=0)
    with pytest.raises(UserError, match="no model 'tinny'"):
        rewards.load("pll:tinny")
