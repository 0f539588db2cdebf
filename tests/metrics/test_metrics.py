"""Every estimator against brute force: all subsets of a few samples, or the closed form of a known distribution."""

from __future__ import annotations

import time
from collections import Counter
from fractions import Fraction
from itertools import combinations
from math import comb, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twotemp import metrics
from twotemp.errors import UserError

SMALL = settings(deadline=None, max_examples=60)

# Few distinct values, so that ties are common.
SAMPLE = st.tuples(st.booleans(), st.integers(-1, 3), st.sampled_from([0.0, 0.5, 0.5, 1.25, 2.0]))
QUESTION = st.lists(SAMPLE, min_size=1, max_size=8)


def every_subset(items, k):
    return list(combinations(items, k))


def mean(values):
    return sum(values) / len(values)


# --- pass@k ---------------------------------------------------------------------------------------------------


@SMALL
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=4))
def test_pass_at_k_is_the_mean_over_all_subsets(questions):
    ks = range(1, 11)
    found = metrics.pass_at_k([len(q) for q in questions], [sum(q) for q in questions], ks)
    for row, question in zip(found, questions):
        for value, k in zip(row, ks):
            if k > len(question):
                assert np.isnan(value)
            else:
                assert value == pytest.approx(mean([any(s) for s in every_subset(question, k)]), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k"), [(10**6, 1, 1), (10**6, 3, 64), (10**6, 999_990, 1), (1000, 500, 500), (5000, 1, 4999)]
)
def test_pass_at_k_keeps_its_digits_for_large_n(n, c, k):
    exact = float(1 - Fraction(comb(n - c, k), comb(n, k)))
    assert metrics.pass_at_k([n], [c], [k])[0, 0] == pytest.approx(exact, rel=1e-12)


def test_pass_at_k_limits():
    none, one, all_ = metrics.pass_at_k([64, 64, 64], [0, 1, 64], [1, 64])
    assert none.tolist() == [0, 0]
    assert one[0] == pytest.approx(1 / 64, rel=1e-15)
    assert one[1] == 1
    assert all_.tolist() == [1, 1]


def test_pass_at_k_is_unbiased():
    """Samples that pass with chance p: the mean of the estimate over n draws is 1 - (1 - p)^k, exactly."""
    n, p, ks = 12, 0.3, [1, 4, 12]
    counts = np.arange(n + 1)
    chance = np.array([comb(n, c) * p**c * (1 - p) ** (n - c) for c in counts])
    estimate = chance @ metrics.pass_at_k(np.full(n + 1, n), counts, ks)
    assert estimate == pytest.approx([1 - (1 - p) ** k for k in ks])


@pytest.mark.parametrize("ks", [[0], [], [1.5], [-1], [[1]]])
def test_bad_group_sizes_are_refused(ks):
    with pytest.raises(UserError, match="integers >= 1"):
        metrics.pass_at_k([4], [1], ks)


def test_more_right_than_samples_is_refused():
    with pytest.raises(UserError, match="correct <= n"):
        metrics.pass_at_k([4], [5], [1])


# --- cost -----------------------------------------------------------------------------------------------------


def test_cost_axis_is_k_times_the_mean_sample():
    costs = [[10, 20], [30, 30, 30, 30]]  # means 15 and 30: a question with more samples weighs no more
    assert metrics.cost_axis(costs, [1, 2, 8]) == pytest.approx([22.5, 45, 180])


def test_tokens_per_forward_is_a_ratio_of_sums():
    assert metrics.tokens_per_forward([[256, 256], [256]], [[64, 128], [64]]) == pytest.approx(3.0)
    with pytest.raises(UserError, match="undefined"):
        metrics.tokens_per_forward([[1]], [[0]])


def test_a_budget_is_a_mixture_of_whole_numbers_of_samples():
    curve = metrics.pass_at_k([4, 2], [1, 1], [1, 2, 3, 4])
    found = metrics.at_budget(curve, 10.0, [5, 10, 23, 40, 41])
    assert np.isnan(found[:, [0, 4]]).all()  # not one sample, more than there are
    assert found[0, 1:4] == pytest.approx([0.25, 0.7 * 0.5 + 0.3 * 0.75, 1.0])
    assert found[1, 1] == 0.5
    assert np.isnan(found[1, 2:4]).all()  # the second question has two samples only


@SMALL
@given(st.integers(1, 40), st.floats(0.01, 1000))
def test_a_whole_budget_hits_the_curve_exactly(k, cost):
    """Also where the neighbor above is NaN: rounding must not leak it."""
    curve = metrics.pass_at_k([k], [1], range(1, 42))
    assert metrics.at_budget(curve, cost, [k * cost])[0, 0] == curve[0, k - 1]


def test_equal_budget_difference_of_two_policies():
    cheap = metrics.at_budget(metrics.pass_at_k([8] * 3, [1, 2, 8], range(1, 9)), 10, [40])
    dear = metrics.at_budget(metrics.pass_at_k([8] * 3, [2, 3, 8], range(1, 9)), 40, [40])
    gap = metrics.paired_bootstrap(cheap, dear, resamples=200)
    expected = [0.5 - 0.25, (1 - comb(6, 4) / comb(8, 4)) - 0.375, 0.0]
    assert gap.mean[0] == pytest.approx(np.mean(expected))


# --- bootstrap ------------------------------------------------------------------------------------------------


def test_bootstrap_of_coins_gives_the_known_interval():
    """500 questions of which 30 % pass: the mean is binomial, so the interval is 1.96 standard errors."""
    values = np.zeros(500)
    values[:150] = 1
    found = metrics.bootstrap(values)
    assert found.mean[0] == pytest.approx(0.3)
    assert (found.high - found.low)[0] / 2 == pytest.approx(1.96 * sqrt(0.3 * 0.7 / 500), rel=0.03)


def test_bootstrap_equals_resampling_by_index():
    """The matrix product against drawing questions one by one: same quantiles within their Monte Carlo error."""
    rng = np.random.default_rng(0)
    values = rng.random((40, 3)) ** 3
    slow = np.array([values[rng.integers(0, 40, 40)].mean(axis=0) for _ in range(10_000)])
    found = metrics.bootstrap(values, method="percentile")
    expected = np.quantile(slow, [0.025, 0.975], axis=0)
    assert np.stack([found.low, found.high]) == pytest.approx(expected, abs=0.004)


def test_bootstrap_is_seeded():
    values = np.random.default_rng(0).random((30, 2))
    for method in ("bayesian", "percentile"):
        a, b, c = (metrics.bootstrap(values, seed=s, resamples=700, method=method) for s in (1, 1, 2))
        assert np.array_equal(a.low, b.low)
        assert not np.array_equal(a.low, c.low)
    with pytest.raises(UserError, match="bayesian or percentile"):
        metrics.bootstrap(values, method="bca")


def test_questions_without_a_value_are_left_out_and_counted():
    values = np.array([[1.0, np.nan, np.nan], [0.0, 0.5, np.nan], [0.5, 0.5, np.nan]])
    found = metrics.bootstrap(values, resamples=300, method="percentile")
    assert found.mean == pytest.approx([0.5, 0.5, np.nan], nan_ok=True)
    assert found.questions.tolist() == [3, 2, 0]
    assert found.low[1] == found.high[1] == 0.5
    assert np.isnan(found.low[2])
    many = metrics.bootstrap(np.tile(values, (10, 1)), resamples=300)
    assert many.questions.tolist() == [30, 20, 0]
    assert many.low[0] < 0.5 < many.high[0]
    assert np.isnan(many.low[2])


def test_paired_bootstrap_cancels_the_difficulty_of_questions():
    rng = np.random.default_rng(0)
    hardness = rng.random(300)
    first, second = hardness + 0.02, hardness + rng.normal(0, 0.01, 300)
    gap = metrics.paired_bootstrap(first, second)
    assert gap.low[0] > 0.018  # although the means alone are uncertain by far more
    alone = metrics.bootstrap(first, bounds=(0.0, 1.02))
    assert alone.high[0] - alone.low[0] > 0.06
    same = metrics.paired_bootstrap(first, first, method="percentile")
    assert same.low[0] == same.high[0] == 0


def test_align_keeps_common_questions_in_order():
    rows = metrics.align(["a", "b", "c"], ["c", "x", "a"])
    assert [r.tolist() for r in rows] == [[0, 2], [2, 0]]
    with pytest.raises(UserError, match="no question in common"):
        metrics.align(["a"], ["b"])


def test_paired_needs_the_same_shape():
    with pytest.raises(UserError, match="same questions"):
        metrics.paired_bootstrap(np.zeros(3), np.zeros(4))


def test_bootstrap_is_fast():
    values = np.random.default_rng(0).random((500, 7))
    start = time.process_time()
    metrics.bootstrap(values, resamples=10_000)
    assert time.process_time() - start < 2


# --- Best@k ---------------------------------------------------------------------------------------------------


def elected(subset, weight):
    """Brute force: the share of a fair tie-break that is right; `subset` holds (group verdict, answer, weight)."""
    total: Counter = Counter()
    for _, answer, w in subset:
        if answer >= 0:
            total[answer] += weight(w)
    if not total:
        return 0.0
    best = max(total.values())
    winners = [a for a, t in total.items() if abs(t - best) < 1e-9]
    verdict = {a: right for right, a, _ in subset}
    return mean([verdict[a] for a in winners])


def with_group_verdicts(question):
    """Equal answers share a verdict, as they do for a consistent grader."""
    first = {}
    return [(first.setdefault(a, right) and a >= 0, a, w) for right, a, w in question]


@SMALL
@given(QUESTION)
def test_best_by_score_is_the_mean_over_all_subsets(question):
    right, _, score = zip(*question)
    ks = range(1, len(question) + 2)
    found = metrics.best_by_score(right, score, ks)
    assert np.isnan(found[-1])
    for k in ks[:-1]:
        picks = []
        for subset in every_subset(question, k):
            best = max(s for _, _, s in subset)
            picks.append(mean([r for r, _, s in subset if s == best]))
        assert found[k - 1] == pytest.approx(mean(picks), abs=1e-12)


@SMALL
@given(QUESTION)
def test_best_by_vote_is_the_mean_over_all_subsets(question):
    question = with_group_verdicts(question)
    right, answer, _ = zip(*question)
    ks = range(1, len(question) + 2)
    found = metrics.best_by_vote(right, answer, ks)
    assert np.isnan(found[-1])
    for k in ks[:-1]:
        brute = mean([elected(s, lambda _: 1) for s in every_subset(question, k)])
        assert found[k - 1] == pytest.approx(brute, abs=1e-12)


@SMALL
@given(QUESTION)
def test_weighted_vote_enumerates_when_it_can(question):
    question = with_group_verdicts(question)
    right, answer, weight = zip(*question)
    ks = range(1, len(question) + 2)
    found, error = metrics.best_by_weighted_vote(right, answer, weight, ks)
    assert np.isnan(found[-1])
    assert (error[:-1] == 0).all()
    for k in ks[:-1]:
        brute = mean([elected(s, lambda w: w) for s in every_subset(question, k)])
        assert found[k - 1] == pytest.approx(brute, abs=1e-12)


def test_weighted_vote_by_drawing_agrees_with_the_exact_vote():
    rng = np.random.default_rng(1)
    answer = rng.choice(6, 48, p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05])
    right = answer == 1
    ks = [1, 4, 16, 32]
    found, error = metrics.best_by_weighted_vote(right, answer, np.ones(48), ks, seed=5)
    exact = metrics.best_by_vote(right, answer, ks)
    assert (error[1:] > 0).all()
    assert (np.abs(found - exact) <= 4 * error + 1e-12).all()
    again, _ = metrics.best_by_weighted_vote(right, answer, np.ones(48), ks, seed=5)
    assert np.array_equal(found, again)
    other, _ = metrics.best_by_weighted_vote(right, answer, np.ones(48), ks, seed=6)
    assert not np.array_equal(found, other)


@SMALL
@given(QUESTION)
def test_perfect_scores_are_the_oracle(question):
    right = [r for r, _, _ in question]
    ks = range(1, len(right) + 1)
    oracle = metrics.pass_at_k([len(right)], [sum(right)], ks)[0]
    assert metrics.best_by_score(right, np.array(right, float), ks) == pytest.approx(oracle)


def test_a_vote_of_one_is_pass_at_1_and_of_all_is_the_majority():
    answer = np.array([0] * 30 + [1] * 20 + [-1] * 14)
    found = metrics.best_by_vote(answer == 0, answer, [1, 64])
    assert found == pytest.approx([30 / 64, 1.0])


def test_exact_vote_stays_exact_with_many_samples():
    """Binomial coefficients near 1e290 must neither overflow nor lose digits: two answers, odd k, closed form."""
    n, m, k = 960, 500, 15
    answer = np.array([0] * m + [1] * (n - m))
    exact = sum(Fraction(comb(m, v) * comb(n - m, k - v), comb(n, k)) for v in range(8, k + 1))
    assert metrics.best_by_vote(answer == 0, answer, [k])[0] == pytest.approx(float(exact), rel=1e-12)


def test_a_group_with_mixed_verdicts_counts_by_its_share():
    assert metrics.best_by_vote([1, 0, 0], [0, 0, -1], [3])[0] == 0.5


def test_subsets_without_an_answer_are_wrong():
    assert metrics.best_by_vote([True, False], [0, -1], [1, 2]) == pytest.approx([0.5, 1.0])
    assert metrics.best_by_vote([False, False], [-1, -1], [1])[0] == 0
    assert metrics.best_by_weighted_vote([0, 0], [-1, -1], [1, 1], [1])[0][0] == 0


def test_negative_weights_do_not_elect_an_answer_that_is_absent():
    value, _ = metrics.best_by_weighted_vote([1, 0], [0, 1], [-1.0, -3.0], [1, 2])
    assert value == pytest.approx([0.5, 1.0])


def test_sums_equal_up_to_rounding_are_a_tie():
    weights = [0.1, 0.2, 0.3, 0.6]  # 0.1 + 0.2 + 0.3 = 0.6000000000000001
    value, _ = metrics.best_by_weighted_vote([1, 1, 1, 0], [0, 0, 0, 1], weights, [4])
    assert value[0] == 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_numbers_are_refused(bad):
    if np.isnan(bad):
        with pytest.raises(UserError, match="NaN"):
            metrics.best_by_score([1, 0], [bad, 1.0], [1])
    with pytest.raises(UserError, match="not finite"):
        metrics.best_by_weighted_vote([1, 0], [0, 1], [bad, 1.0], [1])


def test_ragged_input_and_too_many_samples_are_refused():
    with pytest.raises(UserError, match="one verdict and one value"):
        metrics.best_by_vote([1, 0], [0], [1])
    with pytest.raises(UserError, match="at most 1000"):
        metrics.best_by_vote(np.ones(1001), np.zeros(1001, int), [1])


# --- diversity ------------------------------------------------------------------------------------------------


def entropy(items):
    return -sum(c / len(items) * log(c / len(items)) for c in Counter(items).values())


@SMALL
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=8))
def test_answer_entropy_is_the_mean_over_all_subsets(answers):
    ks = range(1, len(answers) + 2)
    spread = metrics.answer_entropy(answers, ks)
    assert np.isnan(spread[-1])
    for k in ks[:-1]:
        subsets = every_subset(answers, k)
        assert spread[k - 1] == pytest.approx(mean([entropy(s) for s in subsets]), abs=1e-10)


def test_answers_must_be_group_numbers():
    with pytest.raises(UserError, match="group number"):
        metrics.answer_entropy(["18", "19"], [1])
