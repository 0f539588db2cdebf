"""The memory that is free on a device, and whether a model's weights fit into it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from twotemp.errors import UserError
from twotemp.models.quantize import quantized_layers

_MEMINFO, _OWN_CGROUP, _CGROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_QUANTIZED_BYTES = {"int8": 1.0, "int4": 0.5}  # per weight of a linear layer


def check_room(module: nn.Module, device: torch.device, quantize: str | None) -> None:
    """Refuse weights that do not fit, before any of them is read: Linux grants memory it lacks, and kills later.

    Args:
        module: the network on "meta", in the number format that it will have.
        device: where the weights go.
        quantize: the format of its linear layers, if they are quantized.
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
        for layer in quantized_layers(module):
            saved = layer.weight.element_size() - _QUANTIZED_BYTES[quantize]
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
    """Return the memory that is free on a device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
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
