"""How many rows fit into memory: an estimate before the run, and how to survive a wrong one."""

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
_SHARE = 0.5  # of the free memory; the rest is for fragmentation and other processes
_ACTIVATIONS = 24  # floats per hidden unit that are alive at once in a layer, roughly
_LOGIT_COPIES = 3  # the logits themselves and the temporaries of the draw
_STABLE_COPIES = 4  # KL stability: the prediction before, the one now, and their two products
_REPEL_COPIES = 4  # repulsion: predictions, gradients, their product, and the pushed logits
_FLOAT = 4
_MEMINFO, _OWN_CGROUP, _CGROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def fit_batch(model: Denoiser, requests: Sequence[Request], cache: str | None) -> tuple[int, str]:
    """Return how many of these rows to decode together, by the memory that is free now, and the reason in words."""
    fitting = max(1, int(_SHARE * free_bytes(model.device) / max(1, row_bytes(model, requests, cache))))
    if len(requests) <= min(fitting, MOST_ROWS):
        return len(requests), "all requests"
    if fitting >= MOST_ROWS:
        return MOST_ROWS, "the default maximum"
    return fitting, "the estimate of what fits into free memory"


def row_bytes(model: Denoiser, requests: Sequence[Request], cache: str | None) -> int:
    """Return roughly what a row needs in addition to the weights."""
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
    """Return the free memory of a GPU, or what this process may still allocate on the host."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([_available_bytes(), *_cgroup_headroom()])


def _available_bytes() -> int:
    """Return the free memory of the machine; page cache that can be dropped counts as free."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:  # not Linux: free memory is unknown, so assume half of the total
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(kilobytes)


def _cgroup_headroom() -> list[int]:
    """Return what our control group (v2) and its parents may still allocate; empty if nothing is limited."""
    try:
        own = next(line[4:] for line in _OWN_CGROUP.read_text().splitlines() if line.startswith("0::/"))
    except (OSError, StopIteration):
        return []
    folder, headroom = _CGROUPS / own, []
    for group in (folder, *folder.parents):
        try:
            limit = (group / "memory.max").read_text().strip()
            used = int((group / "memory.current").read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except OSError:  # the root, or a container that cannot see its parents
            continue
        if limit != "max":
            headroom.append(max(0, int(limit) - used + int(stat["inactive_file"])))
    return headroom


class CatchOutOfMemory(AbstractContextManager["CatchOutOfMemory"]):
    """Suppresses out-of-memory errors of its block; `ran_out` says whether there was one.

    A context manager rather than an `except` clause, because inside one the error keeps the failed step's tensors
    alive, and recovery needs their memory.
    """

    ran_out = False

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.ran_out = error is not None and out_of_memory(error)
        return self.ran_out


_MESSAGES = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Return whether this is torch running out of memory, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
    )
