"""Which ids are special in a checkpoint: said by the caller, else by its files, else known of its family."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from twotemp.errors import UserError


@dataclass(frozen=True)
class Special:
    """The ids a sampler must know, and the block grid."""

    mask_id: int
    eos_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]
    block_size: int | None


@dataclass(frozen=True)
class Given:
    """What the caller of `load` says; it wins over everything else."""

    mask_id: int | None = None
    eos_ids: Collection[int] | None = None
    block_size: int | None = None


@dataclass(frozen=True)
class Published:
    """What the files of a family's published checkpoints leave out; they are known by their vocabulary rows."""

    vocabularies: tuple[int, ...] = ()
    mask_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    tokens: int | None = None  # rows from here on have no token; None: not known without the tokenizer
    block_size: int | None = None


@dataclass(frozen=True)
class Facts:
    """A family's own habits."""

    family: str
    end_tokens: tuple[str, ...]  # end of text and end of turn, as spelled in the tokenizer
    published: Published = Published()
    # Does a position see only its block and what lies before? "either": checkpoints of both kinds look alike.
    blocks: Literal["never", "always", "either"] = "never"
    block_field: str = "block_size"  # of config.json


def resolve(
    facts: Facts,
    rows: int,
    config: Mapping[str, Any],
    tokenizer: Any = None,
    generation_config: Mapping[str, Any] | None = None,
    given: Given = Given(),  # noqa: B008 (frozen)
) -> Special:
    """The special ids of a model with `rows` vocabulary rows; a UserError names the argument to pass."""
    known = facts.published if rows in facts.published.vocabularies else Published()
    vocabulary: dict[str, int] = tokenizer.get_vocab() if tokenizer is not None else {}
    used = set(vocabulary.values()) if vocabulary else set(range(known.tokens or rows))
    if len(used) < rows / 2:
        raise UserError(
            f"the tokenizer read from this {facts.family} checkpoint has {len(used)} tokens, the model {rows}: it "
            "belongs to another model or class; put the right tokenizer.json into the folder, or take the "
            "tokenizer files out to work on token ids"
        )
    named = (
        given.mask_id,
        config.get("mask_token_id"),
        getattr(tokenizer, "mask_token_id", None),
        known.mask_id,
    )
    mask_id = _first(facts, "mask id", "mask_id", named)
    if given.eos_ids is not None:
        eos_ids = set(given.eos_ids)
    else:
        ends = {vocabulary[token] for token in facts.end_tokens if token in vocabulary} | {*known.eos_ids}
        eos_ids = _eos_ids(facts, config.get("eos_token_id"), generation_config or {}, ends)
    for what, ids in (("mask_id", {mask_id}), ("eos_ids", eos_ids)):
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < rows:
                raise UserError(f"{what}: {i!r} is not one of the model's {rows} token ids")
    if mask_id in eos_ids:
        raise UserError(f"token {mask_id} cannot be both the mask and an end-of-text token; correct eos_ids")
    forbidden = {mask_id, *range(rows)} - (used - {mask_id})
    return Special(
        mask_id, tuple(sorted(eos_ids)), tuple(sorted(forbidden)), _block_size(facts, config, known, given)
    )


def _eos_ids(facts: Facts, said: Any, generation_config: Mapping[str, Any], ends: set[int]) -> set[int]:
    if isinstance(said, list):  # a list is complete; a single id leaves the end of turn out
        return set(said)
    also = generation_config.get("eos_token_id")
    found = ends | {i for i in (said, *(also if isinstance(also, list) else [also])) if i is not None}
    if not found:
        raise UserError(
            f"the files of this {facts.family} checkpoint name no end-of-text token; write eos_token_id into "
            "config.json, or pass load(..., eos_ids=(...)), which is empty where there is none"
        )
    return found


def _block_size(facts: Facts, config: Mapping[str, Any], known: Published, given: Given) -> int | None:
    if facts.blocks == "never":
        if given.block_size is not None:
            raise UserError(
                f"{facts.family} attends to all positions and has no block size; leave block_size out "
                "(the width of decoding blocks belongs to the request: block=...)"
            )
        return None
    # Ours is the first name: `save` writes it, and null where there are none.
    said = next((field for field in ("block_size", facts.block_field) if field in config), None)
    if facts.blocks == "either" and (
        given.block_size == 0 or (given.block_size is None and said and config[said] is None)
    ):
        return None
    named = (given.block_size, config[said] if said else None, known.block_size)
    size = _first(
        facts, f"block size{' (0: bidirectional)' if facts.blocks == 'either' else ''}", "block_size", named
    )
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UserError(f"block_size must be an integer >= 1, not {size!r}")
    return size


def _first(facts: Facts, what: str, argument: str, named: tuple[Any, ...]) -> Any:
    """The first that is named at all."""
    for value in named:
        if value is not None:
            return value
    raise UserError(
        f"the files of this {facts.family} checkpoint do not name its {what}; pass load(..., {argument}=...), "
        f"or --{argument.replace('_', '-')} on the command line"
    )
