"""Linear layers in 8 or 4 bits (torchao, weights only); the embedding and the head keep their numbers."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from twotemp.errors import UserError, unknown

KINDS = ("int8", "int4")


def check_quantize(kind: str | None, device: torch.device) -> None:
    """Refuse what cannot be had here, before anything is read."""
    if kind is None:
        return
    if kind not in KINDS:
        raise unknown("quantize", kind, KINDS)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it reports kernels for other machines that it cannot load
    try:
        import torchao.quantization  # noqa: F401
    except ImportError:
        raise UserError("quantize needs torchao: pip install 'twotemp[quantize]'") from None
    finally:
        logging.disable(before)
    if kind == "int4" and device.type != "cuda":
        raise UserError(
            f"quantize='int4' works on NVIDIA GPUs only, not on {device.type}; take quantize='int8'"
        )


def quantized_layers(module: nn.Module) -> list[nn.Linear]:
    """The layers that are quantized."""
    if any(name.endswith("experts.gate_up_proj") for name, _ in module.named_parameters()):
        raise UserError(
            "a mixture of experts cannot be quantized: its experts, nearly all of its weights, are no linear layers; "
            "load it with dtype='bfloat16', over several GPUs with device_map='auto'"
        )
    return [
        layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"
    ]


def quantize(layer: nn.Linear, kind: str, device: torch.device) -> None:
    """Quantize one layer on the device it shall be on."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    layer.to(device)
    if kind == "int8":
        quantize_(layer, Int8WeightOnlyConfig())
    else:
        quantize_(layer, Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"))


def is_quantized(module: nn.Module) -> bool:
    return any(is_traceable_wrapper_subclass(weight) for weight in module.parameters())


def plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    """A module's tensors; of a quantized one its parts (integers, scales)."""
    found: dict[str, Tensor] = {}
    for key, tensor in module.state_dict().items():
        if is_traceable_wrapper_subclass(tensor):
            inner: Any = tensor
            found |= {f"{key}.{part}": getattr(inner, part) for part in inner.__tensor_flatten__()[0]}
        else:
            found[key] = tensor
    return found
