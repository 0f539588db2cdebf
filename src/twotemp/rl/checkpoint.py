"""The parameters that are trained, LoRA adapters (by PEFT) or all, and the state of a run on disk.

A checkpoint appears whole or not at all. safetensors and JSON, no pickle.

RUN/checkpoints/step-00000020/   weights.safetensors, optimizer.safetensors, state.json; of LoRA also adapter/,
                                 the same weights as PEFT loads them onto the checkpoint's own code
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from twotemp.errors import UserError
from twotemp.folders import disk_errors, expect, make_folder, read_json, read_run, replacing, write_json
from twotemp.models.transformer import Transformer
from twotemp.rl.settings import GrpoSettings

FOLDER = "checkpoints"
ADAPTER = "adapter"
ADAPTER_NAME = "default"  # PEFT's, part of its parameters' names but not of those on disk
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # PEFT's name
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
KEPT = 2  # checkpoints
_PREFIX = "base_model.model."  # of all names in a `PeftModel`


def trainable(model: Transformer, settings: GrpoSettings) -> Any:
    """Prepare the model's network in place and return it; only its trained parameters require gradients.

    With LoRA it is a `PeftModel`, whose configuration comes from the settings alone. A stored `adapter_config.json`
    is for other programs: some versions of PEFT import any module that such a file names.
    """
    if not settings.lora_rank:
        return model.module.requires_grad_(True)
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise UserError(
            "LoRA needs peft: pip install 'twotemp[train]' (or lora_rank=0 for all weights)"
        ) from None
    config = LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules="all-linear")
    model.module.name_or_path = model.name  # what the saved adapter names as its base
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)  # the same initial values on every worker
        return get_peft_model(model.module, config, adapter_name=ADAPTER_NAME)


def published_adapter(
    model: Transformer, config: Any, weights: Mapping[str, Tensor]
) -> tuple[Any, dict[str, Tensor]] | None:
    """Return an adapter's config and weights under the module names of the checkpoint's own code.

    That code, to which others attach the adapter, may have other names than the native class (LLaDA).

    Args:
        model: The model.
        config: The adapter's PEFT config.
        weights: The adapter's parameters by name.

    Returns:
        The config and the weights; None for a mixture of experts, whose own code has no modules like the native ones.
    """
    modules = {native: own for own, native in model.published_modules().items()}
    targets, tensors = set(), {}
    for name, tensor in weights.items():
        native, _, kind = name.removeprefix(_PREFIX).removesuffix(f".{ADAPTER_NAME}.weight").rpartition(".")
        if native not in modules:
            return None
        targets.add(modules[native])
        tensors[f"{_PREFIX}{modules[native]}.{kind}.weight"] = tensor
    return replace(config, target_modules=sorted(targets)), tensors


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
        adapter: what `published_adapter` returned; None: there is none to write.

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

    expect(run, "grpo")
    settings = GrpoSettings.from_dict((read_run(run) or {})["settings"])
    state, weights, _ = read(run)
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


def _steps(run: Path) -> list[Path]:
    """Return the folders of all checkpoints, the oldest first."""
    return sorted((run / FOLDER).glob("step-*"))


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
