"""The race on simulated tables, where the winner is known."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.helpers.simulated_races import Simulated, unrelated
from twotemp import metrics
from twotemp.errors import UserError
from twotemp.evaluation import Plan, TaskChoice
from twotemp.policies import policy
from twotemp.tuning import (
    Goal,
    Measurement,
    Tally,
    expand,
    expected_scores,
    policy_distances,
    standings,
)
from twotemp.tuning.race import FIRST_QUESTIONS, PROBE, beaten_by, frontier, smoothed_means, survivors
from twotemp.tuning.tuner import validation


def spent(rounds, prices) -> float:
    measured = {candidate: round_.questions for round_ in rounds for candidate in round_.measurements}
    return sum(prices[candidate] * questions for candidate, questions in measured.items())


# --- the winner


@pytest.mark.parametrize("seed", range(5))
def test_with_common_noise_the_best_always_wins(seed):
    """Passing is monotone in the rate then: no candidate is ever ahead of a better one, on any questions."""
    rates = np.random.default_rng(seed).permutation(np.linspace(0.2, 0.7, 48))
    simulated = Simulated(rates, seed=seed, questions=500)
    rounds = simulated.race(0.1 * simulated.full)
    assert standings(rounds, unrelated)[0].candidate == int(np.argmax(rates))
    assert spent(rounds, simulated.prices) <= 0.1 * simulated.full


@pytest.mark.slow
def test_with_independent_noise_little_is_lost_on_average_for_a_tenth_of_the_grid():
    """The exact regret of a race that chose at random would be 12.5 points here."""
    regret = []
    for seed in range(8):
        rates = np.random.default_rng(100 + seed).permutation(np.linspace(0.35, 0.6, 48))
        simulated = Simulated(rates, seed=seed, common=False, questions=600)
        winner = standings(simulated.race(0.1 * simulated.full), unrelated)[0].candidate
        regret.append(max(rates) - rates[winner])
    assert np.mean(regret) < 0.03


def test_rounds_halve_the_candidates_add_questions_and_keep_within_the_budget():
    simulated = Simulated(np.linspace(0.3, 0.31, 32), common=False)  # no candidate is beaten significantly
    rounds = simulated.race(0.2 * simulated.full)
    assert [len(r.measurements) for r in rounds] == [32, 16, 8, 4]
    assert all(a.questions < b.questions for a, b in pairwise(rounds))
    assert 0.19 * simulated.full < spent(rounds, simulated.prices) <= 0.2 * simulated.full
    # A round costs about the same as any other.
    new = [
        len(r.measurements) * (r.questions - q) for r, q in zip(rounds, [0, *(r.questions for r in rounds)])
    ]
    assert max(new) < 1.3 * min(new)


def test_a_candidate_that_is_significantly_worse_is_eliminated_at_once():
    rates = [0.9] + [0.1] * 31
    rounds = Simulated(rates, common=False).race(60_000)
    assert rounds[0].kept == (0,)
    assert len(rounds) == 1


def test_a_candidate_is_only_beaten_by_one_that_costs_no_more():
    """The best for less stays in the race: the frontier is part of the result."""
    simulated = Simulated([0.8, 0.5, 0.2], prices=[40.0, 10.0, 20.0], common=False)
    measurements = dict(enumerate(simulated.measure(range(3), 400)))
    assert beaten_by(measurements) == {2: 1}
    assert frontier(measurements) == [1, 0]
    last = standings(simulated.race(20_000), unrelated)
    assert [standing.candidate for standing in last if standing.on_frontier] == [0, 1]


def test_ties_are_ranked_by_cost():
    simulated = Simulated([0.5, 0.5], prices=[20.0, 10.0])
    first, second = standings(simulated.race(20_000), unrelated)
    assert first.candidate == 1
    assert first.behind == (0.0, 0.0, 0.0)
    assert first.chance == second.chance == 0.5
    assert not second.on_frontier


def test_of_tied_candidates_those_stay_that_are_better_at_half_the_budget():
    """On few questions nearly all tie; keeping the cheap ones would lose the best before it is known."""
    tied = {
        i: Measurement(np.ones(4), cost=float(i), spent=1.0, half_budget=np.full(4, 0.1 * i))
        for i in range(10)
    }
    assert survivors(tied, unrelated) == (0, 6, 7, 8, 9)  # the cheapest is the frontier


def test_smoothing_helps_if_questions_are_few():
    """Ten candidates in a row whose rates rise slowly: with few questions only their neighbors reveal the order."""
    rates = np.linspace(0.4, 0.6, 10)
    line = abs(np.arange(10.0)[:, None] - np.arange(10.0))
    noise = np.random.default_rng(0)

    def error(questions: int, steps: np.ndarray) -> float:
        passed = [(noise.random((questions, 10)) < rates).astype(float) for _ in range(200)]
        return float(np.mean([(smoothed_means(values, steps) - rates) ** 2 for values in passed]))

    assert error(8, line) < 0.8 * error(8, unrelated(rates))
    assert error(4000, line) == pytest.approx(error(4000, unrelated(rates)), rel=0.5)
    values = noise.random((5, 10))
    alone = smoothed_means(values, unrelated(rates))
    assert alone.argsort().tolist() == values.mean(0).argsort().tolist()
    assert np.allclose(smoothed_means(np.ones((3, 10)), line), 1.0)  # nothing to tell apart


def test_distances_between_policies():
    policies = [policy("tct", t_token=t, t_pos=p) for t in (0.6, 0.8, 1.2) for p in (0.0, 0.1)]
    steps = policy_distances(
        [*policies, policy("fork", t_token=0.6, t_pos=0.0, threshold=policies[0].threshold)]
    )
    assert steps[0, :6].tolist() == [0, 1, 1, 2, 2, 3]  # the next value, however far it is
    assert steps[0, 6] == 1  # another structure, the same parameters
    assert (steps == steps.T).all()


def test_half_a_goal():
    one_of_four = Tally(np.array([4]), np.array([1]), 5.0)
    assert Goal.parse("pass@4").half(5.0).values(one_of_four) == pytest.approx([0.5])
    assert Goal.parse("pass@NFE=20").half(5.0).values(one_of_four) == pytest.approx([0.5])
    assert Goal.parse("pass@1").half(5.0) == Goal(k=1)


def test_half_a_goal_is_one_sample_at_least():
    """If the budget buys one sample, half of it buys none, and an expensive policy would have no expected score."""
    goal, tally = Goal.parse("pass@NFE=20"), Tally(np.array([2]), np.array([2]), 15.0)
    expensive = Measurement(goal.values(tally), 15.0, 30.0, goal.half(15.0).values(tally))
    assert expected_scores({"expensive": expensive}, unrelated) == {"expensive": 1.0}


def test_frontier_by_brute_force():
    noise = np.random.default_rng(3)
    for _ in range(50):
        points = {
            i: Measurement(np.array([noise.integers(5) / 4]), float(noise.integers(5)), 1.0) for i in range(8)
        }
        got = frontier(points)
        for i, one in points.items():
            others = [o for j, o in points.items() if j != i]
            worse = any(
                o.cost <= one.cost and o.mean >= one.mean and (o.cost, o.mean) != (one.cost, one.mean)
                for o in others
            )
            twins = [j for j, o in points.items() if (o.cost, o.mean) == (one.cost, one.mean)]
            assert (i in got) == (not worse and i == twins[0])


# --- budgets


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_enough():
    simulated = Simulated([0.5] * 64)
    with pytest.raises(UserError, match="raise --budget") as error:
        simulated.race(2_000)
    enough = float(str(error.value).split("take about ")[1].split(";")[0].replace(",", ""))
    assert simulated.race(enough)[0].questions >= FIRST_QUESTIONS


def test_no_more_questions_than_there_are():
    simulated = Simulated([0.4, 0.5], questions=5)
    (only,) = simulated.race(1e9)
    assert only.questions == 5


def test_a_candidate_that_cannot_be_measured_is_eliminated():
    simulated = Simulated([0.5] * 8)
    simulated.passed[:, 3] = math.nan  # one sample costs more than the goal allows
    assert 3 not in {
        standing.candidate for standing in standings(simulated.race(40_000), unrelated) if standing.finalist
    }
    simulated.passed[:] = math.nan
    simulated.calls.clear()
    with pytest.raises(UserError, match="no candidate could be measured"):
        simulated.race(40_000)
    assert simulated.calls == [(8, PROBE)]  # the budget is not spent on it


def test_an_unmeasured_candidate_does_not_bring_others_to_the_frontier():
    def measured(rate: float) -> Measurement:
        return Measurement(np.full(4, rate), cost=200.0, spent=800.0)

    assert frontier({"low": measured(0.2), "unknown": measured(math.nan), "high": measured(0.9)}) == ["high"]


# --- goals and candidates


def test_goals():
    tally = Tally(np.array([4, 4]), np.array([2, 0]), 8.0)
    at = Goal.parse("pass@2")
    assert str(at) == "pass@2"
    assert at.samples(5.0) == 2
    assert at.price(5.0) == 10.0
    assert np.allclose(at.values(tally), metrics.pass_at_k([4, 4], [2, 0], [2])[:, 0])
    bought = Goal.parse("pass@NFE=20")
    assert bought.samples(8.0) == 3
    assert bought.price(8.0) == 20.0
    # 20 NFE buy 2.5 samples: the mean of pass@2 and pass@3.
    assert bought.values(tally)[0] == pytest.approx((1 - 1 / 6 + 1.0) / 2)
    assert np.isnan(bought.values(replace(tally, cost=30.0))).all()
    with pytest.raises(
        UserError, match=r"buys 5,000 samples of 4\.0 NFE per question, more than 4,096; lower it"
    ):
        Goal.parse("pass@NFE=20000").samples(4.0)  # rather than a race in which nothing can be measured


@pytest.mark.parametrize(
    "text", ["pass@0", "pass@", "pass@1.5", "pass@NFE=0", "accuracy", "pass@-1", "pass@5000"]
)
def test_bad_goals_are_refused(text):
    with pytest.raises(UserError, match="write pass@16"):
        Goal.parse(text)


def test_candidates_are_all_combinations_of_a_policys_parameters():
    found = expand(["tct:threshold=0.6|0.8"])
    assert {p.threshold for p in found} == {0.6, 0.8}
    assert {p.t_pos for p in found} == {0.0, 0.1, 0.3}
    assert len(found) == 2 * 3 * 4
    assert expand(["tlc:t_token=0.8,t_pos=0|1,k=1"]) == (policy("tlc", t_pos=0.0), policy("tlc", t_pos=1.0))
    assert not {p.k for p in expand(["ct"])} - {1}


def test_policies_that_decode_alike_are_tried_once():
    both = expand(["lc", "tlc"])
    assert len(both) == len(expand(["tlc"]))
    assert {p.name for p in both if p.t_pos == 0} == {"lc"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tcl", "did you mean 'tlc'"),
        ("tct:thresold=0.5", "did you mean 'threshold'"),
        ("lc:t_pos=0|1", "lc is tlc at T_pos = 0"),
        ("tct:t_pos", "name=value"),
        ("tct:t_pos=warm|0.1", "not a number"),
    ],
)
def test_bad_candidates_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        expand([spec])


def test_tuning_uses_validation_problems_unless_a_subset_is_named():
    def subset(task: str, **more: str) -> str | None:
        return validation(Plan((TaskChoice(task, **more),), (policy("lc"),))).tasks[0].subset

    assert subset("countdown-3") == "validation"
    assert subset("countdown-3", subset="test:7") == "test:7"
    assert subset("gsm8k") is None
