"""What all transformer families share: masks, positions, the head where it is wanted, cached windows.

A family is a subclass in its own file: how its config and weights map onto a native `transformers` class,
which ids are special, and what is peculiar about it (a shift, chat formats).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from twotemp.errors import UserError
from twotemp.models.base import Loaded
from twotemp.models.cache import KVCache
from twotemp.models.checkpoint import SINGLE, read_headers, weight_files
from twotemp.models.filling import Layout, Storage, Weights, fill
from twotemp.models.quantizing import is_quantized, plain_tensors
from twotemp.models.special import Facts, Given, Special, read_special
from twotemp.models.spreading import connect

_TILE = 768  # tokens computed at once on a CPU: what a layer makes of them stays in its cache


def positions_of(attention_mask: Tensor) -> Tensor:
    """Position inside the row, counted from its first real token; padding takes a neighbour's."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


class Transformer(Loaded):
    """A `LanguageModel` on a native causal-LM class, run bidirectionally or block-causally."""

    facts: ClassVar[Facts]
    native: ClassVar[type[PreTrainedModel]]
    head: ClassVar[str] = "lm_head.weight"  # the head's name in a checkpoint
    float32_weights: ClassVar[tuple[str, ...]] = ()  # native names' endings, kept so in any dtype
    module: PreTrainedModel
    # How many positions before a wanted one a window must also hold: 1 where row i of the network predicts
    # position i + 1, as in models made from autoregressive ones. The shift is undone here and nowhere else.
    lookback: int = 0

    def __init__(
        self, module: PreTrainedModel, config: Mapping[str, Any], special: Special, tokenizer: Any, name: str
    ) -> None:
        if self.facts.blocks == "either":
            config = {**config, "block_size": special.block_size}  # so that a saved checkpoint says it
        super().__init__(module, config, special, tokenizer, name)
        self.max_length = int(module.config.max_position_embeddings)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        *,
        name: str,
        given: Given,
        storage: Storage | None,
    ) -> Self:
        """Read a checkpoint folder; its config.json has been read already. Without storage there are no weights."""
        native = cls.native_config(config)
        tokenizer, special = read_special(folder, cls.facts, native.vocab_size, config, given)
        if storage is None:
            with torch.device("meta"):
                module = cls.native(native)
        else:
            module = cls.build(native, weight_files(folder), storage)
        return cls(module, config, special, tokenizer, name)

    # What a family says about its checkpoints.

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        """The native class's config for this config.json; a UserError where it cannot be represented."""
        raise NotImplementedError

    @classmethod
    def layout(cls, native: Weights, config: PreTrainedConfig) -> Layout:
        """Where a checkpoint's tensors lie in the native ones: see `filling.Layout`."""
        return {key: (tensor,) for key, tensor in native.items()}

    @classmethod
    def build(cls, config: PreTrainedConfig, files: Sequence[Path], storage: Storage) -> PreTrainedModel:
        """The native module with the weights of these files."""
        headers = read_headers(files)
        if config.num_hidden_layers > len(headers):  # a network of so many would take long to build
            raise UserError(
                f"{files[0].parent}: config.json has {config.num_hidden_layers} layers, the files have "
                f"{len(headers)} tensors; take both from the same checkpoint"
            )
        if config.tie_word_embeddings and cls.head in headers:
            config.tie_word_embeddings = False  # a head of its own counts, whatever config.json says of it
        with torch.device("meta"):  # shapes only: nothing is allocated or initialised to be thrown away
            module = cls.native(config)
        fill(module, lambda: cls.layout(_stored(module), config), files, storage, float32=cls.float32_weights)
        module.tie_weights()
        # Its frequencies follow from the config and are in no checkpoint, so they are still on "meta".
        module.model.rotary_emb = type(module.model.rotary_emb)(config).to(storage.device)
        if storage.device_map:
            connect(module)
        module.eval()  # type: ignore[no-untyped-call]
        return module

    def tensors(self) -> Weights:
        return plain_tensors(self.module)

    def write_weights(self, folder: Path) -> None:
        """The weights in the family's own layout, as one safetensors file."""
        config = self.module.config
        if is_quantized(self.module):
            raise UserError(f"{self.name!r} is quantized and cannot be saved; load it without quantize")
        with torch.device("meta"):
            plain = _stored(self.native(config))
        stored = _stored(self.module)
        if stored.keys() != plain.keys():
            extra = sorted(stored.keys() ^ plain.keys())[0]
            raise UserError(f"cannot save adapters such as {extra}: merge them into the model first")
        save_file(self.original(stored), folder / SINGLE, metadata={"format": "pt"})

    def original(self, native: Weights) -> Weights:
        """Weights in the family's own layout."""
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
            rows=rows,
            kv_heads=config.num_key_value_heads,
            columns=columns,
            head_dim=self._head_dim,
            dtype=self.module.dtype,
            devices=[layer.input_layernorm.weight.device for layer in self.module.model.layers],
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
        rows = max(1, _TILE // ids.shape[1])
        # Not in half precision, where a row's rounding depends on how many are computed with it.
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
        return hidden.to(self.device)  # from the last of several

    def _head(self, hidden: Tensor, want: Tensor, positions: Tensor) -> Tensor:
        """The head, only where wanted: at 8B parameters the full logits would be most of the memory."""
        logits: Tensor = self.module.lm_head(hidden.flatten(0, 1)[self._sources(want, positions)])
        return logits.float().to(self.device)

    def _sources(self, want: Tensor, positions: Tensor) -> Tensor:
        """Which hidden states (flattened) predict the wanted positions, in the same row-major order."""
        if not self.lookback:
            return want.flatten()
        if want.dtype != torch.bool:  # the engine's, which has checked its requests
            return want - 1
        follows = torch.zeros_like(want)
        follows[:, 1:] = positions[:, 1:] == positions[:, :-1] + 1
        if bool((want & ~follows).any()):
            raise UserError(
                f"{self.facts.family} predicts a token from the one before it, so the first position of a row cannot "
                "be predicted; start the row with a given token (a window: one position earlier)"
            )
        return want.flatten().nonzero()[:, 0] - 1


def _stored(module: PreTrainedModel) -> Weights:
    """What a checkpoint holds of a module: a tied head is the embedding and is not stored twice."""
    weights = {key: tensor.detach() for key, tensor in module.state_dict().items()}
    if module.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return weights
