"""The state of an unfinished run: one safetensors file, replaced atomically. No pickle."""

from __future__ import annotations

import json
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from twotemp.folders import KINDS, replacing
from twotemp.folders.identity import differences, refuse
from twotemp.plain import json_text
from twotemp.training.recipe import Recipe

FILE = "checkpoint.safetensors"


def write(
    out: Path, step: int, recipe: Recipe, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Everything the next step depends on. Batches and noise are functions of the step, so no generator state."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer/{index}/{name}": tensor for name, tensor in state.items()})
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replacing(out / FILE) as partial:
        save_file(tensors, partial, metadata={"step": str(step), "recipe": json_text(recipe.to_dict())})


def read(out: Path, recipe: Recipe, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Continue from the checkpoint in `out`: the number of steps done, 0 where there is none."""
    path = out / FILE
    if not path.is_file():
        return 0
    with safe_open(path, framework="pt") as file:
        step, before = int(file.metadata()["step"]), json.loads(file.metadata()["recipe"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changed = differences(before, recipe.to_dict())
    if not _same_so_far(recipe, before, changed.keys(), step):
        refuse(out, KINDS["training"], changed)
    state: dict[int, dict[str, torch.Tensor]] = {}
    weights = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "model":
            weights[rest] = tensor
        else:
            index, _, field = rest.partition("/")
            state.setdefault(int(index), {})[field] = tensor
    model.load_state_dict(weights)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return step


def _same_so_far(recipe: Recipe, before: dict[str, Any], changed: Set[str], step: int) -> bool:
    """May the plan for the rest of the run change? Yes, as long as no step done would have been another."""
    if not changed <= {"steps", "decay", "next_token_steps", "checkpoint_every", "log_every"}:
        return False
    switched = step > min(recipe.next_token_steps, before["next_token_steps"])
    if switched and recipe.next_token_steps != before["next_token_steps"]:
        return False
    return step <= min(recipe.steps - recipe.decay, int(before["steps"]) - int(before["decay"]))
