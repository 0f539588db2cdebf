"""What a request means for a model: whether it can be sampled, its blocks and its columns."""

from __future__ import annotations

from collections.abc import Iterable

from twotemp.errors import UserError
from twotemp.models.base import Denoiser, LanguageModel
from twotemp.records import NO_MASK, Request

DEFAULT_BLOCK = 32


def check(request: Request, model: Denoiser) -> None:
    """Raise a UserError for a request that this model cannot sample, before anything runs."""
    where = request.name
    masks = request.prompt.count(model.mask_id)
    bad = [t for t in request.prompt if not 0 <= t < model.vocab_size and t != model.mask_id]
    if bad:
        raise UserError(f"{where}: token id {bad[0]} is outside the vocabulary of {model.vocab_size}")
    if request.length and masks:
        raise UserError(
            f"{where}: the prompt contains {masks} mask token(s); to fill masks inside a text, use "
            "`infill` (length=0), else remove them"
        )
    if not request.length and not masks:
        raise UserError(f"{where}: nothing to do: length is 0 and the text has no mask token to fill")
    if model.mask_id == NO_MASK and (request.policy.edit != "never" or request.policy.repel):
        raise UserError(
            f"{where}: policy {request.policy.name} edits or repels, which needs masks, and {model.name} has "
            "none: its open positions hold random tokens, and every step decides on all of them; use another policy"
        )
    lookback = model.lookback if isinstance(model, LanguageModel) else 0
    if model.mask_id in request.prompt[:lookback] or len(request.prompt) < lookback:
        raise UserError(
            f"{where}: {model.name} predicts a token from the one before it, so the first position of a row cannot "
            "be predicted; start the text with a given token"
        )
    total = len(request.prompt) + request.length
    if model.max_length is not None and total > model.max_length:
        raise UserError(
            f"{where}: {len(request.prompt)} prompt tokens + length {request.length} = {total} exceed the "
            f"context of {model.max_length}; shorten the prompt or lower length"
        )
    if model.block_size is not None and request.block not in (None, model.block_size):
        raise UserError(
            f"{where}: {model.name} decodes in blocks of {model.block_size} (it was trained on them); "
            f"leave block unset instead of {request.block}, or load with block_size={request.block}"
        )


def block_of(request: Request, model: Denoiser) -> int:
    """Return the width of the request's decoding blocks."""
    return model.block_size or request.block or DEFAULT_BLOCK


def columns_of(request: Request, model: Denoiser) -> int:
    """Return the number of columns of the request's row.

    Most block-causal families know whole blocks only (`completes_blocks`): the last one is completed with masks, as
    in SDAR and LLaDA-2, and what is written beyond `length` is not part of the sample.
    """
    requested = len(request.prompt) + request.length
    completes = model.completes_blocks if isinstance(model, LanguageModel) else True
    if model.block_size is None or not completes or not request.length:
        return requested
    origin = len(request.prompt) if has_canvases(model) else 0
    whole = origin - (origin - requested) // model.block_size * model.block_size
    return whole if model.max_length is None else min(whole, model.max_length)


def has_canvases(model: Denoiser) -> bool:
    """Return whether the model writes one canvas after another: see `LanguageModel.canvases`."""
    return isinstance(model, LanguageModel) and model.canvases


def widths(requests: Iterable[Request], model: Denoiser) -> tuple[int, int]:
    """Return the number of columns and the widest block that these rows need."""
    needed = [(columns_of(r, model), block_of(r, model)) for r in requests]
    columns = max(width for width, _ in needed)
    return columns, min(columns, max(block for _, block in needed))
