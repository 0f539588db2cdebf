"""How many rows fit: a guess before the run, and what to do when it was wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from twotemp.engine.rows import widths
from twotemp.models.base import Denoiser, LanguageModel
from twotemp.records import Request

MOST_ROWS = 64  # more rows in a batch gain little: the matrix products are large enough
_SHARE = 0.5  # of the free memory; the rest is for the allocator's gaps and other people
_ACTIVATIONS = 24  # floats per hidden unit that are alive at once in a layer, roughly
_LOGIT_COPIES = 3  # the logits themselves and what the draw needs beside them
_STABLE_COPIES = 4  # KL stability: the prediction before, the one now, and their two products
_REPEL_COPIES = (
    4  # samples that repel each other: predictions, gradients, their product, and the logits moved
)
_FLOAT = 4
_MEMINFO, _OWN_CGROUP, _CGROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def fit_batch(model: Denoiser, requests: Sequence[Request], cache: str | None) -> tuple[int, str]:
    """How many of these rows to decode together, by the memory that is free now; and why so many."""
    fitting = max(1, int(_SHARE * free_bytes(model.device) / max(1, row_bytes(model, requests, cache))))
    if len(requests) <= min(fitting, MOST_ROWS):
        return len(requests), "all there are"
    if fitting >= MOST_ROWS:
        return MOST_ROWS, "the most, unless asked for more"
    return fitting, "what should fit into the memory that is free"


def row_bytes(model: Denoiser, requests: Sequence[Request], cache: str | None) -> int:
    """About what a row needs beside the weights."""
    columns, block = widths(requests, model)
    stable = any(r.policy.rule == "stable" for r in requests)
    repel = any(r.policy.repel for r in requests)
    copies = _LOGIT_COPIES + stable * _STABLE_COPIES + repel * _REPEL_COPIES
    logits = block * model.vocab_size * copies
    if not isinstance(model, LanguageModel):
        return _FLOAT * logits
    kept = model.cached_bytes if cache or model.block_size else 0
    return _FLOAT * (columns * model.layer_units * _ACTIVATIONS + logits) + columns * kept


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([_available_bytes(), *_cgroup_rooms()])


def _available_bytes() -> int:
    """Of the machine; page cache that can be dropped counts as free."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:  # no Linux, and nobody else says what is free: take half of what there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(kilobytes)


def _cgroup_rooms() -> list[int]:
    """What our control group and those around it may still take (v2); empty where nothing is limited."""
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


class Survived(AbstractContextManager["Survived"]):
    """Running out of memory ends the block and no more; `ran_out` says that it did.

    A block and not an `except`, inside which the error would keep the failed step's tensors alive.
    """

    ran_out = False

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.ran_out = error is not None and out_of_memory(error)
        return self.ran_out


_SIGNS = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Is this torch saying that memory ran out, on a GPU or a CPU?"""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
    )
