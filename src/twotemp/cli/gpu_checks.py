"""The checks of `twotemp doctor --gpu`: one decoding step on a GPU, as lines to paste into an issue."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch

from twotemp.cli.doctor import CheckResult
from twotemp.engine.batch import Batch, Observer
from twotemp.engine.scheduler import fit_batch, widths
from twotemp.models.load import load
from twotemp.policies import policy
from twotemp.records import Request

PROMPT, LENGTH, ROWS, PASSES = 64, 32, 4, 10


def gpu_checks(source: str, device: str = "cuda", cuda: Any = torch.cuda) -> Iterator[CheckResult]:
    """Yield what a GPU does with a model: formats, time of a pass, rows that fit, and whether a step waits for it.

    Args:
        source: the model, as `load` names it; its weights are loaded.
        device: where.
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
