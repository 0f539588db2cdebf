"""Change checkpoints on disk, and compute the logits of a few ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.helpers.tiny_checkpoints import MASK, given
from twotemp.models.checkpoint import INDEX, SINGLE
from twotemp.models.load import load
from twotemp.models.transformer import Transformer

IDS = torch.tensor([[1, 2, MASK, 4, MASK, 6]])


def logits(model: Any) -> torch.Tensor:
    """Return the logits of the masked positions in IDS."""
    with torch.no_grad():
        return model.logits(IDS, None, IDS == MASK)


def load_as(model_type: str, folder: Path) -> Transformer:
    """Load a checkpoint with the special ids that this family's config lacks."""
    special = given(model_type)
    return load(folder, mask_id=special.mask_id, eos_ids=special.eos_ids, block_size=special.block_size)


def change_config(folder: Path, **changes: Any) -> None:
    """Change fields of config.json; the value "DROP" removes a field."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "DROP"}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Apply a function to the dictionary of weights and save the result."""
    weights = load_file(folder / SINGLE)
    change(weights)
    save_file(weights, folder / SINGLE)


def shard(folder: Path, **changes: Any) -> None:
    """Split the weights over two files with an index, and apply changes to the index."""
    weights = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    weight_map = {}
    for number in (1, 2):
        name = f"model-{number}-of-2.safetensors"
        part = sorted(weights)[number - 1 :: 2]
        save_file({key: weights[key] for key in part}, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map, **changes}))
