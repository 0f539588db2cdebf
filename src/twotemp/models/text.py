"""The text edges of a model: a prompt to token ids, token ids to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from twotemp.errors import UserError
from twotemp.models.base import Denoiser


def encode(model: Denoiser, prompt: str, chat: bool = True, prefill: str = "") -> list[int]:
    """Token ids of a prompt; prefill: text the answer already starts with.

    chat: the prompt is a user's turn, in the family's chat format. Otherwise it is plain text, with
    whatever special tokens the tokenizer adds by itself.
    """
    tokenizer = _tokenizer(model, "encode text")
    if not chat:
        ids = list(tokenizer(prompt + prefill)["input_ids"])
    else:
        chat_format = getattr(model, "chat", None)
        if chat_format is None:
            raise UserError(f"{model.name!r} has no chat format; pass chat=False")
        ids = list(tokenizer(chat_format(prompt) + prefill, add_special_tokens=False)["input_ids"])
    unknown = tokenizer.unk_token_id
    if unknown in ids and tokenizer.unk_token not in prompt + prefill:
        strange = [w for w in (prompt + prefill).split() if unknown in tokenizer(w)["input_ids"]]
        raise UserError(
            f"{model.name!r} has no token for {', '.join(map(repr, strange[:5])) or 'a part of the prompt'}; its "
            "vocabulary is small: write the prompt as its tasks do (`20 10 15 -> 45`), with spaces between words"
        )
    return ids


def decode(model: Denoiser, ids: Sequence[int]) -> str:
    """The text up to the first end-of-text or end-of-turn token; what was written after it does not count."""
    tokenizer = _tokenizer(model, "decode ids")
    end = next((place for place, token in enumerate(ids) if token in model.eos_ids), len(ids))
    text = tokenizer.decode(list(ids[:end]), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return cast(str, text)


def _tokenizer(model: Denoiser, purpose: str) -> Any:
    if model.tokenizer is None:
        raise UserError(
            f"{model.name!r} has no tokenizer, so it cannot {purpose}; give token ids, or put the "
            "tokenizer files into its folder"
        )
    return model.tokenizer
