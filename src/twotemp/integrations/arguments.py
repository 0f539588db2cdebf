"""What a harness passes on from its command line, as the rest of the package spells it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from twotemp.models.base import LanguageModel
from twotemp.models.load import load
from twotemp.policies import parse
from twotemp.records import Policy

log = logging.getLogger("twotemp")


def load_model(name: str, *, eos_id: int | None = None, **options: Any) -> LanguageModel:
    """`twotemp.load` with a harness's arguments: they are no lists, so that an end-of-text id is a single one."""
    return load(name, eos_ids=None if eos_id is None else [eos_id], **options)


def policy_of(spec: str) -> Policy:
    """`tct:t_pos=0.2;threshold=0.6`: both harnesses split their arguments at commas, so parameters may be separated
    by semicolons as well."""
    return parse(str(spec).replace(";", ","))


def device_of(device: str | None) -> str | None:
    """lm-eval asks for `cuda:0` unless told otherwise, so without a GPU that means: whatever there is."""
    from torch import cuda

    if device is not None and device.startswith("cuda") and not cuda.is_available():
        log.warning("there is no GPU for device=%s; going on with the CPU", device)
        return None
    return device


def rows_of(batch_size: Any, most: int | None) -> int | None:
    """Rows decoded together; None: what fits into memory.

    lm-eval says 1 unless told otherwise, and samples do not depend on the batch: so 1, like `auto`, leaves the choice
    to the engine. The limit for `auto` is a limit here, too; one row at a time is a limit of 1.
    """
    if batch_size is None or str(batch_size) == "1" or str(batch_size).startswith("auto"):
        return most
    return int(batch_size)


def answer_length(model: LanguageModel, row: Sequence[int], wanted: int | None, name: str) -> int | None:
    """The tokens that a task allows for an answer, as far as the context has room for them; tasks are written for
    models with long ones. None: `twotemp.sample`'s default."""
    left = None if model.max_length is None else model.max_length - len(row)
    if wanted is None or left is None or wanted <= left or left < 1:
        return wanted
    log.warning("%s: the context has room for %d tokens of answer, not %d", name, left, wanted)
    return left


def origin(
    model: LanguageModel, policy: Policy, block: int | None, seed: int, cache: str | None, compile: bool
) -> dict[str, Any]:
    """What a harness notes beside our texts, so that `twotemp import` knows how they were drawn."""
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "policy": policy.to_dict(),
        "block": block,
        "seed": seed,
        "cache": cache,
        "compile": compile,
    }
