"""Small random models of every family, from configs with the published field names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from twotemp.models.families import FAMILIES
from twotemp.models.token_ids import LoadOverrides, resolve_token_ids
from twotemp.models.transformer import Transformer

VOCABULARY, MASK, EOS = 40, 39, 38
LLADA_8B: dict[str, Any] = {  # as published
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "mlp_hidden_size": 12288,
    "embedding_size": 126_464,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}


def _configs() -> dict[str, dict[str, Any]]:
    """Return one config per family, by its name in `load`, from the fixtures; so new families are tested as well."""
    configs: dict[str, dict[str, Any]] = {}
    for path in sorted((Path(__file__).parents[1] / "fixtures").glob("*/reference.json")):
        config = json.loads((path.parent / "config.json").read_text())
        names = [*config["architectures"], config["model_type"]]
        name = next(name for name in names if name in FAMILIES)
        config |= {"vocab_size": VOCABULARY, "eos_token_id": EOS}
        config |= {field: VOCABULARY for field in ("embedding_size",) if field in config}
        if FAMILIES[name].facts.blocks != "always":
            config["mask_token_id"] = MASK
        if FAMILIES[name].facts.blocks == "either":
            config["block_size"] = None
        configs.setdefault(name, config)
    return configs


CONFIGS = _configs()
BLOCK_CAUSAL = tuple(name for name in CONFIGS if FAMILIES[name].facts.blocks == "always")
BIDIRECTIONAL = tuple(name for name in CONFIGS if name not in BLOCK_CAUSAL)
MIXTURES = tuple(name for name in CONFIGS if "num_experts" in CONFIGS[name])
SHIFTED = tuple(name for name in CONFIGS if FAMILIES[name].lookback)
BLOCK = 4


def given(model_type: str) -> LoadOverrides:
    """Return the special ids and block size that this family's config lacks."""
    return LoadOverrides(MASK, (EOS,), BLOCK) if model_type in BLOCK_CAUSAL else LoadOverrides()


def random_model(
    model_type: str, tokenizer: Any = None, changes: dict[str, Any] | None = None, seed: int = 0
) -> Transformer:
    """Return a model whose weights are all random, including norms and biases."""
    family = FAMILIES[model_type]
    config = {**CONFIGS[model_type], **(changes or {})}
    native = family.native_config(config)
    generator = torch.Generator().manual_seed(seed)
    module = family.native(native).eval()
    with torch.no_grad():
        for key, tensor in module.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(1 + 0.2 * noise if "norm" in key else 0.3 * noise)
    token_ids = resolve_token_ids(
        family.facts, native.vocab_size, config, tokenizer, overrides=given(model_type)
    )
    return family(module, config, token_ids, tokenizer, model_type)


def word_tokenizer(template: str | None = "{{ messages[0].content }}<|eot_id|>") -> PreTrainedTokenizerFast:
    """Return a tokenizer with three words, the special tokens of a chat model and fillers up to id 29."""
    words = ["a", "b", "c", "[UNK]", "<|eot_id|>", "<|im_end|>", "<|role_end|>", "<|begin|>"]
    words += [f"w{i}" for i in range(len(words), 30)]
    ids = {word: i for i, word in enumerate(words)} | {"<|endoftext|>": EOS, "<|mask|>": MASK}
    core = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        bos_token="<|begin|>",
        eos_token="<|endoftext|>",
        additional_special_tokens=["<|eot_id|>", "<|im_end|>", "<|role_end|>", "<|mask|>"],
        chat_template=template,
    )


def left_padded(rows: list[list[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask of a batch, padded on the left with EOS as the published samplers do."""
    ids = torch.tensor([[EOS] * (width - len(row)) + row for row in rows])
    real = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return ids, real


def byte_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each byte and each special token: any text can be read back."""
    vocabulary = {byte: i for i, byte in enumerate(sorted(ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer, core.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = [
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|role_end|>",
    ]
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        mask_token="<|mask|>",
        additional_special_tokens=special,
        chat_template=template,
    )
