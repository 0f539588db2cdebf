"""`twotemp eval --dry-run`: what it counts is what the engine then does."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from tests.helpers.large_models import large_model
from twotemp.backends.local import LocalBackend
from twotemp.cli import app, dry_run
from twotemp.models.load import load
from twotemp.policies import parse
from twotemp.sampling.requests import prompt_requests


def test_the_passes_and_memory_of_a_plan_are_printed_before_anything_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("twotemp.models.weight_loading.load_weights", None)
    out = tmp_path / "run"
    asked = f"eval --tasks countdown-3 --policies ar;tct -n 4 --questions 5 --out {out} --dry-run --json"
    done = CliRunner().invoke(app, asked.split())
    assert done.exit_code == 0, done.output
    ar, tct = (json.loads(line) for line in done.stdout.splitlines())
    assert (ar["samples"], ar["passes"]) == (20, [20 * 12, 20 * 12])
    assert tct["passes"] == [20, 20 * 12]
    assert ar["weights"] == tct["weights"] > 1e6
    assert not out.exists()
    text = CliRunner().invoke(app, asked.removesuffix(" --json").split()).stdout
    assert "ar: 20 samples, 240 forward passes" in text


@pytest.mark.parametrize("spec", ["ar", "lc", "lc:k=3", "lc:steps=4", "tct", "ct:threshold=0.3"])
def test_the_engine_takes_as_many_passes_as_are_estimated(spec):
    model = load("tiny", device="cpu")
    policy = parse(spec)
    wanted = prompt_requests(model, "3 7 12 -> 33", policy, n=2, length=20, block=8)
    least, most = dry_run.passes(policy, 20, 8)
    assert all(least <= sample.forwards <= most for sample in LocalBackend(model).sample(wanted))


def test_the_flops_are_those_of_a_forward_pass_of_llada():
    model = large_model("LLaDA-8B", n_layers=2)
    ids = torch.zeros(1, 456, dtype=torch.int64, device="meta")
    want = torch.arange(424, 456, device="meta")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model.logits(ids, None, want)
    estimate = dry_run.row_flops(model, 456, 32, 1, 8, None)
    assert estimate == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert (
        dry_run.row_flops(model, 456, 32, 80, 8, "dual") < dry_run.row_flops(model, 456, 32, 80, 8, None) / 4
    )
