"""Checkpoint folders to change, and what a model says about a few ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.helpers.tiny_checkpoints import (
    MASK,
    given,
)
from twotemp.models.checkpoint import INDEX, SINGLE
from twotemp.models.load import load
from twotemp.models.transformer import Transformer

IDS = torch.tensor([[1, 2, MASK, 4, MASK, 6]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(IDS, None, IDS == MASK)


def load_as(model_type: str, folder: Path) -> Transformer:
    said = given(model_type)
    return load(folder, mask_id=said.mask_id, eos_ids=said.eos_ids, block_size=said.block_size)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "DROP"}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / SINGLE)
    change(weights)
    save_file(weights, folder / SINGLE)


def shard(folder: Path, **changes: Any) -> None:
    """Deal the weights out over two files; the index with changes."""
    weights = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    where = {}
    for number in (1, 2):
        name = f"model-{number}-of-2.safetensors"
        part = sorted(weights)[number - 1 :: 2]
        save_file({key: weights[key] for key in part}, folder / name)
        where |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where, **changes}))
