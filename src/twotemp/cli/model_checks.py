"""The checks of `twotemp doctor` that need torch: --model, whether a checkpoint fits; --gpu, a decoding step."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch

from twotemp.cli.doctor import CheckResult
from twotemp.engine.batch import Batch, Observer
from twotemp.engine.scheduler import fit_batch, widths
from twotemp.errors import UserError
from twotemp.models import catalogue, weight_loading
from twotemp.models.load import load, usable_device, usable_dtype
from twotemp.models.summary import ModelSummary, summarize
from twotemp.policies import policy
from twotemp.records import Request

PROMPT, LENGTH, ROWS, PASSES = 64, 32, 4, 10


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


def gpu_checks(source: str, device: str = "cuda", cuda: Any = torch.cuda) -> Iterator[CheckResult]:
    """Yield what a GPU does with a model: formats, time of a pass, rows that fit, and whether a step waits for it.

    Args:
        source: The model, as `load` names it; its weights are loaded.
        device: Where.
        cuda: torch.cuda, or a stand-in for it.
    """
    if not cuda.is_available():
        yield "gpu", "missing", "torch finds no CUDA device; install a build of torch for your driver"
        return
    model: Any = load(source, device=device)
    yield "gpu", "ok", f"{cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    attention = getattr(model.module.config, "_attn_implementation", "unknown")
    yield "formats", "ok", f"{str(model.module.dtype).removeprefix('torch.')}, attention {attention}"
    prompt = min(PROMPT, (model.max_length or PROMPT + LENGTH) - LENGTH)
    usable = [
        token for token in range(model.vocab_size) if token not in (*model.forbidden_ids, model.mask_id)
    ]
    rows = [Request(str(n), (usable[n],) * prompt, policy("tct"), LENGTH) for n in range(ROWS)]
    count, reason = fit_batch(model, rows[:1] * 64, None)
    yield "rows", "ok", f"{count} rows of {prompt} + {LENGTH} tokens ({reason})"
    with torch.inference_mode():
        batch = Batch(model, rows, *widths(rows, model))
        batch.commit(batch.run(Observer()))  # kernels are loaded by their first use
        cuda.synchronize()
        started = perf_counter()
        for _ in range(PASSES):
            batch.run(Observer())
        cuda.synchronize()
        yield (
            "pass",
            "ok",
            f"{1000 * (perf_counter() - started) / PASSES:.1f} ms for {ROWS} rows, with the policy",
        )
        cuda.set_sync_debug_mode("error")
        try:
            batch.run(Observer())
        except RuntimeError as error:
            yield "waits", "broken", f"a step waits for the device before it is committed: {error}"
        else:
            yield "waits", "ok", "none before the commit of a step"
        finally:
            cuda.set_sync_debug_mode("default")
