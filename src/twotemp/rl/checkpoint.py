"""The state of a run on disk: folders that appear whole or not at all. safetensors and JSON, no pickle.

RUN/checkpoints/step-00000020/   adapter/ (PEFT layout) or weights.safetensors,
                                 optimizer.safetensors, state.json
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from twotemp.errors import UserError
from twotemp.folders import disk_errors, make_folder, read_json, replacing, write_json
from twotemp.models.transformer import Transformer

FOLDER = "checkpoints"
ADAPTER = "adapter"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # PEFT's name
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
KEPT = 2
_PEFT_NAME = ".default."  # the adapter's name inside parameter names, which PEFT leaves out on disk


@dataclass(frozen=True)
class State:
    """Counters. Noise is addressed by step and problem, so there is no generator state beside them."""

    step: int = 0
    problems: int = 0  # taken from the stream of training problems
    nfe: int = 0
    seconds: float = 0.0
    threshold: float | None = None  # lambda, where it is controlled


def write(
    run: Path, state: State, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor], adapter: Any | None
) -> Path:
    """Write a checkpoint next to the older ones, then remove all but the last two. adapter: a PEFT config."""
    parent = run / FOLDER
    target = parent / f"step-{state.step:08d}"
    if target.exists():
        return target
    make_folder(parent)
    with replacing(target) as partial:
        partial.mkdir()
        if adapter is None:
            save_file(_plain(weights), partial / WEIGHTS)
        else:
            adapter.save_pretrained(str(partial / ADAPTER))
            named = {name.replace(_PEFT_NAME, "."): tensor for name, tensor in weights.items()}
            save_file(_plain(named), partial / ADAPTER / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        save_file(_plain(moments), partial / OPTIMIZER)
        write_json(partial / STATE, asdict(state))
    for old in _steps(run)[:-KEPT]:
        with disk_errors(old):
            shutil.rmtree(old)
    return target


def read(run: Path) -> tuple[State, dict[str, Tensor], dict[str, Tensor]]:
    """The last checkpoint: counters, trained weights by parameter name, optimizer state."""
    folder = latest(run)
    try:
        state = State(**read_json(folder / STATE))
        if (folder / ADAPTER).is_dir():
            named = load_file(folder / ADAPTER / ADAPTER_WEIGHTS)
            weights = {_inside(name): tensor for name, tensor in named.items()}
        else:
            weights = load_file(folder / WEIGHTS)
        return state, weights, load_file(folder / OPTIMIZER)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise UserError(
            f"{folder} cannot be read ({error}); remove this folder to continue from the checkpoint before it"
        ) from error


def exists(run: Path) -> bool:
    return bool(_steps(run))


def latest(run: Path) -> Path:
    found = _steps(run)
    if not found:
        raise UserError(f"{run} has no checkpoint in {FOLDER}/; start again with another --out")
    return found[-1]


def export(model: Transformer, run: Path, out: Path) -> Path:
    """The trained model in its family's own layout: `model`, loaded afresh, takes the last checkpoint's weights."""
    from twotemp.models.checkpoint import save

    folder = latest(run)
    if (folder / ADAPTER).is_dir():
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(model.module, str(folder / ADAPTER))
        model.module = adapted.merge_and_unload()
    else:
        missing, unexpected = model.module.load_state_dict(read(run)[1], strict=False)
        tied = {"lm_head.weight"} if model.module.config.tie_word_embeddings else set()
        if unexpected or set(missing) - tied:
            raise UserError(f"{folder} holds weights of another model than {model.name!r}")
    return save(model, out)


def _steps(run: Path) -> list[Path]:
    return sorted((run / FOLDER).glob("step-*"))


def _inside(name: str) -> str:
    """`...lora_A.weight` -> `...lora_A.default.weight`: the parameter of a name in PEFT's layout."""
    module, _, kind = name.rpartition(".")
    return f"{module}{_PEFT_NAME}{kind}"


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
