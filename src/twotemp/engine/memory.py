"""How many rows fit into memory: an estimate before the run, and how to survive a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from twotemp.engine.rows import widths
from twotemp.models.base import Denoiser, LanguageModel
from twotemp.models.memory import free_bytes
from twotemp.records import Request

MOST_ROWS = 64  # more rows in a batch gain little: the matrix products are large enough
_SHARE = 0.5  # of the free memory; the rest is for fragmentation and other processes
_ACTIVATIONS = 24  # floats per hidden unit that are alive at once in a layer, roughly
_LOGIT_COPIES = 3  # the logits themselves and the temporaries of the draw
_STABLE_COPIES = 4  # KL stability: the prediction before, the one now, and their two products
_REPEL_COPIES = 4  # repulsion: predictions, gradients, their product, and the pushed logits
_FLOAT = 4


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
