"""How many rows fit: a guess before the run, and what to do when it was wrong."""

from __future__ import annotations

import os

import torch

from twotemp.models.base import Denoiser

MOST_ROWS = 64  # more rows a batch gain little: the matrix products are large enough
_SHARE = 0.5  # of the free memory; the rest is for the allocator's gaps and other people
_ACTIVATIONS = 24  # floats a hidden unit that are alive at once in a layer, roughly
_LOGIT_COPIES = 3  # the logits themselves and what the draw needs beside them


def fit_batch(model: Denoiser, columns: int, block_width: int) -> int:
    """A batch size that should fit into the memory that is free now, at most MOST_ROWS."""
    config = getattr(getattr(model, "module", None), "config", None)
    hidden = getattr(config, "hidden_size", 0) + getattr(config, "intermediate_size", 0)
    row = 4 * (columns * hidden * _ACTIVATIONS + _LOGIT_COPIES * block_width * model.vocab_size)
    return max(1, min(MOST_ROWS, int(_SHARE * _free_bytes(model.device) / max(row, 1))))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def out_of_memory(error: RuntimeError) -> bool:
    """Is this torch saying that memory ran out, on a GPU or a CPU?"""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
