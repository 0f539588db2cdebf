"""`generate` of transformers draws the samples of the library."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import twotemp
from twotemp.errors import UserError

FOLDER = Path(__file__).parents[2] / "custom_generate"
PROMPTS = ["3 7 12 -> 33", "20 10 -> 30"]


@pytest.fixture(scope="module")
def tiny():
    return twotemp.load("tiny")


def wrapped(tiny):
    return twotemp.wrap(tiny.module, mask_id=tiny.mask_id, eos_ids=[tiny.eos_ids[0]])


def options(tiny, **changes):
    named = {"mask_id": tiny.mask_id, "eos_token_id": tiny.eos_ids[0], "max_new_tokens": 12}
    return {"custom_generate": twotemp.generate, **named, **changes}


def test_samples_are_those_of_the_library(tiny):
    rows = [tiny.encode(prompt) for prompt in PROMPTS]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    real = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    out = tiny.module.generate(
        ids,
        attention_mask=real,
        **options(tiny, policy="tlc:t_pos=1", num_return_sequences=3, do_sample=True, seed=4),
    )
    expected = twotemp.sample(wrapped(tiny), rows, "tlc:t_pos=1", n=3, length=12, seed=4)
    assert out[:, :width].tolist() == ids.repeat_interleave(3, 0).tolist()
    assert [tiny.decode(row) for row in out[:, width:].tolist()] == [tiny.decode(s.tokens) for s in expected]


def test_a_temperature_is_t_token(tiny, caplog):
    row = tiny.encode(PROMPTS[0])
    with caplog.at_level(logging.INFO, "twotemp"):
        out = tiny.module.generate(
            torch.tensor([row]), **options(tiny, policy="tct", do_sample=True, temperature=3.0)
        )
    assert "temperature=3 is t_token of policy tct" in caplog.text
    (expected,) = twotemp.sample(wrapped(tiny), row, "tct:t_token=3", length=12)
    assert tiny.decode(out[0, len(row) :].tolist()) == tiny.decode(expected.tokens)


def test_what_a_policy_cannot_do_is_refused(tiny):
    ids = torch.tensor([tiny.encode(PROMPTS[0])])
    with pytest.raises(UserError, match="num_beams does not work"):
        tiny.module.generate(ids, **options(tiny, num_beams=2))
    with pytest.raises(UserError, match="pass mask_id="):
        tiny.module.generate(ids, **{**options(tiny), "mask_id": None})


def test_the_folder_for_the_hub_runs_the_same(tiny, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from generate import generate

    ids = torch.tensor([tiny.encode(PROMPTS[0])])
    given = {key: value for key, value in options(tiny).items() if key != "custom_generate"}
    found = generate(tiny.module, ids, generation_config=None, streamer=None, **given)
    assert torch.equal(found, tiny.module.generate(ids, **options(tiny)))
