"""The special token ids of a checkpoint: from the caller, else from its files, else known of its family."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from twotemp.errors import UserError
from twotemp.models.checkpoint import read_generation_config, read_tokenizer
from twotemp.records import NO_MASK, integer


@dataclass(frozen=True)
class TokenIds:
    """The ids that a sampler must know, and the block size."""

    mask_id: int
    eos_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]
    block_size: int | None
    first_id: int | None = None


@dataclass(frozen=True)
class LoadOverrides:
    """What the caller of `load` passes; it takes precedence over everything else."""

    mask_id: int | None = None
    eos_ids: Collection[int] | None = None
    block_size: int | None = None


@dataclass(frozen=True)
class PublishedIds:
    """What the files of a family's published checkpoints leave out; recognized by the number of vocabulary rows."""

    vocabularies: tuple[int, ...] = ()
    mask_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    tokens: int | None = None  # rows from here on have no token; None: not known without the tokenizer
    block_size: int | None = None
    first_id: int | None = None  # the token that every row starts with


@dataclass(frozen=True)
class Facts:
    """What is particular about a family."""

    family: str
    end_tokens: tuple[str, ...]  # end of text and end of turn, as spelled in the tokenizer
    published: PublishedIds = PublishedIds()
    # Whether attention is block-causal; "either": checkpoints of both kinds have the same config.
    blocks: Literal["never", "always", "either"] = "never"
    block_field: str = "block_size"  # its name in config.json
    masks: bool = True  # False: open positions hold random tokens


def read_token_ids(
    folder: Path, facts: Facts, rows: int, config: Mapping[str, Any], overrides: LoadOverrides
) -> tuple[Any, TokenIds]:
    """Read a checkpoint folder's tokenizer and special ids.

    Args:
        folder: The checkpoint folder.
        facts: What is particular about its family.
        rows: Vocabulary rows of the model.
        config: Its config.json.
        overrides: What the caller passed.

    Returns:
        The tokenizer (None if there is none) and the ids.
    """
    tokenizer = read_tokenizer(folder)
    return tokenizer, resolve_token_ids(
        facts, rows, config, tokenizer, read_generation_config(folder), overrides
    )


def resolve_token_ids(
    facts: Facts,
    rows: int,
    config: Mapping[str, Any],
    tokenizer: Any = None,
    generation_config: Mapping[str, Any] | None = None,
    overrides: LoadOverrides = LoadOverrides(),  # noqa: B008 (frozen)
) -> TokenIds:
    """Return the special ids of a model with `rows` vocabulary rows; a UserError names the argument to pass."""
    known = facts.published if rows in facts.published.vocabularies else PublishedIds()
    vocabulary: dict[str, int] = tokenizer.get_vocab() if tokenizer is not None else {}
    used = set(vocabulary.values()) if vocabulary else set(range(known.tokens or rows))
    # A tokenizer may have fewer tokens than the model has rows (a padded vocabulary), and a few more (added ones).
    if len(used) < rows / 2 or getattr(tokenizer, "vocab_size", 0) > rows:
        raise UserError(
            f"the tokenizer of this {facts.family} model has {len(used)} tokens, the model {rows}: it belongs to "
            "another model or class; use the right one (a checkpoint's tokenizer.json), or none to work on token ids"
        )
    candidates = (
        overrides.mask_id,
        config.get("mask_token_id"),
        getattr(tokenizer, "mask_token_id", None),
        known.mask_id,
    )
    if not facts.masks and overrides.mask_id is not None:
        raise UserError(
            f"{facts.family} has no mask token: its open positions hold random tokens; leave mask_id out"
        )
    mask_id = _first(facts, "mask id", "mask_id", candidates) if facts.masks else NO_MASK
    ends = {vocabulary[token] for token in facts.end_tokens if token in vocabulary} | {*known.eos_ids}
    if overrides.eos_ids is not None:
        eos_ids = list(overrides.eos_ids)
    elif isinstance(configured := {**(config.get("text_config") or {}), **config}.get("eos_token_id"), list):
        eos_ids = configured  # a list is complete; a single id leaves the end of turn out
    elif not (
        eos_ids := [*ends, *_listed(configured), *_listed((generation_config or {}).get("eos_token_id"))]
    ):
        raise UserError(
            f"the files of this {facts.family} checkpoint name no end-of-text token; write eos_token_id into "
            "config.json, or pass load(..., eos_ids=(...)), empty if there is none"
        )
    for argument, ids in (("mask_id", [mask_id] if facts.masks else []), ("eos_ids", eos_ids)):
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < rows:
                raise UserError(
                    f"{argument}: {i!r} is not one of the model's {rows} token ids; pass another {argument}, or "
                    "correct the checkpoint's config.json"
                )
    if mask_id in eos_ids:
        raise UserError(f"token {mask_id} cannot be both the mask and an end-of-text token; correct eos_ids")
    forbidden = {mask_id, *range(rows)} - (used - {mask_id}) - {NO_MASK}
    block_size = _block_size(facts, config, known, overrides)
    return TokenIds(
        mask_id, tuple(sorted(set(eos_ids))), tuple(sorted(forbidden)), block_size, known.first_id
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _block_size(
    facts: Facts, config: Mapping[str, Any], known: PublishedIds, overrides: LoadOverrides
) -> int | None:
    size = overrides.block_size
    if facts.blocks == "never":
        if size is not None:
            raise UserError(
                f"{facts.family} attends to all positions and has no block size; leave block_size out "
                "(the width of decoding blocks belongs to the request: block=...)"
            )
        return None
    either = facts.blocks == "either"
    for field in ("block_size", facts.block_field):  # `save` writes the first, null if bidirectional
        if size is None and field in config:
            size = 0 if either and config[field] is None else config[field]
    meaning = f"block size{' (0: bidirectional)' if either else ''}"
    size = _first(facts, meaning, "block_size", (size, known.block_size))
    if either and size == 0:
        return None
    return integer("block_size", size, least=1)


def _first(facts: Facts, meaning: str, argument: str, candidates: tuple[Any, ...]) -> Any:
    """Return the first candidate that is not None; a UserError says which argument to pass."""
    for value in candidates:
        if value is not None:
            return value
    raise UserError(
        f"the files of this {facts.family} checkpoint do not name its {meaning}; pass load(..., {argument}=...), "
        f"or --{argument.replace('_', '-')} on the command line"
    )
