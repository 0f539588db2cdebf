"""Reward models in the layout of `AutoModelForSequenceClassification`, AceMath-7B-RM among them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twotemp.errors import UserError
from twotemp.models.checkpoint import read_json, read_native, read_tokenizer, weight_files
from twotemp.models.load import locate, usable_device, usable_dtype
from twotemp.records import Problem

EMBEDDED = ("verifier",)  # named in the message about unknown sources, though it is a denoiser
_ACEMATH = "Please reason step by step, and check your final answer within \\boxed{}."
# The text that a reward model was trained to read before the question, by the last part of its name (model card).
SYSTEM = {"AceMath-7B-RM": _ACEMATH, "AceMath-72B-RM": _ACEMATH}


class SequenceClassifier:
    """Scores a conversation of two turns, the problem and the answer, by one logit."""

    def __init__(
        self,
        source: str | Path,
        *,
        batch_size: int = 32,
        system: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """Find a checkpoint; its weights are read when it scores its first answer.

        Args:
            source: A folder or hub id.
            batch_size: Conversations in a forward pass.
            system: Text before the question; None: what the checkpoint is known to need, if anything.
            device: Where the model runs; None: CUDA if there is any.
            dtype: Of the weights; None: the device's default.
        """
        if batch_size < 1:
            raise UserError(f"batch_size must be >= 1, not {batch_size}")
        self.source = str(source)
        self.folder = locate(source, embedded=EMBEDDED, check=_check_config)
        _check_config(read_json(self.folder / "config.json"))
        base = self.source.rstrip("/").rsplit("/", 1)[-1]
        self.system = SYSTEM.get(base) if system is None else system
        self.batch_size = batch_size
        self.name = f"{base} {_fingerprint(self.folder, self.system)}"
        self._device, self._dtype = device, dtype

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        """Return the score of each answer, in the order given; equal ones are computed once."""
        distinct = list(dict.fromkeys((problem.task, problem.prompt, text) for problem, text in items))
        rows = [self.encode(prompt, text) for _, prompt, text in distinct]
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # little padding
        scores: dict[tuple[str, str, str], float] = {}
        for start in range(0, len(rows), self.batch_size):
            batch = by_length[start : start + self.batch_size]
            for index, score in zip(batch, self.logits([rows[index] for index in batch]).tolist()):
                if not math.isfinite(score):
                    raise UserError(
                        f"the reward model {self.name!r} gave {score} to an answer to {distinct[index][1][:60]!r}; "
                        "check its weights, or load it with more precision (float32)"
                    )
                scores[distinct[index]] = score
        return [scores[problem.task, problem.prompt, text] for problem, text in items]

    def encode(self, prompt: str, answer: str) -> list[int]:
        """Return the conversation as token ids. The chat template writes all special tokens, so none are added."""
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        if self.system is not None:
            turns.insert(0, {"role": "system", "content": self.system})
        text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        longest = getattr(self._module.config, "max_position_embeddings", None)
        if longest is not None and len(ids) > longest:
            raise UserError(
                f"an answer of {len(ids)} tokens is longer than {self.name!r} can read ({longest}); score shorter "
                "answers, or give a reward model with a longer context (--rm)"
            )
        return ids

    @torch.inference_mode()
    def logits(self, rows: Sequence[list[int]]) -> Tensor:
        """Return the score of each row, which does not depend on the other rows.

        Rows are padded on the right. Decoders pool at "the last token that is not the padding token", so the padding
        must be the token the model was configured with. A model configured with none pools at the last token of a
        single row; it is given an id that no row ends with.
        """
        module = self._module
        pad = module.config.pad_token_id
        if self._own_padding:
            ends = {row[-1] for row in rows}
            pad = module.config.pad_token_id = next(i for i in range(len(ends) + 1) if i not in ends)
        width = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=module.device)
        real = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=module.device)
        logits: Tensor = module(input_ids=ids, attention_mask=real).logits
        return logits[:, 0].float().cpu()

    @cached_property
    def _own_padding(self) -> bool:
        return self._module.config.pad_token_id is None

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = read_tokenizer(self.folder)
        if tokenizer is None or tokenizer.chat_template is None:
            raise UserError(
                f"{self.folder} has no tokenizer with a chat template, so the reward model cannot read texts; "
                "put tokenizer.json and tokenizer_config.json of the checkpoint into the folder"
            )
        return tokenizer

    @cached_property
    def _module(self) -> Any:
        from transformers import AutoModelForSequenceClassification

        device = usable_device(self._device)
        module = read_native(
            AutoModelForSequenceClassification,
            self.folder,
            "a reward model with one output",
            usable_dtype(self._dtype, device),
            num_labels=1,
        )
        return module.to(device).eval()


def _check_config(config: Mapping[str, Any]) -> None:
    kinds = config.get("architectures") or ["none named"]
    if not str(kinds[0]).endswith("ForSequenceClassification"):
        raise UserError(
            f"not a reward model: its config.json names {kinds[0]}, and a reward model is a sequence classifier, "
            "such as nvidia/AceMath-7B-RM; a denoiser scores answers as `likelihood:` and its name"
        )


def _fingerprint(folder: Path, system: str | None) -> str:
    """Return a hash of what decides the scores, without reading gigabytes.

    Of every weight file it takes the size, the header and 64 evenly spaced pieces: training moves nearly all weights,
    so that pieces distinguish two checkpoints.
    """
    digest = hashlib.sha256(repr(system).encode())
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    for path in (folder / name for name in names):
        digest.update(path.read_bytes() if path.is_file() else b"-")
    for path in weight_files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for piece in range(64):
                file.seek(piece * size // 64)
                digest.update(file.read(4096))
    return digest.hexdigest()[:8]
