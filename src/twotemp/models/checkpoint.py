"""Checkpoint folders: config.json, safetensors and tokenizer files, read and written. Never pickle, never code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from twotemp.errors import UserError
from twotemp.folders import make_folder, replacing, write_json
from twotemp.models.card import model_card, remote_code
from twotemp.records import NO_MASK

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5_000_000_000  # of a file, at most: what can be read and sent at once
ID_FIELDS = ("mask_token_id", "eos_token_id", "block_size")  # resolved when loading, written when saving
REMOTE_CODE = "auto_map"  # of config.json and tokenizer_config.json: classes in Python files beside them
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
VOCABULARIES = {"vocab.json", "vocab.txt", "tokenizer.model", "spiece.model"}  # besides tokenizer.json
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class Saveable(Protocol):
    """A model that came from, or can become, a checkpoint folder."""

    name: str
    config: Mapping[str, Any]
    tokenizer: Any | None
    mask_id: int
    eos_ids: tuple[int, ...]
    block_size: int | None

    def write_weights(self, folder: Path) -> None: ...


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; a UserError names the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))  # with or without a byte order mark
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"{path.parent} is not a checkpoint folder: it has no {path.name}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); copy it again from the checkpoint") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Return generation_config.json (empty if there is none), where some checkpoints name end-of-turn tokens."""
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder, sharded or not; a UserError if there are none."""
    if (folder / INDEX).is_file():
        return _shards(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if files := sorted(file for file in folder.glob("*.safetensors") if file.is_file()):
        return files  # a missing index does not matter: names and shapes are checked anyway
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{folder} has its weights only as pickle ({', '.join(pickles)}), which can run code when it is "
            f"opened; convert them to {SINGLE} (safetensors.torch.save_file) in an environment you trust"
        )
    raise UserError(f"{folder} has no weights: expected {SINGLE} or {INDEX} with its shards")


def _shards(folder: Path) -> list[Path]:
    """Return the files that the index names, all of them in the folder itself."""
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{folder / INDEX} has no weight_map of names and files; download it again")
    files = [folder / Path(name).name for name in sorted(set(names.values()))]
    for file in files:
        if not file.is_file():
            raise UserError(f"{folder}: {INDEX} names {file.name}, which is missing; download it again")
    return files


def read_headers(files: Sequence[Path]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of every tensor, by its name in the files; no weights are read."""
    headers: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for file in files:
        with _opened(file) as tensors:
            for key in _stored(tensors):
                part = tensors.get_slice(key)
                kind = part.get_dtype()
                if key in headers:
                    raise UserError(f"{file}: {key} is also in another file of the folder; keep one of them")
                if kind not in DTYPES:
                    raise UserError(
                        f"{file}: {key} is stored as {kind}; use a 16- or 32-bit checkpoint (loaded with "
                        "quantize if it does not fit)"
                    )
                headers[key] = (tuple(part.get_shape()), DTYPES[kind])
    return headers


def main_dtype(headers: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> torch.dtype:
    """Return the number format of a checkpoint: that of its largest tensor."""
    return max(headers.values(), key=lambda header: torch.Size(header[0]).numel())[1]


def empty_tensors(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return tensors on "meta" like those of the files, by name."""
    headers = read_headers(files).items()
    return {key: torch.empty(shape, dtype=dtype, device="meta") for key, (shape, dtype) in headers}


def write_shards(
    weights: Mapping[str, Tensor], folder: Path, read: Callable[[str], Tensor] | None = None
) -> None:
    """Write weights as one file, or as several of at most `SHARD_BYTES` with an index.

    Args:
        weights: By name; with `read` only their shapes and dtypes matter.
        folder: Where to write.
        read: Returns the weights of a name, so that no more than one file's are in memory; None: they are given.
    """
    split = split_torch_state_dict_into_shards(dict(weights), max_shard_size=SHARD_BYTES)
    for name, keys in split.filename_to_tensors.items():
        shard = {key: weights[key] if read is None else read(key) for key in keys}
        save_file(shard, folder / name, metadata={"format": "pt"})
        del shard
    if split.is_sharded:
        write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})


@contextmanager
def open_weights(files: Sequence[Path]) -> Iterator[Callable[[str], Tensor]]:
    """Yield a function that reads one tensor of these files by its name."""
    with ExitStack() as opened:
        parts = [opened.enter_context(_opened(file)) for file in files]
        holders = {key: part for part in parts for key in _stored(part)}
        yield lambda key: holders[key].get_tensor(key)


def read_tensors(files: Sequence[Path], unused: tuple[str, ...] = ()) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a checkpoint by name, but those whose names begin with one of `unused`.

    A file is closed before the next is opened.
    """
    for file in files:
        with _opened(file) as tensors:
            for key in _stored(tensors):
                if not key.startswith(unused):
                    yield key, tensors.get_tensor(key)


def _stored(tensors: Any) -> list[str]:
    """Return the names of the weights, without rotary frequencies: older files have them, the config implies them."""
    return [key for key in tensors.keys() if not key.endswith("rotary_emb.inv_freq")]  # noqa: SIM118


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read as safetensors ({error}); download it again") from None


Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(found: Shapes, expected: Shapes, where: str) -> None:
    """Raise a UserError unless exactly the expected weights are there; messages use the checkpoint's names."""
    problems = [f"missing {key}" for key in sorted(expected.keys() - found.keys())]
    problems += [f"unexpected {key}" for key in sorted(found.keys() - expected.keys())]
    problems += [
        f"{key} has shape {found[key]}, not {expected[key]}"
        for key in sorted(expected.keys() & found.keys())
        if found[key] != expected[key]
    ]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise UserError(
            f"{where}: the weights do not fit config.json: {'; '.join(problems[:4])}{more}. "
            "Check that both come from the same checkpoint and that no shard is missing"
        )


def read_native(
    auto: Any,
    folder: Path,
    what: str,
    dtype: torch.dtype | None,
    ignored: Callable[[str], object] = lambda key: False,
    **options: Any,
) -> Any:
    """Load a model of a `transformers` auto class; the library alone would initialize missing weights at random.

    Args:
        auto: The auto class.
        folder: The checkpoint folder.
        what: The kind of model in words, for error messages.
        dtype: None for that of the files.
        ignored: Which weights the files may have beyond those of the model.
        **options: Further arguments of `from_pretrained`.
    """
    weight_files(folder)  # raises a clear error for pickles and missing shards
    try:
        with _quiet():
            module, report = auto.from_pretrained(
                folder,
                dtype=dtype or "auto",
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # reported below
                output_loading_info=True,
                **options,
            )
    except (ValueError, OSError, RuntimeError) as error:
        raise UserError(f"{folder} cannot be loaded as {what} ({error})") from error
    problems = [f"missing {key}" for key in sorted(report["missing_keys"])]
    problems += [f"unexpected {key}" for key in sorted(report["unexpected_keys"]) if not ignored(key)]
    problems += [f"{key[0]} has another shape" for key in sorted(report["mismatched_keys"])]
    if problems:
        raise UserError(
            f"{folder}: the weights do not fit {what}: {'; '.join(problems[:4])}. Use a checkpoint that was "
            "saved with its head"
        )
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bars and loading reports of `transformers`."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging  # untyped

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def is_panic(error: BaseException) -> bool:
    """Return whether the Rust code of a tokenizer panicked; its exception's class is not importable."""
    return type(error).__name__ == "PanicException"


def read_tokenizer(folder: Path) -> Any | None:
    """Return the folder's tokenizer, or None if it has none: the model then works on token ids."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

    names = {path.name for path in folder.iterdir()}
    try:
        with _quiet():
            if "tokenizer.json" in names:
                return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
            if {"vocab.json", "merges.txt"} <= names:  # Dream: named a custom class, but identical to Qwen2's
                return Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
            if names & {"tokenizer_config.json", *VOCABULARIES}:
                return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except BaseException as error:  # the library raises anything from OSError to a Rust panic
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        if not names & {"tokenizer.json", *VOCABULARIES}:
            raise UserError(
                f"{folder} has no tokenizer.json; copy it from the checkpoint (or remove tokenizer_config.json to "
                "work on token ids)"
            ) from error
        raise UserError(
            f"{folder}: the tokenizer files cannot be read ({error}); repair them, or remove them to work "
            "on token ids"
        ) from error
    return None


def save(
    model: Saveable,
    folder: str | os.PathLike[str],
    *,
    about: str = "A copy that twotemp saved.",
    settings: Mapping[str, Any] | None = None,
    write_weights: Callable[[Path], None] | None = None,
) -> Path:
    """Write a model as a checkpoint folder in its family's layout, with a model card; `load` gives the same logits.

    Args:
        model: The model.
        folder: Where to write. It appears complete or not at all; an existing one is an error.
        about: For the card: how the model differs from the one it was loaded as, as a sentence.
        settings: For the card: how it was trained.
        write_weights: Writes other weights than the model's into the folder.

    Returns:
        The folder.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} already exists; choose another folder or remove it first")
    make_folder(target.parent)
    with replacing(target) as partial:
        partial.mkdir()
        (write_weights or model.write_weights)(partial)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(partial)
            tokenizer = partial / "tokenizer_config.json"
            write_json(tokenizer, _without_local_code(read_json(tokenizer), model.name))
        write_json(partial / "config.json", _without_local_code(_config_to_write(model), model.name))
        family = str(model.config.get("model_type"))
        (partial / "README.md").write_text(model_card(model.name, family, about, settings), encoding="utf-8")
        for file in partial.iterdir():
            file.chmod(0o644)  # safetensors creates private files
    return target


def _config_to_write(model: Saveable) -> dict[str, Any]:
    """Return the config as it was read, plus what was passed when the model was loaded."""
    config = {**model.config} | ({} if model.mask_id == NO_MASK else {"mask_token_id": model.mask_id})
    if model.eos_ids != (config.get("eos_token_id"),):
        config["eos_token_id"] = list(model.eos_ids)
    if model.block_size is not None:
        config["block_size"] = model.block_size
    return config


def _without_local_code(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the config without classes in Python files beside it, which are not saved, or pointing at the hub's."""
    pointed = remote_code(config.get(REMOTE_CODE), name)
    rest = {key: value for key, value in config.items() if key != REMOTE_CODE}
    return rest if pointed is None else {**rest, REMOTE_CODE: pointed}


def plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors by name; a quantized one as its parts (integers, scales)."""
    tensors: dict[str, Tensor] = {}
    for key, tensor in module.state_dict(keep_vars=True).items():
        inner: Any = tensor
        if is_traceable_wrapper_subclass(tensor):
            tensors |= {f"{key}.{part}": getattr(inner, part) for part in inner.__tensor_flatten__()[0]}
        else:
            tensors[key] = tensor.detach()
            if (state := getattr(inner, "quant_state", None)) is not None:
                tensors |= {f"{key}.{part}": value for part, value in state.as_dict(packed=True).items()}
    return tensors


def fingerprint(model: Any) -> str:
    """Return a hash of everything that determines the logits, for keys of stored results.

    It survives saving and loading. Of large tensors it reads 4096 evenly spaced values: training moves nearly all of
    them, so these distinguish two checkpoints, and 8B parameters take seconds instead of minutes.
    """
    digest = hashlib.sha256()
    config = {key: value for key, value in model.config.items() if key not in (*ID_FIELDS, REMOTE_CODE)}
    facts = [config, model.mask_id, model.eos_ids, model.forbidden_ids, model.block_size]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for key, tensor in sorted(model.tensors().items()):
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // 4096)].contiguous().cpu()
        digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
