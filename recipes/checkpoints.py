"""Store the state of an unfinished run in one safetensors file, which is replaced atomically."""

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
from twotemp.serialization import json_text

FILE = "checkpoint.safetensors"


class ResumableRecipe(Protocol):
    """A recipe that can decide whether a run may continue with it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON data."""
        ...

    def same_so_far(self, before: dict[str, Any], changed: Set[str], step: int) -> bool:
        """Tell whether a run that followed `before` for `step` steps may continue with this recipe.

        Args:
            before: The recipe of the run so far, as JSON data.
            changed: The names of the fields that differ.
            step: The number of finished steps.
        """
        ...


def write(
    out: Path, step: int, recipe: ResumableRecipe, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write everything that the next step depends on.

    There is no generator state, because batches and noise are functions of the step.

    Args:
        out: The run directory.
        step: The number of finished steps.
        recipe: The recipe of the run.
        model: The network.
        optimizer: Its optimizer.
    """
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer/{index}/{name}": tensor for name, tensor in state.items()})
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replacing(out / FILE) as partial:
        save_file(tensors, partial, metadata={"step": str(step), "recipe": json_text(recipe.to_dict())})


def read(out: Path, recipe: ResumableRecipe, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint in `out` into the model and the optimizer; see `write` for the arguments.

    Returns:
        The number of finished steps, 0 if there is no checkpoint.
    """
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
