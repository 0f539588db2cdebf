"""Who wins an election, and Best@k against brute force over all subsets in all orders."""

from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.graded_cells import ballot, elected
from twotemp import metrics
from twotemp.analysis import SELECTORS, Ballot, best_at, best_for, check_selectors, choices, elect
from twotemp.analysis.selectors import probability
from twotemp.errors import UserError
from twotemp.metrics import NO_ANSWER

# --- who wins -------------------------------------------------------------------------------------------------


def test_the_most_votes_win_and_no_answer_never_does():
    assert elect([NO_ANSWER, NO_ANSWER, NO_ANSWER, 1, 0, 1], np.ones(6)) == 3
    assert elect([NO_ANSWER] * 3, np.ones(3)) is None


def test_a_tie_goes_to_the_answer_given_first():
    assert elect([5, 2, 2, 5], np.ones(4)) == 0
    assert elect([2, 5, 5, 2], np.ones(4)) == 0
    assert elect([7, 1, 2], [0.1 + 0.2, 0.3, 0.0]) == 0  # rounding is no reason to win or to lose
    assert elect([7, 1, 2], [0.3, 0.1 + 0.2, 0.0]) == 0


def test_weights_decide_and_must_be_numbers():
    assert elect([0, 0, 1], [0.2, 0.2, 0.5]) == 2
    assert elect([0, 1], [-2.0, -1.0]) == 1
    with pytest.raises(UserError, match="not finite"):
        elect([0, 1], [np.nan, 1.0])
    with pytest.raises(UserError, match="one answer and one weight"):
        elect([0, 1], [1.0])


def test_probability_is_the_logistic_function():
    x = np.array([-800.0, -2.0, 0.0, 3.0, 800.0])
    expected = [0.0, 1 / (1 + math.exp(2)), 0.5, 1 / (1 + math.exp(-3)), 1.0]
    np.testing.assert_allclose(probability(x), expected, atol=1e-15)


# --- Best@k against brute force -------------------------------------------------------------------------------


def take(one: Ballot, at) -> Ballot:
    at = list(at)
    return Ballot(one.question, one.index[at], one.passed[at], one.answers[at], one.spelled, one.reward[at],
                  one.confidence[at], one.likelihood[at])  # fmt: skip


def brute_force(one: Ballot, selector: str, k: int) -> float:
    """Elect in every subset in every order: a tie that goes to the first is then shared evenly.

    That is so between answers given equally often; `questions` has no weights that could tie otherwise.
    """
    wins = []
    for subset in combinations(range(len(one.passed)), k):
        for order in permutations(subset):
            small = take(one, order)
            at = elect(*SELECTORS[selector].election(small))
            wins.append(at is not None and small.passed[at])
    return float(np.mean(wins))


@st.composite
def questions(draw) -> Ballot:
    n = draw(st.integers(1, 5))
    answers = draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n))
    right = draw(st.sets(st.integers(0, 2)))  # the grader is consistent: an answer is right or wrong
    scores = st.lists(st.sampled_from([-1.5, -0.5, 0.0, 0.25, 2.0]), min_size=n, max_size=n)
    sure = st.lists(st.sampled_from([0.23, 0.52, 0.91]), min_size=n, max_size=n)
    return ballot([a in right for a in answers], answers, draw(scores), draw(sure), draw(scores))


@pytest.mark.parametrize("selector", SELECTORS)
@settings(max_examples=40, deadline=None)
@given(one=questions())
def test_best_at_k_is_the_mean_over_all_subsets(selector, one):
    n = len(one.passed)
    ks = [*range(1, n + 1), n + 1]
    found = best_at(elected(one), selector, ks)[0]
    expected = [brute_force(one, selector, k) for k in ks[:-1]]
    np.testing.assert_allclose(found, [*expected, np.nan], atol=1e-9)


def test_with_one_sample_every_selector_is_pass_at_1_and_the_oracle_is_pass_at_k():
    rng = np.random.default_rng(0)
    answers = rng.integers(-1, 4, 16)
    one = elected(ballot(answers == 2, answers, rng.normal(size=16), rng.random(16), rng.normal(size=16)))
    for name in SELECTORS:
        assert best_at(one, name, [1])[0, 0] == pytest.approx(np.mean(answers == 2), abs=0.03)
    expected = metrics.pass_at_k(16, int((answers == 2).sum()), [1, 4, 16])[0]
    np.testing.assert_allclose(best_at(one, "oracle", [1, 4, 16])[0], expected)
    for name in SELECTORS:
        assert (best_at(one, name, [4, 16]) <= best_at(one, "oracle", [4, 16]) + 1e-9).all()


def test_best_for_a_budget_mixes_the_two_neighboring_sample_counts():
    rng = np.random.default_rng(1)
    answers = rng.integers(0, 3, 8)
    one = elected(ballot(answers == 0, answers, rng.normal(size=8)), nfe=10)
    curve = best_at(one, "orm", range(1, 9))
    assert best_for(one, "orm", 40)[0] == pytest.approx(curve[0, 3])
    assert best_for(one, "orm", 43)[0] == pytest.approx(0.7 * curve[0, 3] + 0.3 * curve[0, 4])
    np.testing.assert_allclose(best_for(one, "orm", 43), metrics.at_budget(curve, 10, [43])[:, 0])
    assert best_for(one, "orm", 80)[0] == pytest.approx(curve[0, 7])
    with pytest.raises(UserError, match="do not buy one sample"):
        best_for(one, "orm", 9)


def test_choices_name_the_sample():
    one = elected(
        ballot([0, 1, 1, 0], [1, 0, 0, NO_ANSWER], [3.0, 1.0, 1.0, 9.0]),
        ballot([0, 0], [NO_ANSWER, NO_ANSWER], [0.0, 1.0]),
    )
    assert list(choices(one, "majority")) == [1, None]
    assert list(choices(one, "orm")) == [3, 1]
    assert list(choices(one, "weighted")) == [1, None]
    assert list(choices(one, "oracle")) == [1, 0]


def test_unknown_selectors_and_missing_rewards_are_errors():
    with pytest.raises(UserError, match=r"did you mean 'majority'"):
        check_selectors(["majorty"])
    with pytest.raises(UserError, match="no selector given; name some of majority"):
        check_selectors([])
    one = elected(ballot([1], [0]), scored=False)
    with pytest.raises(UserError, match="needs rewards"):
        best_at(one, "orm", [1])
    with pytest.raises(UserError, match="needs traces"):
        list(choices(one, "confidence"))
    with pytest.raises(UserError, match="needs likelihoods"):
        best_at(one, "pll", [1])


def test_auc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    passed, scores = rng.random(40) < 0.4, rng.integers(0, 6, 40)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[passed] for b in scores[~passed]]
    assert metrics.auc(passed, scores) == pytest.approx(np.mean(pairs))
    assert math.isnan(metrics.auc([1, 1], [0.1, 0.2]))
