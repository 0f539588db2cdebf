"""The parameters that are trained, LoRA adapters (by PEFT) or all, and the state of a run on disk.

A checkpoint appears whole or not at all. safetensors and JSON, no pickle.

RUN/checkpoints/step-00000020/   weights.safetensors, optimizer.safetensors, state.json; of LoRA also adapter/,
                                 the same weights as PEFT loads them onto the checkpoint's own code
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from twotemp.errors import UserError
from twotemp.folders import disk_errors, expect, make_folder, read_json, read_run, replacing, write_json
from twotemp.models.checkpoint import empty_tensors, open_weights, save, weight_files, write_shards
from twotemp.models.load import load_text, locate
from twotemp.models.transformer import Transformer
from twotemp.rl.settings import GrpoSettings

FOLDER = "checkpoints"
ADAPTER = "adapter"
ADAPTER_NAME = "default"  # PEFT's; it occurs in the names of parameters, but not in those on disk
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # PEFT's name
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
KEPT = 2  # checkpoints
PREFIX = "base_model.model."  # of all names in a `PeftModel`


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
    targets = settings.lora_targets
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=targets if targets == "all-linear" else targets.split(","),
    )
    model.module.name_or_path = model.name  # what the saved adapter names as its base
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)  # the same initial values on every worker
        try:
            return get_peft_model(model.module, config, adapter_name=ADAPTER_NAME)
        except ValueError as error:
            raise UserError(f"--lora-targets {targets}: {str(error).splitlines()[0]}") from error


def published_adapter(
    model: Transformer, config: Any, weights: Mapping[str, Tensor]
) -> tuple[Any, dict[str, Tensor]] | None:
    """Return an adapter's config and weights under the module names of the checkpoint's own code.

    Other programs attach the adapter to that code, whose module names may differ from the native class's (LLaDA).

    Args:
        model: The model.
        config: The adapter's PEFT config.
        weights: The adapter's parameters by name.

    Returns:
        The config and the weights; None for a mixture of experts, whose code is structured differently.
    """
    modules = {native: own for own, native in model.published_modules().items()}
    targets, tensors = set(), {}
    for name, tensor in weights.items():
        native, _, kind = name.removeprefix(PREFIX).removesuffix(f".{ADAPTER_NAME}.weight").rpartition(".")
        if native not in modules:
            return None
        targets.add(modules[native])
        tensors[f"{PREFIX}{modules[native]}.{kind}.weight"] = tensor
    return replace(config, target_modules=sorted(targets)), tensors


@dataclass(frozen=True)
class State:
    """The counters of a run. Noise is addressed by step and problem, so there is no generator state to store."""

    step: int = 0
    problems: int = 0  # number of training problems used so far
    nfe: int = 0
    seconds: float = 0.0
    threshold: float | None = None  # lambda, if it is controlled
    knobs: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of the policy's learned parameters


def write(
    run: Path,
    state: State,
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    adapter: tuple[Any, Mapping[str, Tensor]] | None,
) -> Path:
    """Write a checkpoint next to the older ones, then remove all but the last two.

    Args:
        run: The run's folder.
        state: The counters; `state.step` names the checkpoint.
        weights: Trained parameters by name.
        moments: The optimizer's state, `<parameter>/<field>`.
        adapter: What `published_adapter` returned; None: there is none to write.

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
        return _read_state(folder), load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise UserError(
            f"{folder} cannot be read ({error}); remove this folder to continue from the checkpoint before it"
        ) from error


def _read_state(folder: Path) -> State:
    return State(**read_json(folder / STATE))


def exists(run: Path) -> bool:
    """Return whether the run has a checkpoint."""
    return bool(_steps(run))


def latest(run: Path) -> Path:
    """Return the folder of the last checkpoint."""
    folders = _steps(run)
    if not folders:
        raise UserError(f"{run} has no checkpoint in {FOLDER}/; start again with another --out")
    return folders[-1]


def export(source: str | Path, run: Path, out: Path, **options: Any) -> Path:
    """Write the trained model in its family's own layout and the number format of the untrained one.

    The host holds one file of the model at a time, and the adapters.

    Args:
        source: The untrained model, as `load` names it.
        run: The run's folder.
        out: Where to write.
        options: Of `load_text`.

    Returns:
        The written folder.
    """
    expect(run, "grpo")
    described = read_run(run) or {}
    settings = GrpoSettings.from_dict(described["settings"])
    text: Any = load_text(source, **options)
    files = weight_files(locate(source, options.get("revision")))
    parts = text.parts(text.native_config(text.config), files)
    checkpoint = latest(run)
    after = _trained_weights(trainable(text, settings), checkpoint, text.name)

    def read(key: str) -> Tensor:
        before = stored(key)
        sizes = [part.shape[0] for _, part in parts[key]]
        pieces = zip(parts[key], before.split_with_sizes(sizes))
        changed = [after[name](part, piece) if name in after else piece for (name, part), piece in pieces]
        return before if not any(name in after for name, _ in parts[key]) else torch.cat(changed)

    with open_weights(files) as stored:
        return save(
            text,
            out,
            about=f"The model after {_read_state(checkpoint).step} steps of GRPO with twotemp.",
            settings={name: described[name] for name in ("task", "grader", "rewards", "settings")},
            write_weights=lambda folder: write_shards(empty_tensors(files), folder, read),
        )


# Maps a view of a native tensor and its values before training to its values after training.
_Change = Callable[[Tensor, Tensor], Tensor]


def _trained_weights(network: Any, checkpoint: Path, name: str) -> dict[str, _Change]:
    """Return how a checkpoint changes each trained native tensor, by its name.

    Args:
        network: What `trainable` returned, on "meta"; takes adapters in place.
        checkpoint: The checkpoint's folder.
        name: Of the model, for error messages.
    """
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    weights = load_file(checkpoint / WEIGHTS)  # mapped: pages are read when they are used
    if {key: p.shape for key, p in trained.items()} != {key: t.shape for key, t in weights.items()}:
        raise UserError(
            f"{checkpoint} holds weights of another model than {name!r}; give the one named in run.json"
        )
    if not hasattr(network, "peft_config"):
        return {key: partial(_replaced, tensor) for key, tensor in weights.items()}
    for key, tensor in weights.items():
        module, _, kind = key.rpartition(".")
        setattr(network.get_submodule(module), kind, nn.Parameter(tensor, requires_grad=False))
    changes: dict[str, _Change] = {}
    for path, layer in network.named_modules():
        if hasattr(layer, "get_delta_weight"):
            native = path.removeprefix(PREFIX).replace(".base_layer", "")
            changes[f"{native}.{getattr(layer, 'parameter_name', 'weight')}"] = partial(_added, layer)
    return changes


def _replaced(trained: Tensor, part: Tensor, before: Tensor) -> Tensor:
    return _view(trained, part).to(before.dtype)


def _added(layer: Any, part: Tensor, before: Tensor) -> Tensor:
    layer.get_param = lambda: torch.zeros(())  # of stacked experts, whose update PEFT moves to their device
    return (before + _view(layer.get_delta_weight(ADAPTER_NAME), part)).to(before.dtype)


def _view(tensor: Tensor, part: Tensor) -> Tensor:
    """Return the values of a native tensor at the place of a view."""
    return tensor.as_strided(part.shape, part.stride(), part.storage_offset())


def _steps(run: Path) -> list[Path]:
    """Return the folders of all checkpoints, the oldest first."""
    return sorted((run / FOLDER).glob("step-*"))


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
