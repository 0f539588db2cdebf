"""The choice of a portfolio: greedy sets against the best of all sets, and what a portfolio has to show."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

from twotemp.evaluation import TaskChoice
from twotemp.policies import policy, spell
from twotemp.policies.spelling import from_order
from twotemp.report.tuning import portfolio_recommendation
from twotemp.tuning.goal import Goal, Tally
from twotemp.tuning.portfolio import choose, greedy_choice, rates
from twotemp.tuning.tuner import TunedPortfolio


def tally(correct: list[int], n: int = 16, cost: float = 1.0) -> Tally:
    return Tally(np.full(len(correct), n), np.array(correct), cost)


def draw(truth: np.ndarray, rng: np.random.Generator) -> list[Tally]:
    """Return 16 samples of each question under each policy: [policies, questions]."""
    return [tally(rng.binomial(16, row).tolist()) for row in truth]


def test_the_greedy_set_is_close_to_the_best_of_all_sets():
    rng = np.random.default_rng(1)
    goal = Goal(k=6)
    for _ in range(5):
        tallies = [tally(rng.binomial(16, rng.beta(0.3, 0.6, 30)).tolist()) for _ in range(3)]
        order, single = greedy_choice(tallies, goal)
        sets = combinations_with_replacement(range(3), 6)
        best = max(float(rates(tallies, members, goal).mean()) for members in sets)
        alone = [float(rates(tallies, [policy] * 6, goal).mean()) for policy in range(3)]
        assert best - 0.01 <= rates(tallies, order, goal).mean() <= best + 1e-12
        assert alone[single] == max(alone)


@pytest.mark.parametrize("goal", [Goal(k=5), Goal(nfe=11)])
def test_each_sample_of_a_greedy_order_is_the_most_useful_next_one(goal):
    rng = np.random.default_rng(5)
    truth = rng.permuted(np.repeat([[0.0, 0.4]], 12, axis=1).repeat(3, axis=0), axis=1)
    tallies = [replace(t, cost=cost) for t, cost in zip(draw(truth, rng), (1.0, 2.0, 4.0))]
    order, _ = greedy_choice(tallies, goal)
    assert len(set(order)) > 1
    before = 0.0
    for k in range(1, len(order) + 1):
        options = [[*order[: k - 1], policy] for policy in range(3)]
        after = [float(rates(tallies, option, Goal(k=k)).mean()) for option in options]
        gains = [
            (mean - before) / (1 if goal.k else tallies[policy].cost) for policy, mean in enumerate(after)
        ]
        assert gains[order[k - 1]] == pytest.approx(max(gains), abs=1e-12)
        before = after[order[k - 1]]


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


def test_policies_with_equal_rates_are_not_mixed():
    """Nothing is gained by mixing them, although each has its own lucky questions."""
    rng, goal = np.random.default_rng(2), Goal(k=16)
    gaps, mixed = [], 0
    for _ in range(20):
        tallies = draw(np.stack([rng.beta(0.3, 0.9, 40)] * 4), rng)
        alone = [rates(tallies, [policy] * 16, goal).mean() for policy in range(4)]
        gaps.append(rates(tallies, [0, 1, 2, 3] * 4, goal).mean() - np.mean(alone))
        mixed += len(set(choose(tallies, goal).order)) > 1
    error = np.std(gaps) / math.sqrt(len(gaps))
    assert abs(np.mean(gaps)) < 3 * error, "the estimates are unbiased"
    assert error < 0.004
    assert mixed <= 5


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
