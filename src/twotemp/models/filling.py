"""A module's weights from a checkpoint's files, tensor by tensor: never more in memory than the model and one shard.

A family says where its checkpoint's tensors lie in the native ones (`Layout`). The rest follows from that: the check
of names and shapes before anything is read, loading into place, and saving.
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
from twotemp.models.memory import check_room
from twotemp.models.quantizing import quantize, quantized_layers
from twotemp.models.spreading import spread

T = TypeVar("T")
Weights = dict[str, Tensor]
# By a checkpoint's own names: views of native tensors which, one above the other, are the checkpoint's tensor.
Layout = dict[str, tuple[Tensor, ...]]
EXPERTS = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)")


@dataclass(frozen=True)
class Storage:
    """Where a model's weights are kept, and in which numbers."""

    device: torch.device
    dtype: torch.dtype | None = None  # None: the one most of the checkpoint is in
    quantize: str | None = None  # "int8", "int4": the linear layers but the head
    device_map: str | None = None  # "auto": layer by layer over all GPUs


@torch.no_grad()
def fill(
    module: nn.Module,
    layout: Callable[[], Layout],
    files: Sequence[Path],
    storage: Storage,
    *,
    float32: tuple[str, ...] = (),
) -> None:
    """Give a module on "meta" its weights.

    layout: of the module's tensors as they are at the time. float32: endings of names that stay so in any dtype.
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
        for name, device in (spread(module) if storage.device_map else {"": storage.device}).items():
            module.get_submodule(name).to_empty(device=host if storage.quantize else device)
    except RuntimeError as error:  # OutOfMemoryError on a GPU, the allocator's own on the host
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        raise UserError(
            f"the weights take {size / 1e9:.1f} GB, for which {storage.device} has no room ({error}); load with "
            "dtype='bfloat16', quantize='int8' or device_map='auto' (`twotemp doctor --model` says what fits)"
        ) from error
    places = layout()
    left = Counter(_whole(part) for parts in places.values() for part in parts)
    linear = {_whole(layer.weight): layer for layer in quantized_layers(module)} if storage.quantize else {}
    for key, tensor in stream(files):
        parts = places.pop(key)  # so that nothing holds what has been quantized
        for part, values in zip(parts, tensor.split_with_sizes([p.shape[0] for p in parts])):
            part.copy_(values)
            left[_whole(part)] -= 1
            if not left[_whole(part)] and (layer := linear.pop(_whole(part), None)) is not None:
                quantize(layer, storage.quantize or "", storage.device)
    if storage.quantize:
        module.to(storage.device)


def _whole(tensor: Tensor) -> int:
    """What a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()


def rename(weights: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    """Weights with their modules renamed; `{}` in a name stands for each number in it, in order.

    A module that is not in `names` keeps its name, so that it can be reported as it was found.
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
    """One gate, up and down projection for each expert, where the native class has them stacked in two tensors."""
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
