"""Group operations of search, against their definitions."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from twotemp.experimental.search import certainty, resample, survivors


def test_even_weights_are_left_alone() -> None:
    u = torch.rand(8, generator=torch.Generator().manual_seed(0))
    assert resample(torch.zeros(8), u) is None
    # Half of the rows have all the weight: the effective size is just N / 2.
    assert resample(torch.tensor([0.0] * 4 + [-1e9] * 4), u) is None
    replaced = resample(torch.tensor([0.0] * 3 + [-1e9] * 5), u)
    assert replaced is not None
    assert replaced.max() <= 2


def test_rows_survive_in_proportion_to_their_weights() -> None:
    """Frequencies of 40,000 replacements are within five standard errors of the weights."""
    weight = torch.tensor([0.9, 0.06, 0.03, 0.01])
    u = torch.rand(10_000, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = [resample(weight.log(), row) for row in u]
    counts = torch.zeros(4)
    for rows in drawn:
        assert rows is not None
        counts += torch.bincount(rows, minlength=4)
    share = counts / counts.sum()
    assert ((share - weight).abs() < 5 * (weight * (1 - weight) / counts.sum()).sqrt()).all()


def test_certainty_is_the_entropy_upside_down() -> None:
    entropy = torch.tensor([[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(certainty(entropy), torch.tensor([0.0, 1.0, 0.5]))


@pytest.mark.parametrize("seed", range(20))
def test_survivors_are_one_of_each_beam_and_nearly_the_best_set(seed: int) -> None:
    """All sets are enumerated: the greedy one's determinant is at most a tenth below the largest in log terms."""
    generator = torch.Generator().manual_seed(seed)
    beams, candidates = 3, 3
    features = torch.randn(beams * candidates, 4, generator=generator)
    quality = torch.rand(beams * candidates, generator=generator)
    unit = torch.nn.functional.normalize(features.double(), dim=-1)
    kernel = 2.0 * unit @ unit.T + torch.diag(quality.double())

    def log_det(rows: list[int]) -> float:
        return torch.linalg.slogdet(kernel[rows][:, rows]).logabsdet.item()

    chosen = survivors(features, quality, beams, 2.0).tolist()
    assert [row // candidates for row in chosen] == [0, 1, 2]
    sets = [[c + i * candidates for i, c in enumerate(s)] for s in product(range(candidates), repeat=beams)]
    assert log_det(chosen) >= max(map(log_det, sets)) - 0.1


def test_without_diversity_the_surest_candidate_of_each_beam_survives() -> None:
    quality = torch.tensor([0.1, 0.9, 0.8, 0.2, 0.3, 0.4])
    assert survivors(torch.randn(6, 3), quality, 3, 0.0).tolist() == [1, 2, 5]


def test_of_equally_sure_candidates_those_survive_that_differ() -> None:
    left, right = [1.0, 0.0], [0.0, 1.0]
    features = torch.tensor([left, left, left, right])
    assert survivors(features, torch.ones(4), 2, 1.0).tolist()[1] == 3
