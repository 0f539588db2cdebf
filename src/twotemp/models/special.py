"""Which ids are special in a checkpoint: said by the caller, else by its files, else known of its family."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

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
    """What the files of a family's published checkpoints leave out.

    Those are recognised by the number of vocabulary rows; for any other vocabulary nothing is known.
    """

    vocabulary: int
    mask_id: int
    eos_ids: tuple[int, ...]
    tokens: int | None = None  # rows from here on have no token; None: not known without the tokenizer
    block_size: int | None = None


@dataclass(frozen=True)
class Facts:
    """A family's own habits."""

    family: str
    end_tokens: tuple[str, ...]  # end of text and end of turn, as spelled in the tokenizer
    published: Published | None = None
    block_causal: bool = False


def resolve(
    facts: Facts,
    rows: int,
    config: Mapping[str, Any],
    tokenizer: Any = None,
    generation_config: Mapping[str, Any] | None = None,
    given: Given = Given(),  # noqa: B008 (frozen)
) -> Special:
    """The special ids of a model with `rows` vocabulary rows; a UserError names the argument to pass."""
    published = facts.published if facts.published and facts.published.vocabulary == rows else None
    vocabulary: dict[str, int] = tokenizer.get_vocab() if tokenizer is not None else {}
    mask_id = _mask_id(facts, config, tokenizer, published, given)
    eos_ids = _eos_ids(facts, config, generation_config or {}, vocabulary, published, given)
    for what, ids in (("mask_id", [mask_id]), ("eos_ids", eos_ids)):
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < rows:
                raise UserError(f"{what}: {i!r} is not one of the model's {rows} token ids")
    if mask_id in eos_ids:
        raise UserError(f"token {mask_id} cannot be both the mask and an end-of-text token; correct eos_ids")

    if vocabulary:
        unused = set(range(rows)) - set(vocabulary.values())
    else:
        unused = set(range(published.tokens, rows)) if published and published.tokens else set()
    return Special(
        mask_id,
        tuple(sorted(eos_ids)),
        tuple(sorted({mask_id, *unused})),
        _block_size(facts, config, published, given),
    )


def _mask_id(
    facts: Facts, config: Mapping[str, Any], tokenizer: Any, published: Published | None, given: Given
) -> int:
    for found in (
        given.mask_id,
        config.get("mask_token_id"),
        getattr(tokenizer, "mask_token_id", None),
        published.mask_id if published else None,
    ):
        if found is not None:
            return found
    raise _unknown(facts, "mask id", "mask_id")


def _eos_ids(
    facts: Facts,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    published: Published | None,
    given: Given,
) -> set[int]:
    if given.eos_ids is not None:
        return set(given.eos_ids)
    said = config.get("eos_token_id")
    if isinstance(said, list):  # a list is complete; a single id leaves the end of turn out
        return set(said)
    also = generation_config.get("eos_token_id")
    found = {i for i in (said, *(also if isinstance(also, list) else [also])) if i is not None}
    found |= {vocabulary[token] for token in facts.end_tokens if token in vocabulary}
    found |= set(published.eos_ids) if published else set()
    if not found:
        raise _unknown(facts, "end-of-text ids", "eos_ids=(...) (empty: no such token)")
    return found


def _block_size(
    facts: Facts, config: Mapping[str, Any], published: Published | None, given: Given
) -> int | None:
    if not facts.block_causal:
        if given.block_size is not None:
            raise UserError(
                f"{facts.family} attends to all positions and has no block size; leave block_size out "
                "(the width of decoding blocks belongs to the request: block=...)"
            )
        return None
    for found in (given.block_size, config.get("block_size"), published.block_size if published else None):
        if found is not None:
            if isinstance(found, bool) or not isinstance(found, int) or found < 1:
                raise UserError(f"block_size must be an integer >= 1, not {found!r}")
            return found
    raise _unknown(facts, "block size", "block_size")


def _unknown(facts: Facts, what: str, argument: str) -> UserError:
    return UserError(
        f"the files of this {facts.family} checkpoint do not name its {what}; pass load(..., {argument}=...), "
        f"or --{argument.replace('_', '-')} on the command line"
    )
