"""DiffusionGemma: a causal encoder reads what is final, a decoder denoises canvas after canvas against its cache.

Both have the same weights. The decoder sees the whole canvas and what the encoder stored of the text before it (in
sliding layers, of the last positions). It is conditioned on its prediction at the step before, as an average of
embeddings (`soft_embeddings`): a hidden state per position instead of logits. Text only: the vision tower of a
checkpoint is not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    PreTrainedConfig,
    PreTrainedModel,
)

from twotemp.errors import UserError
from twotemp.models.base import activations_per_position
from twotemp.models.cache import KVCache
from twotemp.models.native import TAKE_PUBLISHED, AllowedValues, check_experts, check_fixed, positive
from twotemp.models.token_ids import Facts, PublishedIds
from twotemp.models.transformer import Transformer, positions_of
from twotemp.models.weight_loading import Storage, Weights

_SLIDING, _FULL = "sliding_attention", "full_attention"
_FIXED: AllowedValues = {
    "attention_bias": (False,),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": (None, "vision"),  # "all" would be an encoder that is not causal
}
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window"),
    *("num_experts", "top_k_experts", "moe_intermediate_size"),
)


class DiffusionGemma(Transformer):
    """Writes canvases of random tokens; see the module."""

    facts = Facts(
        "diffusion_gemma",
        end_tokens=("<eos>", "<turn|>"),
        published=PublishedIds((262_144,), block_size=256),
        blocks="always",
        block_field="canvas_length",
        masks=False,
    )
    native = DiffusionGemmaForBlockDiffusion
    unused = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
    canvases = True
    supports_device_map: ClassVar[bool] = False

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        family, text = cls.facts.family, config.get("text_config")
        if not isinstance(text, Mapping):
            raise UserError(f"{family} config.json: text_config is missing; {TAKE_PUBLISHED}")
        check_fixed(family, text, _FIXED)
        check_fixed(family, config, _FIXED)
        for size in _SIZES:
            positive(family, text, size)
        check_experts(family, text["num_experts"], text["top_k_experts"])
        try:
            native = DiffusionGemmaConfig(**deepcopy({**config, "vision_config": None}))
        except (StrictDataclassError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{family} config.json: {' '.join(str(error).split())}; {TAKE_PUBLISHED}"
            ) from error
        inner: Any = native.text_config
        native._attn_implementation = inner._attn_implementation = "sdpa"  # the one that takes boolean masks
        # Where the other families have them.
        for field in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
            setattr(native, field, getattr(inner, field))
        return native

    @classmethod
    def on_meta(cls, config: PreTrainedConfig) -> PreTrainedModel:
        """Return the module without its vision tower, and with every weight once: `finish` shares them."""
        module = super().on_meta(config)
        encoder = module.model.encoder
        encoder.vision_tower = encoder.embed_vision = None
        for part in (encoder.language_model, module.lm_head):
            for inner in part.modules():
                for name in list(inner._parameters):
                    inner.register_parameter(name, None)
        return module

    @classmethod
    def finish(cls, module: PreTrainedModel, config: PreTrainedConfig, storage: Storage) -> None:
        encoder, decoder = module.model.encoder.language_model, module.model.decoder
        for name, weight in decoder.named_parameters():
            if not name.startswith("self_conditioning."):
                owner, _, kind = name.rpartition(".")
                encoder.get_submodule(owner).register_parameter(kind, weight)
        module.lm_head.register_parameter("weight", decoder.embed_tokens.weight)
        for part in (encoder, decoder):  # what follows from the config and is in no checkpoint
            part.rotary_emb = type(part.rotary_emb)(module.config.text_config).to(storage.device)
            scale = torch.tensor(part.embed_tokens.scalar_embed_scale, device=storage.device)
            part.embed_tokens.embed_scale = nn.Buffer(scale, persistent=False)

    @classmethod
    def stored(cls, module: PreTrainedModel) -> Weights:
        """Return the decoder's weights, and the encoder's scales of layers, which alone are not the decoder's."""
        weights = {key: tensor.detach() for key, tensor in module.state_dict().items()}
        return {
            key: tensor
            for key, tensor in weights.items()
            if key.startswith("model.decoder.") or key.endswith(".layer_scalar")
        }

    def tensors(self) -> Weights:
        return self.stored(self.module)

    def _refuse_unknown(self, ids: Sequence[int], text: str) -> None:
        super()._refuse_unknown(ids, text)
        if self.config.get("image_token_id") in ids:
            raise UserError(f"{self.name!r} is used for text only: remove the images from the prompt")

    @property
    def body_and_head(self) -> tuple[nn.Module, nn.Module]:
        return self.module.model.decoder, self.module.lm_head

    @property
    def activation_bytes(self) -> int:
        text = self.module.config.text_config
        numbers = activations_per_position(text.hidden_size, text.intermediate_size, text.top_k_experts)
        return numbers * self.module.dtype.itemsize

    @property
    def cached_bytes(self) -> int:
        return sum(2 * heads * width for heads, width in self._head_shapes) * self.module.dtype.itemsize

    @property
    def _head_shapes(self) -> list[tuple[int, int]]:
        """Heads and width of the keys of each layer: those of full layers differ."""
        text = self.module.config.text_config
        layers = [text.per_layer_config[number] for number in range(text.num_hidden_layers)]
        return [(layer.num_key_value_heads, layer.head_dim) for layer in layers]

    def new_cache(self, rows: int, columns: int) -> KVCache:
        device = self.module.model.decoder.norm.weight.device
        layers = [(*shape, device) for shape in self._head_shapes]
        return KVCache(rows=rows, columns=columns, layers=layers, dtype=self.module.dtype)

    @torch.no_grad()
    def read(self, ids: Tensor, positions: Tensor, cache: KVCache, rows: Tensor | None = None) -> None:
        """See `CanvasDenoiser.read`."""
        columns = torch.arange(cache.columns, device=ids.device)
        seen = columns <= positions[:, :, None]
        near = seen & (columns > positions[:, :, None] - self.module.config.text_config.sliding_window)
        near = near | (positions >= cache.columns)[:, :, None]  # padding: no softmax over the empty set
        cache.set_window(positions, rows)
        self.module.model.encoder.language_model(
            input_ids=ids,
            attention_mask={_FULL: seen[:, None], _SLIDING: near[:, None]},
            position_ids=positions.clamp_max(cache.columns),
            past_key_values=cache,
        )

    @torch.no_grad()
    def canvas_logits(
        self, ids: Tensor, start: Tensor, length: Tensor, soft: Tensor | None, cache: KVCache, want: Tensor
    ) -> Tensor:
        """See `CanvasDenoiser.canvas_logits`."""
        decoder, text = self.module.model.decoder, self.module.config.text_config
        hidden = decoder.embed_tokens(ids)
        hidden = decoder.self_conditioning(hidden, torch.zeros_like(hidden) if soft is None else soft)
        offsets = torch.arange(ids.shape[1], device=ids.device)
        positions = start[:, None] + offsets
        columns = torch.arange(cache.columns, device=ids.device)
        before = columns < start[:, None]
        near = before & (columns > start[:, None] - text.sliding_window)
        inside = offsets < length[:, None]
        attend = {
            kind: torch.cat([seen, inside], 1)[:, None, None].expand(-1, 1, ids.shape[1], -1)
            for kind, seen in ((_FULL, before), (_SLIDING, near))
        }
        rotary = {kind: decoder.rotary_emb(hidden, positions, kind) for kind in decoder.unique_layer_types}
        stored = cache.read_only()
        for layer, kind in zip(decoder.layers, text.layer_types):
            hidden = layer(
                hidden,
                position_embeddings=rotary[kind],
                attention_mask=attend[kind],
                position_ids=positions,
                past_key_values=stored,
            )
        head: Any = self.module
        logits: Tensor = head.lm_head(decoder.norm(hidden).flatten(0, 1)[want.flatten()]).float()
        return logits.div(head.final_logit_softcapping).tanh_().mul_(head.final_logit_softcapping)

    @torch.no_grad()
    def soft_embeddings(self, probabilities: Tensor) -> Tensor:
        """See `CanvasDenoiser.soft_embeddings`."""
        embedding = self.module.model.decoder.embed_tokens
        weight: Tensor = embedding.weight
        scale: Tensor = embedding.embed_scale
        return (probabilities.to(weight.dtype) @ weight) * scale.to(weight.dtype)

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """See `Denoiser.logits`. Of each row the last `block_size` positions are a canvas at its first step."""
        real = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        index = want.flatten().nonzero()[:, 0] if want.dtype == torch.bool else want
        row, column = index // ids.shape[1], positions_of(real).flatten()[index]
        packed = ids.gather(1, (~real).long().argsort(dim=1, stable=True))  # padding last
        length = real.sum(1)
        width = min(self.block_size or ids.shape[1], ids.shape[1])
        start = (length - width).clamp_min(0)
        cache = self.new_cache(*ids.shape)
        columns = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        self.read(packed, columns.where(columns < start[:, None], cache.columns), cache)
        offsets = start[:, None] + torch.arange(width, device=ids.device)
        canvas = packed.gather(1, offsets.clamp_max(ids.shape[1] - 1))
        wanted = row * width + column - start[row]
        return self.canvas_logits(canvas, start, (length - start).clamp_max(width), None, cache, wanted)
