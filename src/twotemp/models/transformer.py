"""What all transformer families share: masks, positions, the head at the wanted positions, cached windows.

A family is a subclass: how its config and weights map onto a native `transformers` class, which ids are special, and
its differences (a shift, chat formats).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from twotemp.errors import UserError
from twotemp.models.base import LoadedModel, activations_per_position
from twotemp.models.cache import KVCache
from twotemp.models.checkpoint import plain_tensors, read_headers, weight_files, write_shards
from twotemp.models.quantization import is_quantized
from twotemp.models.token_ids import Facts, LoadOverrides, TokenIds, read_token_ids
from twotemp.models.weight_loading import (
    Layout,
    Storage,
    Weights,
    add_device_hooks,
    load_weights,
)

_TILE = 768  # tokens computed at once on a CPU, so that activations stay in its cache


def positions_of(attention_mask: Tensor) -> Tensor:
    """Return positions inside the row, counted from its first real token; padding takes a neighbor's."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


class Transformer(LoadedModel):
    """A `LanguageModel` on a native causal-LM class, run bidirectionally or block-causally."""

    facts: ClassVar[Facts]
    native: ClassVar[type[PreTrainedModel]]
    head: ClassVar[str] = "lm_head.weight"  # the head's name in a checkpoint
    float32_weights: ClassVar[tuple[str, ...]] = ()  # endings of native names that stay in float32
    unused: ClassVar[tuple[str, ...]] = ()  # beginnings of a checkpoint's names that are not loaded
    supports_device_map: ClassVar[bool] = True  # over several devices
    module: PreTrainedModel
    # How many positions before a wanted one a window must also hold: 1 where row i of the network predicts
    # position i + 1, as in models made from autoregressive ones. The shift is undone only here.
    lookback: int = 0

    def __init__(
        self,
        module: PreTrainedModel,
        config: Mapping[str, Any],
        token_ids: TokenIds,
        tokenizer: Any,
        name: str,
    ) -> None:
        if self.facts.blocks == "either":
            config = {**config, "block_size": token_ids.block_size}  # so that a saved checkpoint records it
        super().__init__(module, config, token_ids, tokenizer, name)
        self.max_length = int(module.config.max_position_embeddings)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        *,
        name: str,
        overrides: LoadOverrides,
        storage: Storage | None,
    ) -> Self:
        """Load a checkpoint folder.

        Args:
            folder: The checkpoint folder.
            config: Its config.json.
            name: What the model is called.
            overrides: What the caller passed.
            storage: Where to put the weights; None loads none.
        """
        native = cls.native_config(config)
        tokenizer, token_ids = read_token_ids(folder, cls.facts, native.vocab_size, config, overrides)
        if storage is None:
            module = cls.on_meta(native)
        else:
            module = cls.build(native, weight_files(folder), storage)
        return cls(module, config, token_ids, tokenizer, name)

    # What a family defines about its checkpoints.

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        """Return the native class's config for this config.json; a UserError if it cannot be represented."""
        raise NotImplementedError

    @classmethod
    def layout(cls, native: Weights, config: PreTrainedConfig) -> Layout:
        """Return where a checkpoint's tensors lie in the native ones: see `weight_loading.Layout`."""
        return {key: (tensor,) for key, tensor in native.items()}

    @classmethod
    def empty(cls, config: PreTrainedConfig, files: Sequence[Path]) -> PreTrainedModel:
        """Return the native module that these files fill, on "meta": shapes only, nothing is allocated in vain."""
        headers = read_headers(files)
        if config.num_hidden_layers > len(headers):  # building such a network would take long
            raise UserError(
                f"{files[0].parent}: config.json has {config.num_hidden_layers} layers, the files have "
                f"{len(headers)} tensors; take both from the same checkpoint"
            )
        if config.tie_word_embeddings and cls.head in headers:
            config.tie_word_embeddings = False  # a stored head is used, whatever config.json says
        try:
            return cls.on_meta(config)
        except (RuntimeError, OverflowError, TypeError) as error:
            raise UserError(
                f"{files[0].parent}: no network has the sizes of config.json ({str(error).splitlines()[0]}); take it "
                "from the published checkpoint"
            ) from error

    @classmethod
    def parts(cls, config: PreTrainedConfig, files: Sequence[Path]) -> dict[str, list[tuple[str, Tensor]]]:
        """Return what each stored tensor consists of: names of native tensors, and the views of them on "meta"."""
        native = cls.stored(cls.empty(config, files))
        owner = {tensor.untyped_storage()._cdata: name for name, tensor in native.items()}
        layout = cls.layout(native, config)
        return {
            key: [(owner[part.untyped_storage()._cdata], part) for part in parts]
            for key, parts in layout.items()
        }

    @classmethod
    def on_meta(cls, config: PreTrainedConfig) -> PreTrainedModel:
        """Return the native module without weights."""
        with torch.device("meta"):
            return cls.native(config)

    @classmethod
    def finish(cls, module: PreTrainedModel, config: PreTrainedConfig, storage: Storage) -> None:
        """Complete a module whose weights were loaded."""
        module.tie_weights()
        # Rotary frequencies follow from the config and are in no checkpoint, so they are still on "meta".
        module.model.rotary_emb = type(module.model.rotary_emb)(config).to(storage.device)
        if storage.device_map:
            add_device_hooks(module)

    @classmethod
    def stored(cls, module: PreTrainedModel) -> Weights:
        """Return the weights of a module that a checkpoint stores: a tied head is not stored twice."""
        weights = {key: tensor.detach() for key, tensor in module.state_dict().items()}
        if module.config.tie_word_embeddings:
            del weights["lm_head.weight"]
        return weights

    @classmethod
    def build(cls, config: PreTrainedConfig, files: Sequence[Path], storage: Storage) -> PreTrainedModel:
        """Return the native module with the weights of these files."""
        if storage.device_map and not cls.supports_device_map:
            raise UserError(
                f"{cls.facts.family} cannot be spread over several devices yet; leave device_map out "
                "(dtype='bfloat16' needs half the memory of float32)"
            )
        module = cls.empty(config, files)
        load_weights(
            module,
            lambda: cls.layout(cls.stored(module), config),
            files,
            storage,
            float32=cls.float32_weights,
            unused=cls.unused,
        )
        cls.finish(module, config, storage)
        module.eval()  # type: ignore[no-untyped-call]
        return module

    def tensors(self) -> Weights:
        return plain_tensors(self.module)

    def write_weights(self, folder: Path) -> None:
        """Write the weights in the family's layout, in one safetensors file or several."""
        config = self.module.config
        if is_quantized(self.module):
            raise UserError(f"{self.name!r} is quantized and cannot be saved; load it without quantize")
        plain, stored = self.stored(self.on_meta(config)), self.stored(self.module)
        if stored.keys() != plain.keys():
            extra = sorted(stored.keys() ^ plain.keys())[0]
            raise UserError(f"cannot save adapters such as {extra}: merge them into the model first")
        write_shards(self.to_checkpoint_layout(stored), folder)

    def published_modules(self) -> dict[str, str]:
        """Return by the names of the checkpoint's own code those of the native modules that are the same."""
        native = self.stored(self.on_meta(self.module.config))
        names = {id(tensor): name for name, tensor in native.items()}
        return {
            name.removesuffix(".weight"): names[id(parts[0])].removesuffix(".weight")
            for name, parts in self.layout(native, self.module.config).items()
            if name.endswith(".weight") and len(parts) == 1 and id(parts[0]) in names
        }

    def to_checkpoint_layout(self, native: Weights) -> Weights:
        """Return native weights in the family's layout."""
        layout = self.layout(native, self.module.config)
        return {
            key: torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
            for key, parts in layout.items()
        }

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
    def activation_bytes(self) -> int:
        config = self.module.config
        experts = getattr(config, "num_experts_per_tok", 0)
        return (
            activations_per_position(config.hidden_size, config.intermediate_size, experts)
            * self.module.dtype.itemsize
        )

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
        shape = self.module.config.num_key_value_heads, self._head_dim
        layers = [(*shape, layer.input_layernorm.weight.device) for layer in self.module.model.layers]
        return KVCache(rows=rows, columns=columns, layers=layers, dtype=self.module.dtype)

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
        """See `CachedDenoiser.window_logits`; without gradients.

        The W tokens are computed at their positions, their K and V overwrite those columns of the cache, and they
        attend to the visible columns, their own included only if visible; block-causal models see no later block. An
        entry with position >= cache.columns is padding: written nowhere, never wanted.
        """
        padding = positions >= cache.columns
        # Only flags are checked: checking indices would cost a round trip.
        if want.dtype == torch.bool and bool((want & padding).any()):
            raise ValueError("a padding entry of the window is wanted")
        attend = visible[:, None, :]
        if self.block_size is not None:
            columns = torch.arange(cache.columns, device=ids.device)
            attend = attend & (columns // self.block_size <= (positions // self.block_size)[:, :, None])
        attend = attend | padding[:, :, None]  # avoid a softmax over the empty set
        cache.set_window(positions, rows)
        return self._head(self._hidden(ids, positions, attend, cache), want, positions)

    def _hidden(
        self, ids: Tensor, positions: Tensor, attend: Tensor | None, cache: KVCache | None = None
    ) -> Tensor:
        """Return the last hidden states; attend: bool [B, queries or 1, keys], None for all of them."""
        rows = max(1, _TILE // ids.shape[1])
        # Not in half precision, where rounding depends on how many rows are computed together.
        tiled = self.device.type == "cpu" and self.module.dtype.itemsize >= 4 and cache is None
        if tiled and len(ids) > rows and not torch.is_grad_enabled():

            def tile(at: int, tensor: Tensor) -> Tensor:
                return tensor if len(tensor) == 1 else tensor[at : at + rows]  # one row: the same for all

            starts = range(0, len(ids), rows)
            return torch.cat(
                [
                    self._hidden(
                        tile(at, ids), tile(at, positions), None if attend is None else tile(at, attend)
                    )
                    for at in starts
                ]
            )
        output = self.module.model(
            input_ids=ids,
            attention_mask=None if attend is None else attend[:, None],
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden.to(self.device)  # with a device map it is on the last device

    def _head(self, hidden: Tensor, want: Tensor, positions: Tensor) -> Tensor:
        """Apply the head at the wanted positions only: full logits of an 8B model would take most of the memory."""
        logits: Tensor = self.module.lm_head(hidden.flatten(0, 1)[self._sources(want, positions)])
        return logits.float().to(self.device)

    def _sources(self, want: Tensor, positions: Tensor) -> Tensor:
        """Return which hidden states (flattened) predict the wanted positions, in the same row-major order."""
        if not self.lookback:
            return want.flatten()
        if want.dtype != torch.bool:  # from the engine, which has checked its requests
            return want - 1
        follows = torch.zeros_like(want)
        follows[:, 1:] = positions[:, 1:] == positions[:, :-1] + 1
        if bool((want & ~follows).any()):
            raise UserError(
                f"{self.facts.family} predicts a token from the one before it, so the first position of a row cannot "
                "be predicted; start the row with a given token (a window: one position earlier)"
            )
        return want.flatten().nonzero()[:, 0] - 1
