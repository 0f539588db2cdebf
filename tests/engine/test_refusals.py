"""Bad input is named before anything runs, and a broken model is named when it shows."""

from __future__ import annotations

import pytest
import torch

import twotemp
from tests.helpers.toy import ToyModel
from twotemp.engine import run, states
from twotemp.engine.scheduler import check_request
from twotemp.errors import UserError
from twotemp.policies import policy
from twotemp.records import Request


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: Request("q", (), policy("lc"), 8), "prompt is empty"),
        (lambda m: Request("q", (2,), policy("lc", k=9), 8), "exceed length"),
        (lambda m: Request("q", (2, m.mask_id), policy("lc"), 8), "infill"),
        (lambda m: Request("q", (2,), policy("lc"), 0), "no mask token to fill"),
        (lambda m: Request("q", (2,) * 125, policy("lc"), 8), "exceed the context of 128"),
        (lambda m: Request("q", (2, 400), policy("lc"), 8), "outside the vocabulary"),
        (lambda m: Request("q", (2,), policy("lc"), 8, block=0), "block >= 1"),
    ],
)
def test_bad_requests_are_refused(make, message):
    model = ToyModel()
    check_request(Request("good", (2, 3), policy("lc"), 4), model)
    with pytest.raises(UserError, match=message):
        check_request(make(model), model)


def test_block_causal_models_have_their_own_block():
    model = ToyModel(block_size=4)
    with pytest.raises(UserError, match="decodes in blocks of 4"):
        check_request(Request("q", (2,), policy("lc"), 8, block=32), model)


def test_nan_logits_name_row_step_and_position():
    model = ToyModel()
    honest = model.logits

    def broken(ids, attention_mask, want):
        logits = honest(ids, attention_mask, want)
        if model.calls == 3:
            logits[0, 0] = torch.nan
        return logits

    model.logits = broken
    with pytest.raises(UserError, match="'q', sample 0, row 0, step 2, position 4"):
        list(run(model, [Request("q", (2, 3), policy("ar"), 8, 8)]))


def test_bad_counts():
    with pytest.raises(UserError, match="n must be"):
        twotemp.sample(ToyModel(), [2], policy("lc"), n=0)
    with pytest.raises(UserError, match="no prompt"):
        twotemp.sample(ToyModel(), [], policy("lc"))
    with pytest.raises(UserError, match="batch_size"):
        run(ToyModel(), [], batch_size=0)


def test_replay_needs_a_trace():
    (found,) = twotemp.sample(ToyModel(), [2, 3], policy("lc"), length=4)
    with pytest.raises(UserError, match="trace=True"):
        next(states(found, 39))
