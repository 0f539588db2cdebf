"""Which parameters are trained: LoRA adapters (by PEFT) or all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from twotemp.errors import UserError
from twotemp.models.transformer import Transformer
from twotemp.rl.settings import GrpoSettings

NAME = "default"  # PEFT's name of the adapter, part of its parameters' names but not of those on disk
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
        return get_peft_model(model.module, config, adapter_name=NAME)


def published(
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
        native, _, kind = name.removeprefix(_PREFIX).removesuffix(f".{NAME}.weight").rpartition(".")
        if native not in modules:
            return None
        targets.add(modules[native])
        tensors[f"{_PREFIX}{modules[native]}.{kind}.weight"] = tensor
    return replace(config, target_modules=sorted(targets)), tensors
