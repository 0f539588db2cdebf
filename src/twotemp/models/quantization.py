"""Quantized linear layers, weights only: int8 and int4 by torchao, nf4 (QLoRA's and d1's 4 bits) by bitsandbytes.

The embedding and the head are not quantized. Activations, and adapters beside a quantized base, keep their format.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from twotemp.errors import UserError, unknown

PACKAGES = {"int8": "torchao", "int4": "torchao", "nf4": "bitsandbytes"}
_NF4_BLOCK = 64  # weights that share a scale, itself a number of 8 bits
BYTES = {"int8": 1.0, "int4": 0.5, "nf4": 0.5 + 1 / _NF4_BLOCK}  # per weight of a linear layer
_SLICE_BYTES, _SLICE_ROWS = 2 << 20, 64  # of converted weights: about, and a multiple of


def check_quantize(kind: str, device: torch.device) -> None:
    """Raise a UserError for what is impossible on this machine, before anything is read."""
    if kind not in PACKAGES:
        raise unknown("quantize", kind, PACKAGES)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # they warn about kernels for other machines
    try:
        import_module(PACKAGES[kind])
    except ImportError:
        raise UserError(
            f"quantize={kind!r} needs {PACKAGES[kind]}: pip install 'twotemp[quantize]'"
        ) from None
    finally:
        logging.disable(before)
    if kind == "int4" and device.type != "cuda":
        raise UserError(
            f"quantize='int4' works on NVIDIA GPUs only, not on {device.type}; use quantize='nf4' or 'int8'"
        )


def quantized_layers(module: nn.Module, kind: str) -> list[nn.Linear]:
    """Return the layers to quantize.

    For nf4 these are the layers whose rows consist of whole blocks, as all of LLaDA's and Dream's do: on a CPU,
    bitsandbytes 0.50 multiplies others by the scales of other rows.
    """
    if any(name.endswith("experts.gate_up_proj") for name, _ in module.named_parameters()):
        raise UserError(
            "a mixture of experts cannot be quantized: its experts, nearly all of its weights, are not linear "
            "layers; load it with dtype='bfloat16', over several GPUs with device_map='auto'"
        )
    block = _NF4_BLOCK if kind == "nf4" else 1
    return [
        layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and name != "lm_head" and layer.in_features % block == 0
    ]


def quantize_layer(layer: nn.Linear, kind: str, device: torch.device) -> None:
    """Quantize a layer and move it to the device."""
    if kind == "nf4":
        from bitsandbytes.nn import Params4bit

        layer.weight = Params4bit(layer.weight.detach(), requires_grad=False, quant_type="nf4")
        layer.to(device)  # bitsandbytes quantizes a weight when it is moved
        layer.__class__ = Nf4Linear
        return
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    layer.to(device)
    if kind == "int8":
        quantize_(layer, Int8WeightOnlyConfig())
        if device.type == "cpu":
            layer.__class__ = SlicedLinear
    else:
        quantize_(layer, Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"))


class Nf4Linear(nn.Linear):
    """A layer whose weight is a `Params4bit` of bitsandbytes."""

    def forward(self, input: Tensor) -> Tensor:
        import bitsandbytes

        weight: Any = self.weight
        bias = None if self.bias is None else self.bias.to(input.dtype)
        product: Tensor = bitsandbytes.matmul_4bit(
            input, weight.t(), quant_state=weight.quant_state, bias=bias
        )
        return product


class SlicedLinear(nn.Linear):
    """An int8 layer on a CPU, of which some outputs are computed at a time.

    torchao converts all weights of a layer to the format of its inputs in every call. For a large layer that is
    memory which the system has to provide anew each time, and takes several times as long as the product; a slice of
    the weights stays in the processor's cache.
    """

    def forward(self, input: Tensor) -> Tensor:
        row = self.in_features * input.dtype.itemsize
        rows = _SLICE_ROWS * max(1, _SLICE_BYTES // (row * _SLICE_ROWS))
        if rows >= self.out_features or torch.is_grad_enabled():  # slices would be kept for the backward pass
            return super().forward(input)
        weight: Any = self.weight
        slices = (part.to(input.dtype) for part in weight.qdata.split(rows))
        product: Tensor = torch.cat([functional.linear(input, part) for part in slices], -1)
        scaled: Tensor = product * weight.scale.flatten().to(input.dtype)
        return scaled if self.bias is None else scaled + self.bias


def is_quantized(module: nn.Module) -> bool:
    """Return whether any weight is quantized."""
    return any(
        is_traceable_wrapper_subclass(weight) or not weight.is_floating_point()
        for weight in module.parameters()
    )
