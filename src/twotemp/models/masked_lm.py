"""Any `AutoModelForMaskedLM` checkpoint (BERT, ALBERT, ModernBERT, RoBERTa, ...) as a denoiser.

A masked LM is a one-step denoiser; trained on all masking rates it is a masked diffusion LM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from twotemp.errors import UserError
from twotemp.models.base import LoadedModel, activations_per_position
from twotemp.models.checkpoint import read_native
from twotemp.models.token_ids import Facts, LoadOverrides, TokenIds, read_token_ids
from twotemp.models.transformer import positions_of
from twotemp.models.weight_loading import Storage

TYPES = tuple(MODEL_FOR_MASKED_LM_MAPPING_NAMES)
# Heads of other training objectives in published encoders, which a masked LM does not use: those besides BERT's head
# `cls.predictions` (next sentence, AntiBERTy's species and chain), and poolers.
OTHER_HEADS = re.compile(r"cls\.(?!predictions\.)|sop_classifier\.|(.+\.)?pooler\.")


class MaskedLM(LoadedModel):
    """A `LanguageModel` on a native masked-LM class: fully bidirectional, uncached."""

    module: PreTrainedModel

    def __init__(
        self,
        module: PreTrainedModel,
        config: Mapping[str, Any],
        token_ids: TokenIds,
        tokenizer: Any,
        name: str,
    ) -> None:
        inputs = signature(module.forward).parameters
        if module.config.is_encoder_decoder or not {"attention_mask", "position_ids"} <= inputs.keys():
            raise UserError(
                f"{name!r}: {type(module).__name__} takes no attention mask or no positions, so padding would "
                "change its output; use an encoder such as BERT, RoBERTa or ModernBERT"
            )
        super().__init__(module, config, token_ids, tokenizer, name)
        self._first_position = _first_position(module)
        limit = getattr(module.config, "max_position_embeddings", None)
        self.max_length = None if limit is None else int(limit) - self._first_position

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        *,
        name: str,
        overrides: LoadOverrides,
        storage: Storage | None,
    ) -> MaskedLM:
        """Read a checkpoint folder; without storage there are no weights."""
        if storage is not None and (storage.quantize or storage.device_map):
            raise UserError(f"{name!r} is a small masked LM like BERT; leave quantize and device_map out")
        if storage is None:
            with torch.device("meta"):
                module = AutoModelForMaskedLM.from_config(  # type: ignore[no-untyped-call]
                    AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
                )
        else:
            module = read_native(
                AutoModelForMaskedLM, folder, "a masked LM", storage.dtype, OTHER_HEADS.match
            ).to(storage.device)
        facts = Facts(str(config["model_type"]), end_tokens=("[SEP]", "</s>"))
        tokenizer, token_ids = read_token_ids(folder, facts, int(module.config.vocab_size), config, overrides)
        return cls(module.eval(), config, token_ids, tokenizer, name)

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """See `Denoiser.logits`. The heads of these classes differ too much to apply them at `want` alone."""
        if attention_mask is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        else:
            positions = positions_of(attention_mask)
            attention_mask = attention_mask.long()
        output = self.module(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=(positions + self._first_position).expand_as(ids),
        )
        logits: Tensor = output.logits.flatten(0, 1)[want.flatten()]
        return logits.float()

    def tensors(self) -> dict[str, Tensor]:
        return self.module.state_dict()

    def write_weights(self, folder: Path) -> None:
        self.module.save_pretrained(folder)

    @property
    def has_chat(self) -> bool:
        return False

    @property
    def activation_bytes(self) -> int:
        sizes = self.module.config.to_dict()
        numbers = activations_per_position(sizes.get("hidden_size", 0), sizes.get("intermediate_size", 0))
        return numbers * self.module.dtype.itemsize


def _first_position(module: PreTrainedModel) -> int:
    """Return where positions start: RoBERTa and its relatives count from the padding index + 1, others from 0."""
    embeddings = getattr(getattr(module.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1
