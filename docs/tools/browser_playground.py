"""Build the playground that runs without a server: the page of `twotemp play` with the weights of `tiny` in it."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

import twotemp
from twotemp.policies import PRESETS
from twotemp.report.pages import compose, read
from twotemp.serving.playground import TASKS, described_policies, described_tasks

TASK_NAMES = ("countdown-3", "countdown-4")  # graded by the page itself
WIDTH = 8  # columns of a block of a matrix, as tiny_kernels.wat reads them
SCRIPT = "'wasm-unsafe-eval'"
WORKERS = "worker-src blob:"


def presets() -> list[str]:
    """Return the policies that the page's sampler implements: budgets and thresholds, without edits and groups."""
    return [
        name
        for name, preset in PRESETS.items()
        if preset.policy.rule in ("budget", "threshold")
        and preset.policy.edit == "never"
        and not preset.policy.repel
    ]


def _blocks(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a weight matrix [outputs, inputs] in blocks of columns, [outputs / 8, inputs, 8], padded with zeros."""
    padded = np.pad(matrix, ((0, -len(matrix) % WIDTH), (0, 0)))
    return padded.reshape(-1, WIDTH, matrix.shape[1]).transpose(0, 2, 1)


def weights(model: twotemp.LanguageModel) -> bytes:
    """Return all weights in float32, in the order in which tiny_model.js reads them."""
    named = {name: tensor.float().numpy() for name, tensor in model.tensors().items()}  # type: ignore[attr-defined]

    def ordered() -> Iterator[NDArray[np.float32]]:
        yield named["model.embed_tokens.weight"]
        for layer in range(model.module.config.num_hidden_layers):  # type: ignore[attr-defined]
            part = f"model.layers.{layer}"
            yield named[f"{part}.input_layernorm.weight"]
            yield _blocks(np.concatenate([named[f"{part}.self_attn.{x}_proj.weight"] for x in "qkv"]))
            yield _blocks(named[f"{part}.self_attn.o_proj.weight"])
            yield named[f"{part}.post_attention_layernorm.weight"]
            yield _blocks(np.concatenate([named[f"{part}.mlp.{x}_proj.weight"] for x in ("gate", "up")]))
            yield _blocks(named[f"{part}.mlp.down_proj.weight"])
        yield named["model.norm.weight"]
        yield _blocks(named["lm_head.weight"])

    return b"".join(np.ascontiguousarray(array, dtype="<f4").tobytes() for array in ordered())


def setup(model: twotemp.LanguageModel) -> dict[str, Any]:
    """Return what the worker must know beside the weights: sizes, special ids, the vocabulary and the chat format."""
    config = model.module.config  # type: ignore[attr-defined]
    vocabulary = model.tokenizer.get_vocab()  # type: ignore[attr-defined]
    before, after = model.encode("0"), model.encode("0 0")
    return {
        "config": {
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
            "layers": config.num_hidden_layers,
            "hidden": config.intermediate_size,
            "vocab": config.vocab_size,
            "length": config.max_position_embeddings,
            "theta": config.rope_parameters["rope_theta"],
            "epsilon": config.rms_norm_eps,
        },
        "mask": model.mask_id,
        "forbidden": sorted({*model.forbidden_ids, model.mask_id}),
        "eos": list(model.eos_ids),
        "special": list(model.tokenizer.all_special_ids),  # type: ignore[attr-defined]
        "unknown": model.tokenizer.unk_token_id,  # type: ignore[attr-defined]
        "vocabulary": vocabulary,
        # The chat format: ids before and after those of the prompt.
        "before": before[: before.index(vocabulary["0"])],
        "after": after[after.index(vocabulary["0"]) + 2 :],
    }


def page() -> str:
    """Return the page."""
    model = twotemp.load("tiny")
    about = {
        "model": "tiny",
        "chat": True,
        "policies": {name: described_policies()[name] for name in presets()},
        "tasks": described_tasks(TASK_NAMES),
    }
    references = {
        p.id: dict(p.reference) for name in TASK_NAMES for p in TASKS[name].task().problems().problems[:24]
    }
    data = {
        "about": about,
        "references": references,
        "setup": setup(model),
        "worker": read("tiny_worker.js"),
        "wasm": base64.b64encode(
            (files("twotemp.report") / "pages" / "tiny_kernels.wasm").read_bytes()
        ).decode(),
    }
    packed = base64.b64encode(gzip.compress(weights(model), 9, mtime=0)).decode()
    return compose(
        "playground",
        data,
        [packed],
        rules=(WORKERS,),
        script=SCRIPT,
        source="playground_browser.js",
    )
