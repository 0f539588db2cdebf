"""The published reference code's logits, on the fixtures beside the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from twotemp.models.dream import Dream
from twotemp.models.llada import LLaDA
from twotemp.models.load import load
from twotemp.models.transformer import Transformer

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


LLADA_8B = {
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "mlp_hidden_size": 12288,
    "embedding_size": 126_464,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}
DREAM_7B = {
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}


@pytest.mark.parametrize(
    ("family", "config", "keys", "size"),
    [(LLaDA, LLADA_8B, 291, 16_031_162_368), (Dream, DREAM_7B, 339, 15_231_233_024)],
)
def test_the_published_sizes_come_out(
    family: type[Transformer], config: dict[str, Any], keys: int, size: int
) -> None:
    """Number of keys and bytes (two a weight) in the hub's own index of these checkpoints."""
    native = family.native_config(config)
    with torch.device("meta"):
        weights = family.layout(family.native(native).state_dict(), native)
    assert len(weights) == keys
    assert 2 * sum(part.numel() for parts in weights.values() for part in parts) == size
