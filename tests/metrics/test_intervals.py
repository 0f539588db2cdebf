"""A 95 % interval covers the truth 92 to 98 times in a hundred, also near 0 and 100 % and with few questions."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from twotemp import metrics

STUDIES = 1000
TRUTHS = (0.09, 0.4, 0.75, 0.985)
QUESTIONS = (20, 50, 100)


def solved_or_not(rng, truth, shape):
    """pass@n: a question is solved or not."""
    return (rng.random(shape) < truth).astype(float)


def rates(concentration: float, n: int, k: int):
    """pass@k from n samples of questions whose rates are Beta with this concentration; its mean is the truth."""

    def draw(rng, truth, shape):
        low, high = 0.0, 1.0  # of the Beta's mean: E[(1 - p)^k] = prod_j ((1 - m) s + j) / (s + j)
        for _ in range(60):
            m = (low + high) / 2
            miss = np.prod([((1 - m) * concentration + j) / (concentration + j) for j in range(k)])
            low, high = (m, high) if 1 - miss < truth else (low, m)
        right = rng.binomial(n, rng.beta(m * concentration, (1 - m) * concentration, shape))
        value = np.array([1 - comb(n - c, k) / comb(n, k) for c in range(n + 1)])
        return value[right]

    return draw


FAMILIES = {
    "solved or not": solved_or_not,
    "mostly 0 or 1": rates(0.5, 16, 1),
    "spread out": rates(2, 16, 1),
    "alike": rates(10, 64, 1),
    "all the same": rates(1e6, 16, 1),
    "pass@4": rates(1, 16, 4),
    "pass@16": rates(2, 64, 16),
}


def covered(draw, truth: float, questions: int, method: str = "bayesian") -> float:
    """Columns are studies: one call estimates them all."""
    rng = np.random.default_rng([questions, round(1000 * truth)])
    found = metrics.bootstrap(
        draw(rng, truth, (questions, STUDIES)), method=method, resamples=2000, seed=questions
    )
    return float(np.mean((found.low <= truth) & (truth <= found.high)))


@pytest.mark.slow
@pytest.mark.parametrize("questions", QUESTIONS)
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_interval_covers_the_truth(family, truth, questions):
    assert 0.92 <= covered(FAMILIES[family], truth, questions) <= 0.98


def test_near_the_bounds_it_covers_unlike_the_percentile_method():
    """The quick version: 20 questions, of which three in four studies solve all."""
    assert 0.92 <= covered(solved_or_not, 0.985, 20) <= 0.98
    assert covered(solved_or_not, 0.985, 20, "percentile") < 0.4


# --- curves: pass@k for rising k ------------------------------------------------------------------------------

KS = (1, 2, 4, 8, 16, 32, 64)


def beta_rates(mean: float, concentration: float):
    return lambda rng, shape: rng.beta(mean * concentration, (1 - mean) * concentration, shape)


def some_impossible(share: float, rate: float):
    """Questions with this rate, of which a share can never be solved."""
    return lambda rng, shape: np.where(rng.random(shape) < share, 0.0, rate)


CURVES = {
    "mostly 0 or 1": beta_rates(0.6, 0.5),
    "spread out": beta_rates(0.3, 2),
    "alike": beta_rates(0.3, 10),
    "30 % impossible": some_impossible(0.3, 0.3),
}
# About every tenth study draws no impossible question, so that nothing in its data shows that there are any.
RARE = {
    "5 % impossible": (some_impossible(0.05, 0.3), 50),
    "5 % impossible, others easy": (some_impossible(0.05, 0.6), 30),
    "3 % impossible": (some_impossible(0.03, 0.3), 100),
    "10 % impossible": (some_impossible(0.1, 0.7), 20),
    "10 % impossible, others hard": (some_impossible(0.1, 0.3), 20),
}


def covered_curve(draw, questions: int, studies: int) -> dict[int, float]:
    """Return the coverage at each k whose truth is not nearly 0 or 1; the ends of every study must rise with k."""
    rng = np.random.default_rng(questions)
    chances = draw(rng, 200_000)
    truth = np.array([np.mean(1 - (1 - chances) ** k) for k in KS])
    hits = np.zeros(len(KS))
    for _ in range(studies):
        right = rng.binomial(KS[-1], draw(rng, questions))
        found = metrics.bootstrap(metrics.pass_at_k(KS[-1], right, KS), resamples=1000)
        assert (np.diff(found.low) >= 0).all()
        assert (np.diff(found.high) >= 0).all()
        hits += (found.low <= truth) & (truth <= found.high)
    return {k: float(hit / studies) for k, hit, rate in zip(KS, hits, truth) if 0.05 < rate < 0.985}


def test_along_a_curve_it_covers_although_no_impossible_question_was_drawn():
    """The quick version: a small variance does not show that all questions can be solved."""
    coverage = covered_curve(*RARE["10 % impossible"], 300)
    assert all(0.92 <= value <= 0.98 for value in coverage.values()), coverage


@pytest.mark.slow
@pytest.mark.parametrize("curve", RARE)
def test_intervals_cover_when_unsolvable_questions_are_rare(curve):
    coverage = covered_curve(*RARE[curve], 2000)
    # At small k one case has 91.6 %; a larger weight would cover more than 98 % where all questions are the same.
    assert all((0.92 if k >= 16 else 0.91) <= value <= 0.98 for k, value in coverage.items()), coverage


@pytest.mark.slow
@pytest.mark.parametrize("questions", QUESTIONS)
@pytest.mark.parametrize("curve", CURVES)
def test_the_interval_covers_along_a_curve(curve, questions):
    coverage = covered_curve(CURVES[curve], questions, 2000)
    assert len(coverage) >= 3
    assert all(0.92 <= value <= 0.98 for value in coverage.values()), coverage


@pytest.mark.parametrize("questions", [10, 30])
@pytest.mark.parametrize("n", [8, 64])
def test_both_ends_of_an_interval_rise_with_k(questions, n):
    """The lower end used to fall once all questions were solved: 80.5 at k = 4 and 74.0 at k = 8."""
    rng = np.random.default_rng(n)
    for _ in range(20):
        right = rng.integers(n // 4, n + 1, questions)
        curve = metrics.bootstrap(metrics.pass_at_k(n, right, range(1, n + 1)), resamples=2000)
        assert curve.mean[-1] == 1
        assert (np.diff(curve.low) >= 0).all()
        assert (np.diff(curve.high) >= 0).all()
        assert (curve.low <= curve.mean).all()


def test_columns_that_are_not_a_curve_do_not_influence_each_other():
    values = np.random.default_rng(0).random((20, 3))
    together = metrics.bootstrap(values, resamples=500)
    alone = [metrics.bootstrap(values[:, [i]], resamples=500) for i in range(3)]
    assert together.low == pytest.approx([one.low[0] for one in alone], abs=0.02)
    assert together.mean.argsort().tolist() != [0, 1, 2], "else this would be no test"


# --- differences ----------------------------------------------------------------------------------------------


def gain_or_loss(gain: float, loss: float):
    def draw(rng, shape):
        u = rng.random(shape)
        return (u < gain).astype(float) - (u > 1 - loss), gain - loss

    return draw


def same_questions(first: float, second: float, concentration: float, n: int):
    """pass@1 of two policies that find the same questions hard: the second's rate follows from the first's."""

    def draw(rng, shape):
        p = rng.beta(first * concentration, (1 - first) * concentration, shape)
        return rng.binomial(n, p) / n - rng.binomial(n, p * second / first) / n, first - second

    return draw


PAIRS = {
    "one in fifty": gain_or_loss(0.02, 0),
    "one in ten": gain_or_loss(0.1, 0),
    "both ways": gain_or_loss(0.1, 0.02),
    "no difference": gain_or_loss(0.05, 0.05),
    "alike": same_questions(0.4, 0.4, 2, 16),
    "a little better": same_questions(0.4, 0.35, 2, 64),
    "near 100 %": same_questions(0.98, 0.9, 2, 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("questions", QUESTIONS)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_interval_of_a_difference_covers_it(pair, questions):
    """From below only: where nearly all questions are ties no rule can miss as often as one time in twenty."""
    difference, truth = PAIRS[pair](np.random.default_rng(questions), (questions, STUDIES))
    found = metrics.paired_bootstrap(difference, np.zeros_like(difference), resamples=2000)
    assert np.mean((found.low <= truth) & (truth <= found.high)) >= 0.92


# --- single values --------------------------------------------------------------------------------------------


def test_solved_or_not_is_a_beta_posterior():
    from scipy import stats

    for solved, questions in [(20, 20), (19, 20), (0, 50), (3, 50), (40, 100)]:
        found = metrics.bootstrap([1.0] * solved + [0.0] * (questions - solved))
        low, high = stats.beta.ppf([0.025, 0.975], solved + 0.8, questions - solved + 0.8)
        low, high = min(low, solved / questions), max(high, solved / questions)
        assert [found.low[0], found.high[0]] == pytest.approx([low, high], abs=0.008)


def test_unanimous_questions_leave_uncertainty():
    found = metrics.bootstrap(np.ones(20))
    assert (found.mean[0], found.high[0]) == (1, 1)
    assert 0.8 < found.low[0] < 0.92
    ties = metrics.paired_bootstrap(np.ones(20), np.ones(20))
    assert ties.mean[0] == 0
    assert -0.2 < ties.low[0] < -0.05
    assert 0.05 < ties.high[0] < 0.2


def test_below_the_least_number_of_questions_there_is_no_interval():
    few, enough = metrics.bootstrap(np.ones(9)), metrics.bootstrap(np.ones(10))
    assert few.mean[0] == 1
    assert np.isnan([few.low[0], few.high[0]]).all()
    assert np.isfinite(enough.low[0])


def test_the_percentile_method_is_reproducible():
    """Published numbers depend on its random stream."""
    values = np.random.default_rng(0).random((30, 2)) ** 3
    found = metrics.bootstrap(values, method="percentile", resamples=700, seed=1)
    assert found.low == pytest.approx([0.18565718086857433, 0.13742705893428322], rel=1e-12)
    one = metrics.bootstrap([0.5], method="percentile")
    assert one.low[0] == one.high[0] == 0.5


def test_bounds_other_than_0_and_1():
    unit = np.random.default_rng(1).random(40)
    found, stretched = metrics.bootstrap(unit), metrics.bootstrap(3 * unit - 1, bounds=(-1.0, 2.0))
    assert stretched.low == pytest.approx(3 * found.low - 1)
    assert stretched.high == pytest.approx(3 * found.high - 1)
