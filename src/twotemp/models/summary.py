"""What a checkpoint contains, before its weights are downloaded: from its config, tokenizer and index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from twotemp.errors import UserError
from twotemp.models import catalogue
from twotemp.models.checkpoint import INDEX, read_json
from twotemp.models.families import family
from twotemp.models.load import locate
from twotemp.models.quantization import quantized_layers
from twotemp.models.token_ids import LoadOverrides, read_token_ids
from twotemp.models.transformer import Transformer


@dataclass(frozen=True)
class ModelSummary:
    """Family, size and files of a checkpoint."""

    family: str
    about: str  # mask id and attention in words
    complete: bool  # False: `about` says what to pass when loading
    parameters: int
    dtype: torch.dtype  # of the files
    weights: int  # bytes of the files
    missing: int  # bytes not yet downloaded
    int8: int | None  # bytes with quantize="int8"; None if impossible


def summarize(source: str, revision: str | None = None) -> ModelSummary:
    """Summarize a folder, an embedded model, or a hub id, of which only the small files are downloaded."""
    folder = locate(source, revision, weights=False)
    config = read_json(folder / "config.json")
    kind = family(config)
    complete = True
    with torch.device("meta"):
        if issubclass(kind, Transformer):
            native = kind.native_config(config)
            module: Any = kind.on_meta(native)
            known = catalogue.find(source)
            overrides = LoadOverrides(block_size=known.block_size if known else None)
            try:
                _, token_ids = read_token_ids(folder, kind.facts, native.vocab_size, config, overrides)
                blocks = f"blocks of {token_ids.block_size}" if token_ids.block_size else "bidirectional"
                mask = f"mask id {token_ids.mask_id}" if kind.facts.masks else "random tokens, no mask"
                about = f"{mask}, {blocks}{', shifted' if kind.lookback else ''}"
            except UserError as error:
                about, complete = str(error), False
            name = kind.facts.family
        else:
            auto: Any = AutoModelForMaskedLM
            module = auto.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
            name, about = str(config["model_type"]), "an encoder, bidirectional"
    parameters = sum({id(weight): weight.numel() for weight in module.parameters()}.values())
    downloaded = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    index = read_json(folder / INDEX) if (folder / INDEX).is_file() else {}
    weights = int(index.get("metadata", {}).get("total_size") or downloaded)
    # LLaDA's config.json has no dtype, so the size of the files decides.
    dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), None) or (
        torch.bfloat16 if 0 < weights < 3 * parameters else torch.float32
    )
    weights = weights or parameters * dtype.itemsize
    try:
        quantized = sum(layer.weight.numel() for layer in quantized_layers(module, "int8"))
        int8 = (
            quantized + (parameters - quantized) * dtype.itemsize if issubclass(kind, Transformer) else None
        )
    except UserError:
        int8 = None
    return ModelSummary(name, about, complete, parameters, dtype, weights, max(0, weights - downloaded), int8)
