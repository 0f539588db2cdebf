"""The choice of a portfolio: shrunken rates by their definition, greedy sets against the best of all sets."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

from twotemp.evaluation import TaskChoice
from twotemp.policies import policy, spell
from twotemp.policies.portfolio import from_order
from twotemp.report.tuning import portfolio_recommendation
from twotemp.tuning.goal import Goal, Tally
from twotemp.tuning.portfolio import choose, expected_misses, greedy_choice, rates
from twotemp.tuning.tuner import TunedPortfolio


def tally(correct: list[int], n: int = 16, cost: float = 1.0) -> Tally:
    return Tally(np.full(len(correct), n), np.array(correct), cost)


def test_expected_misses_are_those_of_the_posterior():
    """P(j wrong) = B(a + c, b + n - c + j) / B(a + c, b + n - c), with the a and b that the first column implies."""
    drawn = tally([0, 0, 1, 3, 12, 16])
    (misses,) = expected_misses([drawn], 5)
    # With c = 0 and c = n known, (b + n) / (a + b + n) and b / (a + b + n) give a and b.
    high, low = misses[0, 1], misses[-1, 1]
    total = 16 / (high - low)  # a + b + n
    a, b = total - 16 - low * total, low * total

    def log_beta(x: float, y: float) -> float:
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    for row, c in enumerate(drawn.correct):
        for j in range(6):
            expected = math.exp(log_beta(a + c, b + 16 - c + j) - log_beta(a + c, b + 16 - c))
            assert misses[row, j] == pytest.approx(expected, rel=1e-9)


def test_no_right_sample_is_not_taken_for_certainty_and_many_samples_are_believed():
    rng = np.random.default_rng(0)
    truth = rng.beta(0.5, 1.0, 400)
    few, many = (Tally(np.full(400, n), rng.binomial(n, truth), 1.0) for n in (8, 4000))
    assert 0 < 1 - expected_misses([few], 1)[0][few.correct == 0, 1].max() < 0.1
    assert abs(1 - expected_misses([many], 1)[0][:, 1] - truth).max() < 0.05
    error = 1 - expected_misses([few], 1)[0][:, 1] - truth
    assert (error**2).mean() < 0.9 * ((few.correct / 8 - truth) ** 2).mean(), "shrinking helps"


def test_the_greedy_set_is_close_to_the_best_of_all_sets():
    rng = np.random.default_rng(1)
    goal = Goal(k=6)
    for _ in range(5):
        tallies = [tally(rng.binomial(16, rng.beta(0.3, 0.6, 30)).tolist()) for _ in range(3)]
        misses = expected_misses(tallies, 6)

        def promise(order, misses=misses) -> float:
            counts = np.bincount(order, minlength=3)
            return float(1 - np.prod([m[:, c] for m, c in zip(misses, counts)], axis=0).mean())

        best = max(promise(order) for order in combinations_with_replacement(range(3), 6))
        assert best - 0.01 <= promise(greedy_choice(tallies, goal)[0]) <= best + 1e-12


def test_policies_that_solve_different_questions_are_mixed_and_the_first_is_the_best_alone():
    left, right = tally([12] * 6 + [0] * 5), tally([0] * 6 + [12] * 5)
    order, single = greedy_choice([right, left], Goal(k=8))
    assert (order[0], order.count(0), order.count(1)) == (1, 4, 4)
    judged = rates([right, left], order, Goal(k=8))
    assert judged.mean() > 0.97
    assert single == 1
    assert rates([right, left], [1] * 8, Goal(k=8)).mean() == pytest.approx(6 / 11, abs=0.01)


def test_at_equal_nfe_a_cheap_policy_gets_more_samples():
    dear, cheap = tally([8] * 12, cost=10.0), tally([6] * 12, cost=2.0)
    order, single = greedy_choice([dear, cheap], Goal(nfe=20))
    assert set(order) == {1}
    assert len(order) == 10
    assert single == 1
    assert greedy_choice([dear, cheap], Goal(k=1)) == ([0], 0)


def draw(truth: np.ndarray, rng: np.random.Generator) -> list[Tally]:
    """Return 16 samples of each question under each policy: [policies, questions]."""
    return [tally(rng.binomial(16, row).tolist()) for row in truth]


def test_policies_with_equal_rates_are_not_mixed():
    """Nothing is gained by mixing them, although each has its own lucky questions."""
    rng, goal = np.random.default_rng(2), Goal(k=16)
    gains, gains_apart, mixed = [], [], 0
    for _ in range(8):
        rates_of_questions = rng.beta(0.3, 0.9, 40)
        tallies = draw(np.stack([rates_of_questions] * 4), rng)
        apart = np.concatenate([expected_misses([tally], 16) for tally in tallies])
        for misses, gains_here in ((expected_misses(tallies, 16), gains), (apart, gains_apart)):
            gains_here.append(misses[:, :, 16].mean() - misses[:, :, 4].prod(axis=0).mean())
        mixed += len(set(choose(tallies, goal).order)) > 1
    assert 0 <= np.mean(gains) < 0.3 * np.mean(gains_apart)
    assert mixed <= 2


def test_a_portfolio_with_a_demonstrated_gain_is_chosen():
    rng = np.random.default_rng(3)
    left, right = rng.permutation(np.repeat([0.0, 0.3], 20)), np.full(40, 0.02)
    choice = choose(draw(np.stack([left, 0.32 - left, right]), rng), Goal(k=8))
    assert {0, 1} <= set(choice.order)
    gap = choice.compared
    assert gap.portfolio - gap.single == pytest.approx(float(gap.difference.mean[0]), abs=1e-9)
    assert gap.questions == 40
    assert gap.difference.low[0] > 0
    pool = [policy("lc"), policy("tlc"), policy("ar")]
    chosen = from_order([pool[number] for number in choice.order])
    told = TunedPortfolio(
        Goal(k=8), TaskChoice("countdown-3"), "tiny", 960, 3, chosen, pool[choice.single], gap
    )
    assert f"Use {spell(chosen)}: pass@8" in portfolio_recommendation(told)
    alone = replace(told, portfolio=told.single)
    assert f"Use {told.single.name} for all samples" in portfolio_recommendation(alone)


def test_without_enough_samples_for_the_goal_one_policy_draws_all():
    rng = np.random.default_rng(4)
    choice = choose(draw(np.array([[0.1, 0.5, 0.3], [0.5, 0.1, 0.3]]), rng), Goal(k=32))
    assert len(choice.order) == 32
    assert set(choice.order) == {choice.single}
    assert choice.compared.questions == 0
