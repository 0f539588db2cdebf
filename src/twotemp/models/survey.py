"""What a checkpoint is, before any of its weights are fetched: from its config, tokenizer and index."""

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
from twotemp.models.quantizing import quantized_layers
from twotemp.models.special import Given, read_special
from twotemp.models.transformer import Transformer


@dataclass(frozen=True)
class Survey:
    family: str
    about: str  # mask id and attention in words
    complete: bool  # False: `about` is what has to be said when loading
    parameters: int
    dtype: torch.dtype  # of the files
    weights: int  # bytes of the files
    missing: int  # bytes that are not on this machine
    int8: int | None  # bytes with quantize="int8"; None where that cannot be


def survey(source: str, revision: str | None = None) -> Survey:
    """Look at a folder, an embedded model, or a hub id, of which only the small files are fetched."""
    folder = locate(source, revision, weights=False)
    config = read_json(folder / "config.json")
    kind = family(config)
    complete = True
    with torch.device("meta"):
        if issubclass(kind, Transformer):
            native = kind.native_config(config)
            module: Any = kind.native(native)
            known = catalogue.find(source)
            given = Given(block_size=known.block_size if known else None)
            try:
                _, special = read_special(folder, kind.facts, native.vocab_size, config, given)
                blocks = f"blocks of {special.block_size}" if special.block_size else "bidirectional"
                about = f"mask id {special.mask_id}, {blocks}{', shifted' if kind.lookback else ''}"
            except UserError as error:
                about, complete = str(error), False
            name = kind.facts.family
        else:
            auto: Any = AutoModelForMaskedLM
            module = auto.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
            name, about = str(config["model_type"]), "an encoder, bidirectional"
    parameters = sum({id(weight): weight.numel() for weight in module.parameters()}.values())
    here = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    index = read_json(folder / INDEX) if (folder / INDEX).is_file() else {}
    weights = int(index.get("metadata", {}).get("total_size") or here)
    # LLaDA's config.json does not say it, so the size of the files does.
    dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), None) or (
        torch.bfloat16 if 0 < weights < 3 * parameters else torch.float32
    )
    weights = weights or parameters * dtype.itemsize
    try:
        eighth = sum(layer.weight.numel() for layer in quantized_layers(module))
        int8 = eighth + (parameters - eighth) * dtype.itemsize if issubclass(kind, Transformer) else None
    except UserError:
        int8 = None
    return Survey(name, about, complete, parameters, dtype, weights, max(0, weights - here), int8)
