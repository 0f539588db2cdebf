"""Translate the arguments that a harness passes on from its command line."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from twotemp.models.base import LanguageModel
from twotemp.models.load import load
from twotemp.policies import AnyPolicy, parse_portfolio

log = logging.getLogger("twotemp")


def load_model(name: str, *, eos_id: int | None = None, **options: Any) -> LanguageModel:
    """Return `twotemp.load`'s model. Harness arguments cannot be lists, so there is a single end-of-text id."""
    return load(name, eos_ids=None if eos_id is None else [eos_id], **options)


def policy_of(spec: str) -> AnyPolicy:
    """Return the policy or portfolio of a spelling such as `tct:t_pos=0.2;threshold=0.6`.

    Both harnesses split their arguments at commas, so semicolons may separate the parameters.
    """
    return parse_portfolio(str(spec).replace(";", ","))


def device_of(device: str | None) -> str | None:
    """Return the device to load on; None if it is a GPU (lm-eval's default is `cuda:0`) and there is none."""
    from torch import cuda

    if device is not None and device.startswith("cuda") and not cuda.is_available():
        log.warning("no GPU for device=%s; using the CPU", device)
        return None
    return device


def batch_size_of(batch_size: Any, maximum: int | None) -> int | None:
    """Return the number of rows to decode together; None for as many as fit into memory.

    lm-eval's default is 1. Samples do not depend on the batch, so 1 and `auto` leave the choice to the engine, up to
    `maximum`; a `maximum` of 1 decodes one row at a time.
    """
    if batch_size is None or str(batch_size) == "1" or str(batch_size).startswith("auto"):
        return maximum
    return int(batch_size)


def answer_length(model: LanguageModel, prompt: Sequence[int], limit: int | None, name: str) -> int | None:
    """Return the number of tokens to generate: the task's limit, cut to what the model's context leaves.

    Args:
        model: The model, which may have a shorter context than the task was written for.
        prompt: The token ids of the prompt.
        limit: The task's limit; None for `twotemp.sample`'s default.
        name: Names the request in the warning.
    """
    left = None if model.max_length is None else model.max_length - len(prompt)
    if limit is None or left is None or limit <= left or left < 1:
        return limit
    log.warning("%s: the context leaves %d tokens for the answer, not %d", name, left, limit)
    return left


def import_settings(
    model: LanguageModel, policy: AnyPolicy, block: int | None, seed: int, cache: str | None, compile: bool
) -> dict[str, Any]:
    """Return the settings that `twotemp import` needs, for the harness to store with the samples."""
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "policy": policy.to_dict(),
        "block": block,
        "seed": seed,
        "cache": cache,
        "compile": compile,
    }
