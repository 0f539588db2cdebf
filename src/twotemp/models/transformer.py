"""What all transformer families share: masks, positions, the head where it is wanted, cached windows.

A family is a subclass in its own file: how its config and weights map onto a native `transformers` class,
which ids are special, and what is peculiar about it (Dream's shift, chat formats).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.models.cache import KVCache
from twotemp.models.checkpoint import (
    SINGLE,
    check_weights,
    read_generation_config,
    read_tokenizer,
    read_weights,
)
from twotemp.models.special import Facts, Given, Special, resolve

Weights = dict[str, Tensor]


def positions_of(attention_mask: Tensor) -> Tensor:
    """Position inside the row, counted from its first real token; padding takes a neighbour's."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


class Transformer(LanguageModel):
    """A `LanguageModel` on a native causal-LM class, run bidirectionally or block-causally."""

    facts: ClassVar[Facts]
    native: ClassVar[type[PreTrainedModel]]
    float32_weights: ClassVar[tuple[str, ...]] = ()  # native names' endings, kept so in any dtype
    module: PreTrainedModel

    def __init__(
        self, module: PreTrainedModel, config: Mapping[str, Any], special: Special, tokenizer: Any, name: str
    ) -> None:
        self.module = module
        self.config = dict(config)  # config.json as it was read, in the family's own names
        self.tokenizer = tokenizer
        self.name = name
        self.mask_id = special.mask_id
        self.eos_ids = special.eos_ids
        self.forbidden_ids = special.forbidden_ids
        self.block_size = special.block_size
        self.vocab_size = int(module.config.vocab_size)
        self.max_length = int(module.config.max_position_embeddings)
        self.device = module.device

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        *,
        name: str,
        given: Given,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> Self:
        """Read a checkpoint folder; its config.json has been read already."""
        native = cls.native_config(config)
        tokenizer = read_tokenizer(folder)
        special = resolve(
            cls.facts, native.vocab_size, config, tokenizer, read_generation_config(folder), given
        )
        module = cls.build(native, read_weights(folder), dtype, name)
        module.to(device).eval()  # type: ignore[arg-type]
        return cls(module, config, special, tokenizer, name)

    # What a family says about its checkpoints.

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        """The native class's config for this config.json; a UserError where it cannot be represented."""
        raise NotImplementedError

    @classmethod
    def to_native(cls, weights: Weights, config: PreTrainedConfig) -> Weights:
        """Weights under the native class's names, from the checkpoint's own layout."""
        return weights

    @classmethod
    def to_original(cls, weights: Weights, config: PreTrainedConfig) -> Weights:
        """The inverse of `to_native`."""
        return weights

    @classmethod
    def build(
        cls, config: PreTrainedConfig, weights: Weights, dtype: torch.dtype | None, where: str
    ) -> PreTrainedModel:
        """The native module with these weights (in the family's own layout); dtype None keeps theirs."""
        with torch.device("meta"):  # shapes only: nothing is allocated or initialised to be thrown away
            module = cls.native(config)
        check_weights(weights, cls.to_original(_stored(module), config), where)
        converted = {
            key: tensor.float() if key.endswith(cls.float32_weights) else tensor.to(dtype or tensor.dtype)
            for key, tensor in cls.to_native(weights, config).items()
        }
        module.load_state_dict(converted, strict=not config.tie_word_embeddings, assign=True)
        module.tie_weights()
        # Its frequencies follow from the config and are in no checkpoint, so they are still on "meta".
        module.model.rotary_emb = type(module.model.rotary_emb)(config)
        return module

    def tensors(self) -> Weights:
        return self.module.state_dict()

    def write_weights(self, folder: Path) -> None:
        """The weights in the family's own layout, as one safetensors file."""
        config = self.module.config
        with torch.device("meta"):
            plain = _stored(self.native(config))
        stored = _stored(self.module)
        if stored.keys() != plain.keys():
            extra = sorted(stored.keys() ^ plain.keys())[0]
            raise UserError(f"cannot save adapters such as {extra}: merge them into the model first")
        weights = {key: tensor.contiguous() for key, tensor in self.to_original(stored, config).items()}
        save_file(weights, folder / SINGLE, metadata={"format": "pt"})

    # The forward passes.

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """See `Denoiser.logits`. Gradients flow; wrap in `torch.no_grad()` when sampling."""
        if attention_mask is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]  # the same for every row
            attend = None  # nothing to hide: the fused kernel needs no mask
        else:
            positions = positions_of(attention_mask)
            # A row of padding alone attends to itself, so that no softmax is over the empty set.
            attend = (attention_mask.bool() | ~attention_mask.bool().any(1, keepdim=True))[:, None, :]
        if self.block_size is not None:
            block = positions // self.block_size
            earlier = block[:, None, :] <= block[:, :, None]
            # Padding on the left shares position 0 with the first token, so its block sees real columns.
            attend = earlier if attend is None else earlier & attend
        hidden = self._hidden(ids, positions, attend)
        return self._head(hidden, want, positions)

    @property
    def body_and_head(self) -> tuple[nn.Module, nn.Module]:
        return self.module.base_model, self.module.lm_head

    @property
    def layer_units(self) -> int:
        return int(self.module.config.hidden_size + self.module.config.intermediate_size)

    @property
    def cached_bytes(self) -> int:
        config = self.module.config
        heads = 2 * config.num_hidden_layers * config.num_key_value_heads
        return int(heads * self._head_dim * self.module.dtype.itemsize)

    @property
    def _head_dim(self) -> int:
        config = self.module.config
        return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)

    def new_cache(self, rows: int, columns: int) -> KVCache:
        """An empty cache for `rows` rows of at most `columns` positions."""
        config = self.module.config
        return KVCache(
            layers=config.num_hidden_layers,
            rows=rows,
            kv_heads=config.num_key_value_heads,
            columns=columns,
            head_dim=self._head_dim,
            dtype=self.module.dtype,
            device=self.device,
        )

    @torch.no_grad()
    def window_logits(
        self,
        ids: Tensor,
        positions: Tensor,
        visible: Tensor,
        cache: KVCache,
        want: Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Logits [N, vocab_size] of a window of each row, against the cache; for sampling only.

        ids, positions: [B, W]; want: [B, W] bool or indices [N] of them flattened; visible: [B, cache.columns]
        bool; rows: [B], which rows of the cache they are (None: all of them, in order). The W tokens are computed
        at their positions (which may differ from row to row), their K and V overwrite those columns of the cache,
        and they attend to the visible columns, their own included only if visible; block-causal models
        look at no later block. An entry with position >= cache.columns is padding: written nowhere,
        never to be wanted.
        """
        padding = positions >= cache.columns
        if want.dtype == torch.bool and bool((want & padding).any()):  # of indices it would cost a round trip
            raise ValueError("a padding entry of the window is wanted")
        attend = visible[:, None, :]
        if self.block_size is not None:
            columns = torch.arange(cache.columns, device=ids.device)
            attend = attend & (columns // self.block_size <= (positions // self.block_size)[:, :, None])
        attend = attend | padding[:, :, None]  # never a softmax over the empty set
        cache.aim(positions, rows)
        return self._head(self._hidden(ids, positions, attend, cache), want, positions)

    def _hidden(
        self, ids: Tensor, positions: Tensor, attend: Tensor | None, cache: KVCache | None = None
    ) -> Tensor:
        """Last hidden states; attend: bool [B, queries or 1, keys], None for all of them."""
        output = self.module.model(
            input_ids=ids,
            attention_mask=None if attend is None else attend[:, None],
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return output.last_hidden_state

    def _head(self, hidden: Tensor, want: Tensor, positions: Tensor) -> Tensor:
        """The head, only where wanted: at 8B parameters the full logits would be most of the memory."""
        return self.module.lm_head(hidden.flatten(0, 1)[self._sources(want, positions)]).float()

    def _sources(self, want: Tensor, positions: Tensor) -> Tensor:
        """Which hidden states (flattened) predict the wanted positions, in the same row-major order."""
        return want.flatten()


def _stored(module: PreTrainedModel) -> Weights:
    """What a checkpoint holds of a module: a tied head is the embedding and is not stored twice."""
    weights = {key: tensor.detach() for key, tensor in module.state_dict().items()}
    if module.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return weights


def rename(weights: Weights, names: Mapping[str, str]) -> Weights:
    """Weights with their modules renamed; `{}` in a name stands for each number in it, in order.

    A module that is not in `names` keeps its name, so that it can be reported as it was found.
    """
    renamed = {}
    for key, tensor in weights.items():
        module, _, kind = key.rpartition(".")  # kind: weight, bias
        parts = module.split(".")
        numbers = [part for part in parts if part.isdigit()]
        pattern = ".".join("{}" if part.isdigit() else part for part in parts)
        new = names[pattern].format(*numbers) if pattern in names else module
        renamed[f"{new}.{kind}"] = tensor
    return renamed


def bidirectional(config: PreTrainedConfig) -> PreTrainedConfig:
    """Turn a native decoder's causal default off; every mask is then ours, passed explicitly.

    No family passes its `pad_token_id` on: it would freeze that row of the embedding in training, and pad = EOS.
    """
    config.is_causal = False
    config._attn_implementation = "sdpa"  # the one that takes boolean masks
    return config


def check_fixed(family: str, config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse config values that change the arithmetic in ways the native class does not have."""
    for field, values in allowed.items():
        if field in config and config[field] not in values:
            raise UserError(
                f"{family} config.json: {field}={config[field]!r} is not supported (only "
                f"{' or '.join(repr(value) for value in values)}); this is another architecture"
            )


def positive(family: str, config: Mapping[str, Any], field: str, kind: type = int) -> Any:
    """A number > 0 that must be in the config; `kind` float accepts integers too."""
    value = config.get(field)
    accepted = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, accepted) or not value > 0:
        found = "is missing" if field not in config else f"is {value!r}"
        raise UserError(
            f"{family} config.json: {field} {found}; it must be a positive {kind.__name__} "
            "(take config.json from the published checkpoint)"
        )
    return kind(value)


def qwen_fields(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that Dream, SDAR and LLaDA 2 spell as their native classes do."""
    integers = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    )
    fields: dict[str, Any] = {field: positive(family, config, field) for field in integers}
    if fields["num_attention_heads"] % fields["num_key_value_heads"]:
        raise UserError(
            f"{family} config.json: num_attention_heads must be a multiple of num_key_value_heads"
        )
    return fields | {
        "rms_norm_eps": positive(family, config, "rms_norm_eps", float),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": positive(family, config, "rope_theta", float),
        },
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
    }
