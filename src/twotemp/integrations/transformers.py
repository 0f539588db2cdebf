"""`model.generate(..., custom_generate=twotemp.generate)`: policies in transformers, with names its users know."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.models.wrap import wrap
from twotemp.policies import AnyPolicy, parse
from twotemp.records import Policy, first_eos
from twotemp.sampling.api import sample

log = logging.getLogger("twotemp")
# Options of `generate` that a policy cannot honor, with the values that disable them.
UNSUPPORTED = {
    "num_beams": (None, 1),
    "repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "return_dict_in_generate": (None, False),
}
# Models by module, because making one computes a few rows.
_MODELS: WeakKeyDictionary[Any, dict[Any, LanguageModel]] = WeakKeyDictionary()


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    *,
    policy: AnyPolicy | str = "tct",
    mask_id: int | None = None,
    shift: bool = False,
    block: int | None = None,
    seed: int = 0,
    ids: Sequence[str] | None = None,
    **inputs: Any,
) -> Tensor:
    """Decode masked text by a policy; for `generate` of transformers, which calls it with the first five arguments.

    Of the generation config, max_new_tokens is the length, num_return_sequences the number of samples per prompt
    (transformers wants do_sample=True for it), and a temperature other than 1 replaces the policy's t_token. The
    samples are those of `twotemp.sample` on `twotemp.wrap(model, ...)`.

    Args:
        model: A bidirectional module with a mask token.
        input_ids: [B, L], padded on the left where `attention_mask` is 0.
        logits_processor: Not used: the policy decides.
        stopping_criteria: Not used: rows end at EOS.
        generation_config: As `generate` prepares it.
        policy: As in `twotemp.sample`.
        mask_id: The mask token; None for the config's `mask_token_id`.
        shift: Row i of the logits predicts position i + 1, as in Dream.
        block: Width of the semi-autoregressive blocks.
        seed: Addresses the noise.
        ids: One per prompt; by default a hash of its tokens.
        **inputs: What else `generate` passes to a decoding method; only `attention_mask` is used.

    Returns:
        [B, L + length]: prompts and samples; what follows an end token is padding.

    >>> import torch, twotemp
    >>> tiny = twotemp.load("tiny")
    >>> row = torch.tensor([tiny.encode("3 7 12 -> 33")])
    >>> special = {"mask_id": tiny.mask_id, "eos_token_id": tiny.eos_ids[0]}
    >>> options = {"max_new_tokens": 12, "do_sample": True, "num_return_sequences": 4, **special}
    >>> tiny.module.generate(row, custom_generate=twotemp.generate, policy="tlc:t_pos=1", **options).shape[0]
    4
    """
    for name, off in UNSUPPORTED.items():
        if getattr(generation_config, name, None) not in off:
            raise UserError(f"{name} does not work with custom_generate=twotemp.generate; leave it out")
    eos = generation_config.eos_token_id
    eos_ids = tuple([eos] if isinstance(eos, int) else eos or ())
    denoiser = _model_of(model, mask_id, eos_ids, shift)
    n = generation_config.num_return_sequences or 1
    length = generation_config.max_new_tokens or generation_config.max_length - input_ids.shape[1]
    real = inputs.get("attention_mask")
    real = torch.ones_like(input_ids) if real is None else real
    prompts = [row[kept.bool()].tolist() for row, kept in zip(input_ids[::n], real[::n])]
    samples = sample(
        denoiser, prompts, _tempered(policy, generation_config.temperature), n, length, block, seed, ids=ids
    )
    pad = generation_config.pad_token_id
    pad = pad if isinstance(pad, int) else (eos_ids or (denoiser.mask_id,))[0]
    rows = [list(drawn.tokens[: first_eos(drawn.tokens, eos_ids) + 1]) for drawn in samples]
    padded = [row + [pad] * (length - len(row)) for row in rows]
    return torch.cat([input_ids, torch.tensor(padded, device=input_ids.device)], 1)


def _model_of(module: Any, mask_id: int | None, eos_ids: tuple[int, ...], shift: bool) -> LanguageModel:
    mask_id = getattr(module.config, "mask_token_id", None) if mask_id is None else mask_id
    if mask_id is None:
        raise UserError("the config names no mask_token_id; pass mask_id=... to generate")
    kept = _MODELS.setdefault(module, {})
    key = (mask_id, eos_ids, shift)
    if key not in kept:
        kept[key] = wrap(module, mask_id=mask_id, eos_ids=eos_ids, shift=shift)
    return kept[key]


def _tempered(policy: AnyPolicy | str, temperature: float | None) -> AnyPolicy | str:
    """Return the policy with T_token = temperature, if one was given."""
    if temperature is None or temperature == 1:
        return policy
    known = parse(policy) if isinstance(policy, str) else policy
    if not isinstance(known, Policy):
        raise UserError("a portfolio has its own temperatures; leave temperature out")
    log.info("temperature=%g is t_token of policy %s", temperature, known.name)
    return replace(known, t_token=float(temperature))
