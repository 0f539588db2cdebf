"""Models of published sizes without data (on "meta"), and what a computation with them does: peaks and operations."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.helpers.tiny_checkpoints import LLADA_8B
from twotemp.models.families import FAMILIES
from twotemp.models.token_ids import LoadOverrides, resolve_token_ids
from twotemp.models.transformer import Transformer

_QWEN = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "use_sliding_window": False}
PUBLISHED: dict[str, dict[str, Any]] = {  # sizes as published
    "LLaDA-8B": LLADA_8B,
    "Dream-7B": {
        **_QWEN,
        "model_type": "Dream",
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
    },
    "SDAR-4B": {
        **_QWEN,
        "model_type": "sdar",
        "vocab_size": 151_936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 32_768,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "LLaDA2.0-mini": {
        "model_type": "llada2_moe",
        "hidden_act": "silu",
        "vocab_size": 157_184,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 20,
        "first_k_dense_replace": 1,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
        "rope_theta": 600_000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32_768,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "moe_intermediate_size": 512,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.5,
    },
}


def large_model(name: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Transformer:
    """Return a model of the published sizes, or with some of them changed, on "meta"."""
    config = {**PUBLISHED[name], **changes}
    family = FAMILIES[config["model_type"]]
    native = family.native_config(config)
    with torch.device("meta"):
        module = family.native(native).to(dtype).eval()
    ids = resolve_token_ids(family.facts, native.vocab_size, config, None, overrides=LoadOverrides())
    return family(module, config, ids, None, name)


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all tensors made inside the context; `peak` is the most that were alive at once."""

    def __init__(self, model: Transformer | None = None, device: str = "meta") -> None:
        """Count what is on the device, except the weights of the model."""
        super().__init__()
        self.peak, self._device = 0, device
        weights = {} if model is None else model.module.state_dict()
        self._weights = {weight.untyped_storage()._cdata for weight in weights.values()}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._at_most = 0  # the bytes of `_alive`, some of which may have been freed

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == self._device:
                storage = tensor.untyped_storage()
                if storage._cdata in self._weights:
                    continue
                if storage._cdata not in self._alive:
                    self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                    self._at_most += storage.nbytes()
        if self._at_most > self.peak:  # only then can this be a new peak
            self._alive = {key: item for key, item in self._alive.items() if not item[0].expired()}
            self._at_most = sum(size for _, size in self._alive.values())
            self.peak = max(self.peak, self._at_most)
        return result


class Operations(TorchDispatchMode):
    """Counts the operations inside the context that start a kernel or a copy on a GPU: all but views."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))
