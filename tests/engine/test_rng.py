"""Noise is a pure function of its address, uniform, and unrelated between addresses."""

from __future__ import annotations

import torch
from scipy import stats

from twotemp import rng

KNOWN_KEY = -640656754306613135
KNOWN_UNIFORM = 0.9079706289079269


def _uniforms(
    keys: int, positions: int, step: int = 0, stream: rng.Stream = rng.Stream.TOKEN
) -> torch.Tensor:
    key = torch.tensor([rng.row_key(0, "q", i) for i in range(keys)])
    at = torch.arange(positions).expand(keys, -1)
    return rng.uniform(key, torch.full((keys,), step), at, stream)


def test_uniform_in_the_open_interval():
    u = _uniforms(2000, 64).flatten()
    assert u.dtype == torch.float64
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3


def test_addresses_are_unrelated():
    base = _uniforms(4000, 8)
    others = [
        _uniforms(4000, 8, step=1),
        _uniforms(4000, 8, stream=rng.Stream.POSITION),
        base.roll(1, dims=0),  # the next sample
        base.roll(1, dims=1),  # the next position
    ]
    for other in others:
        r = stats.pearsonr(base.flatten().numpy(), other.flatten().numpy()).statistic
        assert abs(r) < 4 / (4000 * 8) ** 0.5


def test_noise_does_not_depend_on_the_batch():
    whole = _uniforms(16, 32)
    key = torch.tensor([rng.row_key(0, "q", 5)])
    alone = rng.uniform(key, torch.tensor([0]), torch.arange(7, 11)[None], rng.Stream.TOKEN)
    assert torch.equal(alone, whole[5:6, 7:11])


def test_neighboring_seeds_and_names_differ():
    keys = {rng.row_key(s, q, i) for s in range(50) for q in ("1", "11", "q") for i in range(50)}
    assert len(keys) == 50 * 3 * 50
    assert rng.row_key(1, "1", 11) != rng.row_key(11, "1", 1)


def test_known_values_never_change():
    """Stored samples are reproducible only while these numbers stay."""
    assert rng.row_key(0, "0", 0) == KNOWN_KEY
    u = rng.uniform(torch.tensor([KNOWN_KEY]), torch.tensor([3]), torch.tensor([[7]]), rng.Stream.POSITION)
    assert float(u) == KNOWN_UNIFORM


def test_noise_laws():
    u = _uniforms(4000, 32).flatten()
    assert stats.kstest(rng.gumbel(u).numpy(), "gumbel_r").pvalue > 1e-3
    assert stats.kstest(rng.logistic(u).numpy(), "logistic").pvalue > 1e-3
