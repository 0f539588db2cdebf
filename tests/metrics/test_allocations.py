"""Pass rates of sets that mix policies: the closed form against enumeration of all sets."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from twotemp import metrics
from twotemp.errors import UserError


def enumerated(passed: list[list[bool]], counts: tuple[int, ...]) -> float:
    """Return the share of all sets with counts[j] samples of policy j that have a right one."""
    subsets = [list(combinations(samples, count)) for samples, count in zip(passed, counts)]
    return float(np.mean([any(any(part) for part in chosen) for chosen in product(*subsets)]))


def test_the_closed_form_counts_all_sets():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = rng.integers(1, 6, 3)
        passed = [[bool(x) for x in rng.random(size) < rng.random()] for size in sizes]
        counts = np.array([[int(rng.integers(0, size + 1)) for size in sizes] for _ in range(3)])
        right = [sum(samples) for samples in passed]
        found = metrics.pass_of_allocations([sizes], [right], counts)
        expected = [enumerated(passed, tuple(row)) for row in counts]
        assert found[0] == pytest.approx(expected, abs=1e-12)


def test_one_policy_is_pass_at_k_and_no_sample_never_passes():
    n, correct = np.array([[8], [8], [5]]), np.array([[2], [0], [5]])
    found = metrics.pass_of_allocations(n, correct, [[1], [4], [8]])
    assert found == pytest.approx(metrics.pass_at_k(n[:, 0], correct[:, 0], [1, 4, 8]), nan_ok=True)
    assert metrics.pass_of_allocations(n, correct, [[0]]).tolist() == [[0.0], [0.0], [0.0]]


def test_wrong_shapes_are_refused():
    with pytest.raises(UserError, match="policies"):
        metrics.pass_of_allocations([[4, 4]], [[1, 1]], [[1]])


def test_samples_of_different_cost_are_bought_in_their_order():
    curve = [[0.1, 0.3, 0.6]]
    found = metrics.at_budget(curve, [10.0, 2.0, 4.0], [9, 10, 11, 12, 14, 16, 17])
    assert found[0] == pytest.approx([np.nan, 0.1, 0.2, 0.3, 0.45, 0.6, np.nan], nan_ok=True)
    equal = metrics.at_budget(curve, [4.0, 4.0, 4.0], [4, 6, 12])
    assert equal == pytest.approx(metrics.at_budget(curve, 4.0, [4, 6, 12]))
