"""Loading weights: whether they fit, on which devices and in which format, and then tensor by tensor.

A family defines where its checkpoint's tensors lie in the native ones (`Layout`). The rest follows from that: the
check of names and shapes before anything is read, loading into place, and saving. There is never more in memory than
the model and one shard. A device map distributes the layers over several GPUs (accelerate).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from twotemp.errors import UserError
from twotemp.models.checkpoint import check_shapes, main_dtype, read_headers, read_tensors
from twotemp.models.quantization import BYTES, quantize_layer, quantized_layers

T = TypeVar("T")
Weights = dict[str, Tensor]
# By the checkpoint's names: views of native tensors which, concatenated, are the checkpoint's tensor.
Layout = dict[str, tuple[Tensor, ...]]
EXPERTS = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)")
_MEMINFO, _OWN_CGROUP, _CGROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Storage:
    """Where a model's weights are stored, and in which format."""

    device: torch.device
    dtype: torch.dtype | None = None  # None: that of the checkpoint's largest tensor
    quantize: str | None = None  # "int8", "nf4", "int4": of all linear layers but the head
    device_map: str | None = None  # "auto": layer by layer over all GPUs


@torch.no_grad()
def load_weights(
    module: nn.Module,
    layout: Callable[[], Layout],
    files: Sequence[Path],
    storage: Storage,
    *,
    float32: tuple[str, ...] = (),
    unused: tuple[str, ...] = (),
) -> None:
    """Load the weights of a module on the "meta" device.

    Args:
        module: The native module.
        layout: Returns the layout of the module's current tensors.
        files: The checkpoint's safetensors files.
        storage: Where to put the weights.
        float32: Endings of names that stay in float32 whatever the dtype.
        unused: Beginnings of the checkpoint's names that are not loaded.
    """
    headers = {key: header for key, header in read_headers(files).items() if not key.startswith(unused)}
    check_shapes(
        {key: shape for key, (shape, _) in headers.items()},
        {key: (sum(p.shape[0] for p in parts), *parts[0].shape[1:]) for key, parts in layout().items()},
        str(files[0].parent),
    )
    dtype = storage.dtype or main_dtype(headers)
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        tensor.data = tensor.data.to(torch.float32 if name.endswith(float32) else dtype)
    if not storage.device_map:
        check_room(module, storage.device, storage.quantize)
    kind = storage.quantize
    # What is to be quantized is read into the host's memory (taken only as it is written to), layer by layer.
    host = torch.device("cpu")
    try:
        for name, device in (assign_devices(module) if storage.device_map else {"": storage.device}).items():
            module.get_submodule(name).to_empty(device=host if kind else device)
    except RuntimeError as error:  # OutOfMemoryError on a GPU, the allocator's own on the host
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        raise UserError(
            f"the weights take {size / 1e9:.1f} GB, which does not fit on {storage.device} ({error}); load with "
            "dtype='bfloat16', quantize='int8' or device_map='auto' (`twotemp doctor --model` shows what fits)"
        ) from error
    targets = layout()
    left = Counter(_base(part) for parts in targets.values() for part in parts)
    linear = {_base(layer.weight): layer for layer in quantized_layers(module, kind)} if kind else {}
    for key, tensor in read_tensors(files, unused):
        parts = targets.pop(key)  # removed, so that no reference keeps unquantized weights alive
        for part, values in zip(parts, tensor.split_with_sizes([p.shape[0] for p in parts])):
            part.copy_(values)
            left[_base(part)] -= 1
            if not left[_base(part)] and (layer := linear.pop(_base(part), None)) is not None:
                quantize_layer(layer, kind or "", storage.device)
    if kind:
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


# Several GPUs.


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


# Memory.


def check_room(module: nn.Module, device: torch.device, quantize: str | None) -> None:
    """Refuse weights that do not fit, before any of them is read: Linux grants memory it lacks, and kills later.

    Args:
        module: The network on "meta", in the number format that it will have.
        device: Where the weights go.
        quantize: The format of its linear layers, if they are quantized.
    """
    size, free = weight_bytes(module, quantize), free_bytes(device)
    if size <= free:
        return
    count = sum(weight.numel() for weight in module.parameters())
    ways = {"dtype='bfloat16' (--dtype bfloat16)": count * torch.bfloat16.itemsize}
    if (small := quantized_bytes(module)) is not None:
        ways["quantize='int8' (--quantize int8)"] = small
    fixes = [f"{way}, {gigabytes(needed)}" for way, needed in ways.items() if needed <= free]
    fix = f"load it with {' or '.join(fixes)}" if fixes else "use a machine with more, or device_map='auto'"
    raise UserError(f"the weights take {gigabytes(size)}, and {device} has {gigabytes(free)} free; {fix}")


def weight_bytes(module: nn.Module, quantize: str | None = None) -> int:
    """Return what a network's weights take, in their number formats or with its linear layers quantized."""
    size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
    if quantize is not None:
        for layer in quantized_layers(module, quantize):
            saved = layer.weight.element_size() - BYTES[quantize]
            size -= int(layer.weight.numel() * saved)
    return size


def quantized_bytes(module: nn.Module) -> int | None:
    """Return what a network's weights take in int8, or None where it cannot be quantized."""
    try:
        return weight_bytes(module, "int8")
    except UserError:
        return None


def gigabytes(size: int) -> str:
    """Return a number of bytes as text."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device now, with what torch keeps reserved on a GPU and does not use."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return min([_available_bytes(), *_cgroup_rooms()])


def _available_bytes() -> int:
    """Return the memory of the machine that is free, counting page cache that can be dropped."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:  # not Linux: other systems do not say what is free, so take half of the memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(kilobytes)


def _cgroup_rooms() -> list[int]:
    """Return what our control group and those around it may still take (v2); empty where nothing is limited."""
    try:
        own = next(line[4:] for line in _OWN_CGROUP.read_text().splitlines() if line.startswith("0::/"))
    except (OSError, StopIteration):
        return []
    folder, rooms = _CGROUPS / own, []
    for group in (folder, *folder.parents):
        try:
            limit = (group / "memory.max").read_text().strip()
            used = int((group / "memory.current").read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except OSError:  # the root, or a container that does not see the groups around it
            continue
        if limit != "max":
            rooms.append(max(0, int(limit) - used + int(stat["inactive_file"])))
    return rooms
