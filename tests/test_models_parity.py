"""The published reference code's logits, on the fixtures beside the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from twotemp.models.load import load

FAMILIES = ("llada", "dream", "sdar", "llada2")
TOLERANCE = 1e-4


class Reference:
    """A fixture: its model, the inputs, and the reference's logits aligned to the position they predict."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "fixture.json").read_text())
        self.options = {
            "mask_id": about["mask_token_id"],
            "eos_ids": (about["pad_token_id"],),
            "block_size": about.get("block_size"),
        }
        self.shift = about["logits_shift"]
        inputs = load_file(folder / "inputs.safetensors")
        self.ids, self.real = inputs["input_ids"], inputs["attention_mask"].bool()
        self.logits = load_file(folder / "logits.safetensors")

    def batch_error(self, folder: Path) -> float:
        """The largest difference on the left-padded batch, where there is anything to predict."""
        model = load(folder, **self.options)
        want = self.real.clone()
        first = self.real.long().argmax(1)
        if self.shift:  # the first token of a row has no row that predicts it
            want[torch.arange(len(first)), first] = False
        expected = self.logits["logits"].roll(self.shift, dims=1)[want]
        with torch.no_grad():
            return float((model.logits(self.ids, self.real, want) - expected).abs().max())


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, shared: Path) -> Path:
    return shared / "fixtures" / request.param / "a"


def test_left_padded_batch_matches_the_reference(folder: Path) -> None:
    assert Reference(folder).batch_error(folder) < TOLERANCE


def test_unpadded_rows_match_the_reference(folder: Path) -> None:
    reference = Reference(folder)
    model = load(folder, **reference.options)
    for row in range(len(reference.ids)):
        ids = reference.ids[row][reference.real[row]][None]
        want = torch.ones_like(ids, dtype=torch.bool)
        want[:, : reference.shift] = False
        expected = reference.logits[f"row{row}_logits"].roll(reference.shift, dims=1)[want]
        with torch.no_grad():
            assert (model.logits(ids, None, want) - expected).abs().max() < TOLERANCE


def test_sdar_block_cache_matches_the_reference(shared: Path) -> None:
    folder = shared / "fixtures" / "sdar" / "a"
    reference = Reference(folder)
    model = load(folder, **reference.options)
    ids = reference.ids[:1]
    length, block = ids.shape[1], model.block_size
    cache = model.new_cache(1, length)
    positions = torch.arange(length)[None]
    visible = torch.ones(1, length, dtype=torch.bool)
    for window in (slice(0, length - block), slice(length - block, length)):
        want = torch.ones_like(ids[:, window], dtype=torch.bool)
        logits = model.window_logits(ids[:, window], positions[:, window], visible, cache, want)
    assert (logits - reference.logits["cached_last_block_logits"][0]).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    "mistake", ["gate and up swapped", "norm eps", "rope theta", "query and key swapped"]
)
def test_a_porting_mistake_would_be_seen(shared: Path, tmp_path: Path, mistake: str) -> None:
    """The tolerance is worth something: each of these loads without complaint and is far outside it."""
    folder = shared / "fixtures" / "llada" / "a"
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    block = "model.transformer.blocks.1."
    if mistake == "norm eps":
        config["rms_norm_eps"] = 1e-6
    elif mistake == "rope theta":
        config["rope_theta"] = 10000.0
    else:
        one, other = ("ff_proj", "up_proj") if mistake.startswith("gate") else ("q_proj", "k_proj")
        one, other = f"{block}{one}.weight", f"{block}{other}.weight"
        weights[one], weights[other] = weights[other], weights[one]
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors")
    assert Reference(folder).batch_error(tmp_path) > 10 * TOLERANCE
