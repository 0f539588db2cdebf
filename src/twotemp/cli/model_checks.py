"""The checks of `twotemp doctor --model`: what a checkpoint is, and whether it fits into memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from twotemp.cli.doctor import CheckResult
from twotemp.errors import UserError
from twotemp.models import catalogue, weight_loading
from twotemp.models.load import usable_device, usable_dtype
from twotemp.models.summary import ModelSummary, summarize


def model_checks(source: str) -> Iterator[CheckResult]:
    """Yield what is known of a model: its family, special tokens, download and memory."""
    known = catalogue.find(source)
    try:
        checkpoint = summarize(source)
    except UserError as error:
        yield "model", "broken", str(error)
        if known is not None:
            family, mask_id, shift, attention = known.kind
            yield "published", "ok", f"{family}, mask id {mask_id}, shifted: {shift}, {attention}"
            yield "compared", "ok", f"with the published checkpoint: {known.checked}"
        return
    millions = checkpoint.parameters / 1e6
    size = f"{millions / 1000:.2f} billion" if millions >= 1000 else f"{millions:.2f} million"
    yield "model", "ok", f"{checkpoint.family}, {size} parameters"
    yield "tokens", "ok" if checkpoint.complete else "missing", checkpoint.about
    if known is not None:
        yield "compared", "ok", f"with the published checkpoint: {known.checked}"
    yield _download(checkpoint)
    yield _memory(checkpoint)


def _download(checkpoint: ModelSummary) -> CheckResult:
    """Return how much of the weights is on this machine."""
    if checkpoint.missing:
        sizes = f"{weight_loading.gigabytes(checkpoint.missing)} of {weight_loading.gigabytes(checkpoint.weights)}"
        return "download", "missing", f"{sizes} are not on this machine yet"
    return "download", "ok", f"{weight_loading.gigabytes(checkpoint.weights)}, complete"


def _memory(checkpoint: ModelSummary) -> CheckResult:
    """Return which number formats fit into the free memory."""
    device = usable_device(None)
    dtype = usable_dtype(None, device) or checkpoint.dtype
    free = weight_loading.free_bytes(device)
    default = str(dtype).removeprefix("torch.")
    ways = {default: checkpoint.parameters * dtype.itemsize}
    ways.setdefault("bfloat16", checkpoint.parameters * torch.bfloat16.itemsize)
    if checkpoint.int8 is not None:
        ways["int8 (quantize)"] = checkpoint.int8
    fits = [way for way, size in ways.items() if size < 0.9 * free]
    if default in fits:
        verdict = "fits"
    else:
        verdict = f"fits only in {' or '.join(fits)}" if fits else "does not fit"
    sizes = ", ".join(f"{weight_loading.gigabytes(size)} in {way}" for way, size in ways.items())
    detail = f"{verdict}: {weight_loading.gigabytes(free)} free on {device}; weights take {sizes}"
    return "memory", "ok" if fits else "missing", detail
