"""What `drift` counts, and what it refuses. How far caches stray is in test_caches.py."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.proxies import Proxy
from tests.helpers.toy import FixedModel
from twotemp.engine.observers import drift
from twotemp.errors import UserError
from twotemp.policies import policy
from twotemp.records import Request


@pytest.fixture(scope="module")
def model():
    return Proxy("small", width=64, layers=2, vocabulary=96).model()


def requests_of(count: int, length: int = 8, **parameters) -> list[Request]:
    return [Request(str(i), (7, 8, 9 + i), policy("lc", **parameters), length, 4) for i in range(count)]


def test_only_predictions_that_read_the_cache_are_compared(model):
    """Blocks of 4, one token a step: the first step of a block refreshes the cache, the others predict 3, 2, 1."""
    found = drift(model, requests_of(3), "dual")
    assert found.predictions == 3 * 2 * (3 + 2 + 1)
    assert found.steps == 3 * 8
    assert found.kl_median > 0


def test_a_cache_that_is_never_read_changes_nothing(model):
    found = drift(model, requests_of(2, k=4), "dual")
    assert (found.predictions, found.kl_mean, found.kl_max, found.changed_steps) == (0, 0, 0, 0)


def test_the_model_itself_as_the_measure_changes_nothing(model):
    """Every prediction is compared: no step of the run is exact."""
    same = drift(model, requests_of(2), against=model)
    assert (same.predictions, same.changed_steps) == (2 * 2 * (4 + 3 + 2 + 1), 0)
    assert same.kl_max < 1e-5
    with pytest.raises(UserError, match="nothing to compare with"):
        drift(model, requests_of(1))


def test_another_model_may_be_the_measure():
    """KL(exact || ours) = sum p log(p / q) in closed form: neither model looks at the context.

    Ours fills the four places in the order 0, 1, 2, 3, and so predicts place i at i + 1 steps. The exact model has
    another best token at place 1, and is surest of place 3, so that it would begin there.
    """
    ours = [[0.90, 0.05, 0.05], [0.80, 0.15, 0.05], [0.70, 0.20, 0.10], [0.60, 0.30, 0.10]]
    exact = [[0.70, 0.20, 0.10], [0.30, 0.60, 0.10], [0.70, 0.20, 0.10], [0.95, 0.03, 0.02]]
    prompt, mask = (
        torch.full((3, 4), 0.25).log(),
        torch.full((4, 1), 0.5).log(),
    )  # the mask's logit counts nowhere
    models = [
        FixedModel(torch.cat([prompt, torch.cat([torch.tensor(rows).log(), mask], 1)]), mask_id=3)
        for rows in (ours, exact)
    ]
    wanted = [Request("q", (0, 1, 2), policy("lc", t_token=0.0), 4, 4)]
    found = drift(models[0], wanted, against=models[1], batch_size=1)
    kl = [sum(p * math.log(p / q) for p, q in zip(*rows)) for rows in zip(exact, ours)]
    seen = sorted(value for place, value in enumerate(kl) for _ in range(place + 1))
    assert (found.predictions, found.steps) == (10, 4)
    assert found.kl_mean == pytest.approx(sum(seen) / 10, rel=1e-5)
    assert found.kl_max == pytest.approx(seen[-1], rel=1e-5)
    assert found.changed_tokens == 1 / 4  # at place 1
    assert found.changed_steps == 3 / 4  # all but the last, where only place 3 is left


def test_the_batch_size_changes_nothing(model):
    one, many = (drift(model, requests_of(3), "dual", batch_size=size) for size in (1, 3))
    assert one.predictions == many.predictions
    assert one.kl_mean == pytest.approx(many.kl_mean, rel=1e-3)


@pytest.mark.parametrize(
    ("count", "length", "options", "message"),
    [
        (0, 8, {}, "nothing to compare"),
        (1, 8, {"batch_size": 0}, "batch_size must be an integer >= 1, not 0"),
    ],
)
def test_mistakes_are_named(model, count, length, options, message):
    with pytest.raises(UserError, match=message):
        drift(model, requests_of(count, length), "dual", **options)
