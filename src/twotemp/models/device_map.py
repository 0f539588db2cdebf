"""Distribute one model over several GPUs, layer by layer (accelerate); each layer runs where its weights are."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from twotemp.errors import UserError


def check_device_map(device_map: str | None, device: object, quantize: str | None) -> None:
    """Raise a UserError for what is impossible on this machine, before anything is read."""
    if device_map is None:
        return
    if device_map != "auto":
        raise UserError(f"device_map must be 'auto' (or left out), not {device_map!r}")
    if device is not None or quantize is not None:
        raise UserError(
            "device_map='auto' chooses the devices itself and takes weights as they are: leave device "
            "and quantize out"
        )
    try:
        import accelerate  # noqa: F401
    except ImportError:
        raise UserError("device_map needs accelerate: pip install 'twotemp[train]'") from None


def assign_devices(module: Any) -> dict[str, torch.device]:
    """Return the device of each module (weights on "meta"): evenly over all GPUs; the CPU if there is none."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    if not torch.cuda.is_available():
        return {"": torch.device("cpu")}
    atomic = list(module._no_split_modules)
    memory = get_balanced_memory(module, no_split_module_classes=atomic)
    devices = infer_auto_device_map(module, memory, no_split_module_classes=atomic)
    if {"cpu", "disk"} & {str(device) for device in devices.values()}:
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        raise UserError(
            f"the weights take {size / 1e9:.1f} GB, more than is free on the {torch.cuda.device_count()} GPUs; "
            "load with quantize='int8' on one, or with device='cpu'"
        )
    return {name: torch.device("cuda", int(device)) for name, device in devices.items()}


def add_device_hooks(module: Any) -> None:
    """Add hooks that move the inputs of each layer, the embedding and the head to its device."""
    from accelerate import dispatch_model

    names = ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"]
    names += [f"model.layers.{number}" for number in range(len(module.model.layers))]
    devices = {}
    for name in names:
        part = module.get_submodule(name)
        devices[name] = next(chain(part.parameters(), part.buffers())).device
    if len(set(devices.values())) > 1:
        dispatch_model(module, devices, skip_keys="past_key_values")
