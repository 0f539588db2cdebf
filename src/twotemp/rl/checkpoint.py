"""The state of a run on disk, in folders that appear whole or not at all. safetensors and JSON, no pickle.

RUN/checkpoints/step-00000020/   weights.safetensors, optimizer.safetensors, state.json; of LoRA also adapter/,
                                 the same weights as PEFT loads them onto the checkpoint's own code
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from twotemp.errors import UserError
from twotemp.folders import disk_errors, expect, make_folder, read_json, read_run, replacing, write_json
from twotemp.models.transformer import Transformer
from twotemp.rl.adapters import trainable
from twotemp.rl.settings import GrpoSettings

FOLDER = "checkpoints"
ADAPTER = "adapter"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # PEFT's name
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
KEPT = 2  # checkpoints


@dataclass(frozen=True)
class State:
    """The counters of a run. Noise is addressed by step and problem, so there is no generator state beside them."""

    step: int = 0
    problems: int = 0  # taken from the stream of training problems
    nfe: int = 0
    seconds: float = 0.0
    threshold: float | None = None  # lambda, where it is controlled


def write(
    run: Path,
    state: State,
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    adapter: tuple[Any, Mapping[str, Tensor]] | None,
) -> Path:
    """Write a checkpoint next to the older ones, then remove all but the last two.

    Args:
        run: the run's folder.
        state: the counters; `state.step` names the checkpoint.
        weights: trained parameters by name.
        moments: the optimizer's state, `<parameter>/<field>`.
        adapter: what `adapters.published` returned; None: there is none to write.

    Returns:
        The checkpoint's folder.
    """
    parent = run / FOLDER
    target = parent / f"step-{state.step:08d}"
    if target.exists():
        return target
    make_folder(parent)
    with replacing(target) as partial:
        partial.mkdir()
        save_file(_contiguous(weights), partial / WEIGHTS)
        if adapter is not None:
            config, named = adapter
            config.save_pretrained(str(partial / ADAPTER))
            save_file(_contiguous(named), partial / ADAPTER / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        save_file(_contiguous(moments), partial / OPTIMIZER)
        write_json(partial / STATE, asdict(state))
    for old in _steps(run)[:-KEPT]:
        with disk_errors(old):
            shutil.rmtree(old)
    return target


def read(run: Path) -> tuple[State, dict[str, Tensor], dict[str, Tensor]]:
    """Return the last checkpoint: counters, trained weights by parameter name, optimizer state."""
    folder = latest(run)
    try:
        state = State(**read_json(folder / STATE))
        return state, load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise UserError(
            f"{folder} cannot be read ({error}); remove this folder to continue from the checkpoint before it"
        ) from error


def exists(run: Path) -> bool:
    """Return whether the run has a checkpoint."""
    return bool(_steps(run))


def latest(run: Path) -> Path:
    """Return the folder of the last checkpoint."""
    folders = _steps(run)
    if not folders:
        raise UserError(f"{run} has no checkpoint in {FOLDER}/; start again with another --out")
    return folders[-1]


def export(model: Transformer, run: Path, out: Path) -> Path:
    """Write the trained model in its family's own layout.

    Args:
        model: the untrained model, freshly loaded; takes the last checkpoint's weights in place.
        run: the run's folder.
        out: where to write.

    Returns:
        The written folder.
    """
    from twotemp.models.checkpoint import save

    settings, (state, weights, _) = _settings(run), read(run)
    network = trainable(model, settings)
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if {name: p.shape for name, p in trained.items()} != {name: t.shape for name, t in weights.items()}:
        raise UserError(
            f"{latest(run)} holds weights of another model than {model.name!r}; load the one named in run.json"
        )
    with torch.no_grad():
        for name, tensor in weights.items():
            trained[name].copy_(tensor)
    if settings.lora_rank:
        model.module = network.merge_and_unload()
    return save(model, out, about=f"The model after {state.step} steps of GRPO with twotemp.")


def _settings(run: Path) -> GrpoSettings:
    """Return the settings that the run was started with."""
    expect(run, "grpo")
    return GrpoSettings.from_dict((read_run(run) or {})["settings"])


def _steps(run: Path) -> list[Path]:
    """Return the folders of all checkpoints, the oldest first."""
    return sorted((run / FOLDER).glob("step-*"))


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
