"""Which ids are special in a checkpoint: from the caller, else its config, else what is known of its family."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from twotemp.errors import UserError
from twotemp.models.transformer import Special, Transformer


def resolve(
    family: type[Transformer],
    config: Mapping[str, Any],
    *,
    rows: int,
    tokenizer: Any = None,
    generation_config: Mapping[str, Any] | None = None,
    mask_id: int | None = None,
    eos_ids: Collection[int] | None = None,
    block_size: int | None = None,
) -> Special:
    """The special ids of a model with `rows` vocabulary rows; a UserError names the argument that is missing."""
    known = family.known if family.known.vocabulary == rows else None
    vocabulary: dict[str, int] = tokenizer.get_vocab() if tokenizer is not None else {}

    if mask_id is None:
        mask_id = config.get("mask_token_id")
    if mask_id is None and known:
        mask_id = known.mask_id
    if mask_id is None:
        raise _unknown(family, "mask id", "mask_id=...")

    if eos_ids is None:
        eos_ids = _end_ids(config, generation_config or {})
        if not isinstance(config.get("eos_token_id"), list):  # a list is complete, a single id rarely is
            eos_ids |= {vocabulary[token] for token in family.end_tokens if token in vocabulary}
            eos_ids |= set(known.eos_ids) if known else set()
        if not eos_ids:
            raise _unknown(family, "end-of-text ids", "eos_ids=(...) (empty: no such token)")

    if not family.block_causal and block_size is not None:
        raise UserError(
            f"{family.family} attends to all positions and has no block size; leave block_size out "
            "(the decoding block is a property of the request)"
        )
    if family.block_causal:
        block_size = block_size or config.get("block_size") or (known.block_size if known else None)
        if block_size is None:
            raise _unknown(family, "block size", "block_size=...")
        if not isinstance(block_size, int) or block_size < 1:
            raise UserError(f"block_size must be an integer >= 1, not {block_size!r}")

    if vocabulary:
        unused = set(range(rows)) - set(vocabulary.values())
    else:
        unused = set(range(known.tokens, rows)) if known and known.tokens else set()
    return special(rows, mask_id, eos_ids, unused, block_size)


def special(
    rows: int, mask_id: int, eos_ids: Collection[int], unused: Collection[int], block_size: int | None = None
) -> Special:
    """Check the ids against the vocabulary and freeze them."""
    for what, ids in (("mask_id", [mask_id]), ("eos_ids", eos_ids)):
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < rows:
                raise UserError(f"{what}: {i!r} is not one of the model's {rows} token ids")
    if mask_id in eos_ids:
        raise UserError(f"token {mask_id} cannot be both the mask and an end-of-text token; correct eos_ids")
    return Special(mask_id, tuple(sorted(eos_ids)), tuple(sorted({mask_id, *unused})), block_size)


def _end_ids(*configs: Mapping[str, Any]) -> set[int]:
    ids: set[int] = set()
    for config in configs:
        value = config.get("eos_token_id")
        ids |= set(value) if isinstance(value, list) else set() if value is None else {value}
    return ids


def _unknown(family: type[Transformer], what: str, argument: str) -> UserError:
    return UserError(
        f"this {family.family} checkpoint does not name its {what}; pass load(..., {argument}) (as the "
        "checkpoint's authors give it)"
    )
