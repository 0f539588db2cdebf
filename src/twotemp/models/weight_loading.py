"""Loading weights tensor by tensor: never more in memory than the model and one shard.

A family defines where its checkpoint's tensors lie in the native ones (`Layout`). The rest follows from that: the
check of names and shapes before anything is read, loading into place, and saving.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from twotemp.errors import UserError
from twotemp.models.checkpoint import check_shapes, read_headers, stream
from twotemp.models.device_map import assign_devices
from twotemp.models.memory import check_room
from twotemp.models.quantize import quantize_layer, quantized_layers

T = TypeVar("T")
Weights = dict[str, Tensor]
# By the checkpoint's names: views of native tensors which, concatenated, are the checkpoint's tensor.
Layout = dict[str, tuple[Tensor, ...]]
EXPERTS = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)")


@dataclass(frozen=True)
class Storage:
    """Where a model's weights are stored, and in which format."""

    device: torch.device
    dtype: torch.dtype | None = None  # None: that of the checkpoint's largest tensor
    quantize: str | None = None  # "int8", "int4": of all linear layers but the head
    device_map: str | None = None  # "auto": layer by layer over all GPUs


@torch.no_grad()
def load_weights(
    module: nn.Module,
    layout: Callable[[], Layout],
    files: Sequence[Path],
    storage: Storage,
    *,
    float32: tuple[str, ...] = (),
) -> None:
    """Load the weights of a module on the "meta" device.

    Args:
        module: The native module.
        layout: Returns the layout of the module's current tensors.
        files: The checkpoint's safetensors files.
        storage: Where to put the weights.
        float32: Endings of names that stay in float32 whatever the dtype.
    """
    headers = read_headers(files)
    check_shapes(
        {key: shape for key, (shape, _) in headers.items()},
        {key: (sum(p.shape[0] for p in parts), *parts[0].shape[1:]) for key, parts in layout().items()},
        str(files[0].parent),
    )
    dtype = storage.dtype or max(headers.values(), key=lambda header: torch.Size(header[0]).numel())[1]
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        tensor.data = tensor.data.to(torch.float32 if name.endswith(float32) else dtype)
    if not storage.device_map:
        check_room(module, storage.device, storage.quantize)
    # What is to be quantized is read into the host's memory (taken only as it is written to), layer by layer.
    host = torch.device("cpu")
    try:
        for name, device in (assign_devices(module) if storage.device_map else {"": storage.device}).items():
            module.get_submodule(name).to_empty(device=host if storage.quantize else device)
    except RuntimeError as error:  # OutOfMemoryError on a GPU, the allocator's own on the host
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        raise UserError(
            f"the weights take {size / 1e9:.1f} GB, which does not fit on {storage.device} ({error}); load with "
            "dtype='bfloat16', quantize='int8' or device_map='auto' (`twotemp doctor --model` shows what fits)"
        ) from error
    targets = layout()
    left = Counter(_base(part) for parts in targets.values() for part in parts)
    linear = {_base(layer.weight): layer for layer in quantized_layers(module)} if storage.quantize else {}
    for key, tensor in stream(files):
        parts = targets.pop(key)  # removed, so that no reference keeps unquantized weights alive
        for part, values in zip(parts, tensor.split_with_sizes([p.shape[0] for p in parts])):
            part.copy_(values)
            left[_base(part)] -= 1
            if not left[_base(part)] and (layer := linear.pop(_base(part), None)) is not None:
                quantize_layer(layer, storage.quantize or "", storage.device)
    if storage.quantize:
        module.to(storage.device)


def _base(tensor: Tensor) -> int:
    """Return the address of the storage that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()


def rename(weights: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    """Return the weights with their modules renamed; `{}` in a name matches a number, in order.

    A module that is not in `names` keeps its name, so that errors report it as it is in the file.
    """
    renamed = {}
    for key, tensor in weights.items():
        module, _, kind = key.rpartition(".")  # kind: weight, bias
        parts = module.split(".")
        numbers = [part for part in parts if part.isdigit()]
        pattern = ".".join("{}" if part.isdigit() else part for part in parts)
        new = names[pattern].format(*numbers) if pattern in names else module
        renamed[f"{new}.{kind}"] = tensor
    return renamed


def split_experts(layout: Layout) -> Layout:
    """Return one gate, up and down projection per expert; the native class has them stacked in two tensors."""
    split: Layout = {}
    for key, parts in layout.items():
        if not (stacked := EXPERTS.fullmatch(key)):
            split[key] = parts
            continue
        for number, expert in enumerate(parts[0]):
            prefix = f"{stacked[1]}.{number}."
            if stacked[2] == "down_proj":
                split[f"{prefix}down_proj.weight"] = (expert,)
            else:
                gate, up = expert.chunk(2)
                split[f"{prefix}gate_proj.weight"] = (gate,)
                split[f"{prefix}up_proj.weight"] = (up,)
    return split
