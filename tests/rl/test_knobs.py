"""Learning T_pos, lambda and T_token: the gradient is that of the expected reward, and a run follows it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.helpers import path_laws as tables
from tests.helpers import rl_toys
from tests.helpers.rl_toys import go
from twotemp.errors import UserError
from twotemp.likelihood.queries import log_q
from twotemp.policies import policy
from twotemp.rl import checkpoint, results
from twotemp.rl.knobs import SCALES, Knobs, with_learned


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("t_pos", policy("tlc", t_token=0.8, t_pos=0.5)),
        ("t_token", policy("tlc", t_token=0.8, t_pos=0.5)),
        ("t_pos", policy("tct", t_token=0.8, t_pos=0.3, threshold=0.6)),
        ("threshold", policy("tct", t_token=0.8, t_pos=0.3, threshold=0.6)),
    ],
)
def test_the_gradient_is_that_of_the_expected_reward(name, rule):
    """sum_paths P R d log P = d sum_paths P R, on a table; the right side by differences of the enumerated law."""
    model = tables.table()
    good = {string for n, string in enumerate(product((0, 1), repeat=3)) if n % 3 == 0}

    def reward(path) -> float:
        written = dict(pair for step in path for pair in step)
        return float(tuple(written[k] for k in sorted(written)) in good)

    def expected(value: float) -> float:
        law = tables.law(model, replace(rule, **{name: value}))
        return sum(p * reward(path) for path, p in law.items())

    law = tables.law(model, rule)
    queries = tables.build_queries("order", [tables.as_sample(model, rule, path) for path in law])
    knobs = Knobs(rule, [name], rate=0.1)
    totals = queries.totals(
        log_q(model.logits, knobs.apply_to(queries), torch.tensor([tables.MASK])).double()
    )
    log_p = torch.zeros(len(law), dtype=torch.float64).index_add(0, queries.row, totals)
    weights = torch.tensor([p * reward(path) for path, p in law.items()], dtype=torch.float64)
    (weights * log_p).sum().backward()
    found = float(knobs._knobs[name].free.grad)

    h, value = 1e-4, getattr(rule, name)
    slope = (expected(value + h) - expected(value - h)) / (2 * h)
    by_free_scale = value * (1 - value) if name == "threshold" else value
    assert abs(slope) > 1e-3
    assert found == pytest.approx(slope * by_free_scale, abs=1e-5)


def test_knobs_are_adam_on_their_scales_and_stay_in_range():
    knobs = Knobs(policy("tct", t_pos=0.2, threshold=0.6), ["t_pos", "threshold"], rate=0.1)
    assert knobs.numbers() == pytest.approx({"t_pos": 0.2, "threshold": 0.6})
    twin = torch.tensor(math.log(0.2), dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([twin], lr=0.1, betas=(0.9, 0.99), eps=1e-12)
    for slope in (0.3, -0.1, 0.7):
        twin.grad = torch.tensor(slope, dtype=torch.float64)
        adam.step()
        for knob in knobs._knobs.values():
            knob.free.grad = torch.tensor(slope, dtype=torch.float64)
        knobs.step(lambda gradient: gradient)
    assert knobs.numbers()["t_pos"] == pytest.approx(math.exp(twin.item()), rel=1e-9)
    state = knobs.state()
    again = Knobs(policy("tct"), ["t_pos", "threshold"], rate=0.1)
    again.restore(state)
    assert again.state() == state
    learned = with_learned(policy("tct"), state)
    assert (learned.t_pos, learned.threshold) == pytest.approx(tuple(knobs.numbers().values()), rel=5e-3)
    for _ in range(200):
        knobs._knobs["t_pos"].free.grad = torch.tensor(1.0, dtype=torch.float64)
        knobs.step(lambda gradient: gradient)
    assert knobs.numbers()["t_pos"] == pytest.approx(SCALES["t_pos"].least)


def test_a_run_moves_what_it_learns_and_draws_with_it(tmp_path):
    go(
        tmp_path,
        "4steps",
        likelihood="order",
        learn="t_pos,threshold",
        policy_learning_rate=0.1,
        groups=4,
        size=8,
    )
    records = results.read_steps(tmp_path)
    assert (records[0].t_pos, records[0].threshold) == pytest.approx((0.1, 0.3))
    for name in ("t_pos", "threshold"):
        assert len({getattr(record, name) for record in records}) == 4
    state = checkpoint.read(tmp_path)[0]
    assert set(state.knobs) == {"t_pos", "threshold"}
    learning = [record for record in records if record.grad_norm]
    assert state.knobs["t_pos"][3] == 2 * len(learning) > 0  # two updates a step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learn": "t_pos", "likelihood": "trajectory"}, "--likelihood order"),
        ({"learn": "t_po", "likelihood": "order"}, "did you mean 't_pos'"),
        ({"learn": "t_pos", "likelihood": "order", "policy": policy("lc")}, "cannot be learned from 0"),
        ({"learn": "threshold", "likelihood": "order", "policy": policy("tlc")}, "cannot be learned"),
        ({"learn": "threshold", "likelihood": "order", "policy": policy("ct")}, "and t_pos above 0"),
        ({"learn": "threshold", "likelihood": "order", "tokens_per_forward": 2.0}, "leave one of them out"),
    ],
)
def test_what_cannot_be_learned_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        rl_toys.settings(**changes)
