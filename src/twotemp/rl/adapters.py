"""Which parameters are trained: LoRA adapters (by PEFT) or all of them."""

from __future__ import annotations

from typing import Any

import torch

from twotemp.errors import UserError
from twotemp.models.transformer import Transformer
from twotemp.rl.settings import GrpoSettings

NAME = (
    "default"  # PEFT's name of the adapter, which is part of its parameters' names but not of those on disk
)


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


def name_on_disk(parameter: str) -> str:
    """Return `...lora_A.weight` for the parameter `...lora_A.default.weight`."""
    return parameter.replace(f".{NAME}.", ".")


def parameter_name(on_disk: str) -> str:
    """Return `...lora_A.default.weight` for `...lora_A.weight`."""
    module, _, kind = on_disk.rpartition(".")
    return f"{module}.{NAME}.{kind}"
