"""A module's weights from a checkpoint's files, tensor by tensor: never more in memory than the model and one shard.

A family says where its checkpoint's tensors lie in the native ones (`Layout`). The rest follows from that: the check
of names and shapes before anything is read, loading into place, and saving.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from twotemp.models.checkpoint import check_shapes, read_headers, stream

T = TypeVar("T")
Weights = dict[str, Tensor]
# By a checkpoint's own names: views of native tensors which, one above the other, are the checkpoint's tensor.
Layout = dict[str, tuple[Tensor, ...]]
EXPERTS = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)")


@torch.no_grad()
def fill(
    module: nn.Module,
    layout: Callable[[], Layout],
    files: Sequence[Path],
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    float32: tuple[str, ...] = (),
    finished: Callable[[Tensor], object] = lambda tensor: None,
) -> None:
    """Give a module on "meta" its weights, on a device.

    layout: of the module's tensors as they are at the time. dtype: None is the one most of the file is in.
    float32: endings of names that stay so in any dtype. finished: told of every native tensor once it is complete.
    """
    headers = read_headers(files)
    check_shapes(
        {key: shape for key, (shape, _) in headers.items()},
        {key: (sum(p.shape[0] for p in parts), *parts[0].shape[1:]) for key, parts in layout().items()},
        str(files[0].parent),
    )
    dtype = dtype or max(headers.values(), key=lambda header: torch.Size(header[0]).numel())[1]
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        tensor.data = tensor.data.to(torch.float32 if name.endswith(float32) else dtype)
    # Memory of the host is only taken when it is written to.
    module.to_empty(device=device)
    places = layout()
    left: dict[int, int] = {}
    for part in chain.from_iterable(places.values()):
        left[part.untyped_storage().data_ptr()] = left.get(part.untyped_storage().data_ptr(), 0) + 1
    for key, tensor in stream(files):
        for part, values in zip(places[key], tensor.split_with_sizes([p.shape[0] for p in places[key]])):
            part.copy_(values)
            whole = part.untyped_storage().data_ptr()
            left[whole] -= 1
            if not left[whole]:
                finished(part)


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
