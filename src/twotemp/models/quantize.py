"""Linear layers in 8 or 4 bits (torchao, weights only); the embedding and the head are not quantized."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from twotemp.errors import UserError, unknown

KINDS = ("int8", "int4")


def check_quantize(kind: str | None, device: torch.device) -> None:
    """Raise a UserError for what is impossible on this machine, before anything is read."""
    if kind is None:
        return
    if kind not in KINDS:
        raise unknown("quantize", kind, KINDS)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it warns about kernels for other machines
    try:
        import torchao.quantization  # noqa: F401
    except ImportError:
        raise UserError("quantize needs torchao: pip install 'twotemp[quantize]'") from None
    finally:
        logging.disable(before)
    if kind == "int4" and device.type != "cuda":
        raise UserError(
            f"quantize='int4' works on NVIDIA GPUs only, not on {device.type}; use quantize='int8'"
        )


def quantized_layers(module: nn.Module) -> list[nn.Linear]:
    """Return the layers to quantize."""
    if any(name.endswith("experts.gate_up_proj") for name, _ in module.named_parameters()):
        raise UserError(
            "a mixture of experts cannot be quantized: its experts, nearly all of its weights, are not linear "
            "layers; load it with dtype='bfloat16', over several GPUs with device_map='auto'"
        )
    return [
        layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"
    ]


def quantize_layer(layer: nn.Linear, kind: str, device: torch.device) -> None:
    """Move a layer to the device and quantize it."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    layer.to(device)
    if kind == "int8":
        quantize_(layer, Int8WeightOnlyConfig())
    else:
        quantize_(layer, Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"))


def is_quantized(module: nn.Module) -> bool:
    """Return whether any weight is quantized."""
    return any(is_traceable_wrapper_subclass(weight) for weight in module.parameters())


def plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors by name; a quantized one as its parts (integers, scales)."""
    tensors: dict[str, Tensor] = {}
    for key, tensor in module.state_dict().items():
        if is_traceable_wrapper_subclass(tensor):
            inner: Any = tensor
            tensors |= {f"{key}.{part}": getattr(inner, part) for part in inner.__tensor_flatten__()[0]}
        else:
            tensors[key] = tensor
    return tensors
