"""The state of an unfinished run: one safetensors file, replaced atomically. No pickle."""

from __future__ import annotations

import json
from collections.abc import Set
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from twotemp.folders import KINDS, replacing
from twotemp.folders.identity import differences, refuse
from twotemp.plain import json_text

FILE = "checkpoint.safetensors"


class Plan(Protocol):
    """A recipe, as far as a run that is continued has to know it."""

    def to_dict(self) -> dict[str, Any]: ...

    def same_so_far(self, before: dict[str, Any], changed: Set[str], step: int) -> bool:
        """May a run that followed `before` for so many steps go on by this plan, which differs in `changed`?"""
        ...


def write(
    out: Path, step: int, recipe: Plan, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Everything the next step depends on. Batches and noise are functions of the step, so no generator state."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer/{index}/{name}": tensor for name, tensor in state.items()})
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replacing(out / FILE) as partial:
        save_file(tensors, partial, metadata={"step": str(step), "recipe": json_text(recipe.to_dict())})


def read(out: Path, recipe: Plan, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Continue from the checkpoint in `out`: the number of steps done, 0 where there is none."""
    path = out / FILE
    if not path.is_file():
        return 0
    with safe_open(path, framework="pt") as file:
        step, before = int(file.metadata()["step"]), json.loads(file.metadata()["recipe"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changed = differences(before, recipe.to_dict())
    if changed and not recipe.same_so_far(before, changed.keys(), step):
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
