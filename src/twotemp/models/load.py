"""From a name to a model: the embedded checkpoints, a folder, or a hub id."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from twotemp.errors import UserError, unknown
from twotemp.models import catalogue
from twotemp.models.base import Denoiser, LanguageModel
from twotemp.models.card import HUB_ID
from twotemp.models.checkpoint import DTYPES, read_headers, read_json, weight_files
from twotemp.models.families import family
from twotemp.models.masked_lm import MaskedLM
from twotemp.models.quantization import check_quantize
from twotemp.models.token_ids import LoadOverrides
from twotemp.models.transformer import Transformer
from twotemp.models.weight_loading import Storage, check_device_map
from twotemp.records import NO_MASK

EMBEDDED = ("tiny", "tiny-ar", "tiny-uniform")
# No Python files: a checkpoint is data.
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]


def load(
    source: str | Path,
    *,
    mask_id: int | None = None,
    eos_ids: Collection[int] | None = None,
    block_size: int | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    quantize: str | None = None,
    device_map: str | None = None,
    compile: bool = False,
) -> LanguageModel:
    """Load a masked diffusion LM, recognized by its config.json; no remote code, no pickle.

    Args:
        source: "tiny", "tiny-ar" or "tiny-uniform" (embedded), a checkpoint folder, or a hub id.
        mask_id: The mask token, if the config does not name it; takes precedence over the config.
        eos_ids: The end tokens, likewise.
        block_size: The block size, likewise; 0: a model that comes in both kinds (dllm's A2D) is bidirectional.
        device: None is CUDA if available, else the CPU.
        dtype: None is float32 on the CPU and the checkpoint's own elsewhere.
        revision: Of a hub id.
        quantize: "int8", "nf4" or (on NVIDIA GPUs) "int4" of the linear layers, while they are read; samples differ.
        device_map: "auto" distributes the layers over all GPUs.
        compile: torch.compile the network. The first calls take a while, and sums are rounded in another order, so a
            sample may differ from the uncompiled model's.

    >>> import twotemp
    >>> twotemp.load("tiny").max_length
    128
    """
    check_device_map(device_map, device, quantize)
    where = usable_device(device)
    if quantize is not None:
        check_quantize(quantize, where)
    if quantize == "int4":
        dtype = torch.bfloat16  # the only dtype of its kernel
    storage = Storage(where, usable_dtype(dtype, where), quantize, device_map)
    folder = locate(source, revision)
    config = read_json(folder / "config.json")
    overrides = _overrides(source, mask_id, eos_ids, block_size)
    model = family(config).from_folder(folder, config, name=str(source), overrides=overrides, storage=storage)
    if compile:
        compile_body(model)
    return model


def load_name(model: Denoiser | str | Path) -> Denoiser:
    """Return the model itself, or what `load` returns for its name; the model that was named last is kept."""
    return _load_kept(str(model)) if isinstance(model, (str, Path)) else model


_load_kept = lru_cache(maxsize=1)(load)


def load_text(
    source: str | Path,
    *,
    mask_id: int | None = None,
    eos_ids: Collection[int] | None = None,
    block_size: int | None = None,
    revision: str | None = None,
) -> LanguageModel:
    """Return a model without its weights: it encodes, decodes and knows its special ids; arguments as in `load`."""
    folder = locate(source, revision, weights=False)
    config = read_json(folder / "config.json")
    overrides = _overrides(source, mask_id, eos_ids, block_size)
    return family(config).from_folder(folder, config, name=str(source), overrides=overrides, storage=None)


def _overrides(
    source: str | Path, mask_id: int | None, eos_ids: Collection[int] | None, block_size: int | None
) -> LoadOverrides:
    """Return what the caller passes, completed by what is known of a published checkpoint."""
    if block_size is None and HUB_ID.fullmatch(str(source)) and (known := catalogue.find(str(source))):
        block_size = known.block_size
    return LoadOverrides(mask_id, eos_ids, block_size)


def compile_body(model: Transformer | MaskedLM) -> None:
    """Compile the body for any batch and length, and try it once: it needs a compiler that may be missing."""
    if model.mask_id == NO_MASK:
        raise UserError(f"{model.name} cannot be compiled yet; load it without compile")
    ids = torch.full((1, 2), model.mask_id, device=model.device)
    try:
        model.module.base_model.compile(dynamic=True)
        with torch.inference_mode():
            model.logits(ids, None, ids == model.mask_id)
    except (RuntimeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"torch.compile does not work here ({reason}); load without compile, or install what it asks for "
            "(on a CPU, a C++ compiler such as g++)"
        ) from error


def locate(
    source: str | Path,
    revision: str | None = None,
    *,
    embedded: Sequence[str] = EMBEDDED,
    check: Callable[[Mapping[str, Any]], object] | None = None,
    weights: bool = True,
    local_files_only: bool = False,
) -> Path:
    """Return the folder of a checkpoint; a hub id is downloaded (data files only) or found in the hub's cache.

    Args:
        source: See `load`.
        revision: Of a hub id.
        embedded: Names of embedded models.
        check: Raises for a config.json that cannot be used (default: no family can represent it), before gigabytes
            are downloaded in vain.
        weights: False downloads only the small files.
        local_files_only: Do not ask the hub; use its cache on this machine.
    """
    if not isinstance(source, (str, Path)):
        raise UserError(f"a model is an embedded name, a folder or a hub id, not {source!r}")
    name = str(source)
    if name in embedded:
        folder = Path(str(files("twotemp.models") / "weights" / name))
        if not folder.is_dir():
            raise UserError(f"the embedded model {name!r} is not in this installation; install twotemp again")
    else:
        catalogue.refuse(name)
        folder = Path(source)
        if not os.path.isdir(name):  # nor is a name that the system refuses
            if isinstance(source, str) and HUB_ID.fullmatch(name):
                return _download(name, revision, check or _check, weights, local_files_only)
            raise UserError(
                f"no model {name!r}: not a folder, not an embedded model ({', '.join(embedded)}), and not a hub "
                f"id such as GSAI-ML/LLaDA-8B-Instruct{catalogue.suggestion(name)}"
            )
    if revision is not None:
        raise UserError(f"revision={revision!r} only applies to hub ids, and {name!r} is a folder")
    return folder


def _download(
    name: str,
    revision: str | None,
    check: Callable[[Mapping[str, Any]], object],
    weights: bool,
    local_files_only: bool,
) -> Path:
    from huggingface_hub import errors, snapshot_download

    def download(*patterns: str) -> Path:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=[*patterns], local_files_only=local_files_only
            )
        )

    try:
        folder = download(*SMALL_FILES)
        check(read_json(folder / "config.json"))
        return download(*SMALL_FILES, "*.safetensors") if weights else folder
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        if isinstance(error, errors.GatedRepoError):
            reason = "accept its terms on its page there, then log in (`hf auth login`)"
        elif isinstance(
            error, (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError)
        ):
            reason = "there is none of that name (and revision); check the spelling"
        elif local_files_only:
            reason = "it is not in the hub's cache on this machine"
        elif isinstance(error, errors.LocalEntryNotFoundError):
            reason = "the hub cannot be reached; check the connection, or pass the path of a copy"
        else:
            reason = f"{error}; try again, or pass the path of a copy"
        raise UserError(
            f"{name!r} is not a local folder and could not be downloaded from the hub: "
            f"{reason}{catalogue.suggestion(name)}"
        ) from error


def stored_parameters(source: str | Path, revision: str | None = None) -> int:
    """Return how many numbers a checkpoint's weights have; arguments as in `load`."""
    headers = read_headers(weight_files(locate(source, revision)))
    return sum(torch.Size(shape).numel() for shape, _ in headers.values())


def _check(config: Mapping[str, Any]) -> None:
    kind = family(config)
    if issubclass(kind, Transformer):
        kind.native_config(config)


def usable_device(device: str | torch.device | None) -> torch.device:
    """Return the device after trying it once; None is CUDA if available, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        # The noise is drawn in float64, which Apple's GPUs (mps) do not have.
        torch.empty(0, dtype=torch.float64, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise UserError(f"device {str(device)!r} cannot be used here ({reason}); try device='cpu'") from None
    return chosen


def usable_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | None:
    """Return the dtype; None is float32 on the CPU and stays None elsewhere: the checkpoint's own."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else None
    known = {str(kind).removeprefix("torch."): kind for kind in DTYPES.values()}
    name = str(dtype).removeprefix("torch.")
    if name not in known:
        raise unknown("dtype", name, known)
    return known[name]
