"""The samplers of other projects, imported from their checkouts; this repository contains none of their code.

The checkouts are DIR/LLaDA (ML-GSAI/LLaDA), DIR/Fast-dLLM (NVlabs/Fast-dLLM) and DIR/dllm (ZHZisZZ/dllm); a missing
one is skipped. Without a cache all of them call our module for the logits of every position, so that only the
samplers differ. With a cache Fast-dLLM needs its own modelling code, on the same weights.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import EnoughSteps
from twotemp.models.llada import LLaDA


@dataclass(frozen=True)
class SamplingTask:
    """The work of one call of a sampler. Without a threshold, one position is committed per step (LC, K = 1)."""

    prompts: Tensor  # [B, P]
    length: int
    block: int
    temperature: float
    threshold: float | None
    mask_id: int


Sampler = Callable[[Any, SamplingTask], Tensor]  # (callable model, task) -> ids [B, P + length]


@dataclass(frozen=True)
class Peer:
    """A sampler and what it supports."""

    sample: Sampler
    thresholds: bool = True  # supports confidence thresholds
    batches: bool = True  # accepts more than one row

    def can(self, task: SamplingTask) -> bool:
        """Tell whether the sampler supports a task."""
        return (self.thresholds or task.threshold is None) and (self.batches or len(task.prompts) == 1)


class FullLogits:
    """Our module with the interface that the peers expect of a model.

    The peers do not forbid the mask token; with a random model they would write it and never finish, so its logit is
    -inf here.
    """

    def __init__(self, model: LLaDA, steps: int) -> None:
        self.module, self.mask_id, self.device = model.module, model.mask_id, model.device
        self.calls, self.steps = 0, steps

    def __call__(self, ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        assert attention_mask is None or bool(attention_mask.all()), "prompts of one length need no padding"
        if self.calls == self.steps:
            raise EnoughSteps
        self.calls += 1
        logits = self.module(input_ids=ids, use_cache=False).logits
        logits[..., self.mask_id] = -torch.inf
        return SimpleNamespace(logits=logits)


class FastModel:
    """Fast-dLLM's own network with our weights.

    Its `transformers` wrapper does not run on transformers 5, but the network inside it does; it is called as the
    wrapper calls it.
    """

    def __init__(self, modelling: ModuleType, model: LLaDA) -> None:
        configuration = importlib.import_module("model.configuration_llada").ModelConfig
        known = {field.name for field in fields(configuration)}
        options = {key: value for key, value in model.config.items() if key in known}
        self.network = modelling.LLaDAModel(configuration(**options), init_params=False).eval()
        weights = model.to_checkpoint_layout(model.module.state_dict())
        self.network.load_state_dict({key.removeprefix("model."): w for key, w in weights.items()})
        self.mask_id, self.device = model.mask_id, model.device
        self.calls = 0

    def __call__(self, ids: Tensor, **options: Any) -> SimpleNamespace:
        self.calls += 1
        output = self.network(ids, **options)
        output.logits[..., self.mask_id] = -torch.inf
        return SimpleNamespace(logits=output.logits, past_key_values=output.attn_key_values)


def uncached(folder: Path | None) -> tuple[dict[str, Peer], list[str]]:
    """Return the available samplers by name, and the reasons why others are skipped."""
    return _build_all({"LLaDA": _llada, "Fast-dLLM": _fast, "dllm": _dllm}, folder)


def cached(folder: Path | None, model: LLaDA) -> tuple[dict[str, tuple[Peer, FastModel]], list[str]]:
    """Return Fast-dLLM's cached samplers and networks with this model's weights, and the reasons for skipped ones."""

    def builder(name: str) -> Callable[[Path], tuple[Peer, FastModel]]:
        def build(root: Path) -> tuple[Peer, FastModel]:
            generate = _fast_module(root)
            network = FastModel(sys.modules["model.modeling_llada"], model)
            return Peer(_fast_sampler(getattr(generate, name)), batches=False), network

        return build

    return _build_all(
        {
            "Fast-dLLM, prefix": builder("generate_with_prefix_cache"),
            "Fast-dLLM, dual": builder("generate_with_dual_cache"),
        },
        folder,
    )


def _build_all(
    builders: dict[str, Callable[[Path], Any]], folder: Path | None
) -> tuple[dict[str, Any], list[str]]:
    """Return what could be built, and the reasons why the rest could not."""
    if folder is None:
        return {}, ["no peers; name the folder of their checkouts with `make bench PEERS=DIR`"]
    available, missing = {}, []
    for name, build in builders.items():
        try:
            available[name] = build(folder)
        except (OSError, ImportError) as error:
            missing.append(f"{name} is skipped: {error}")
    return available, missing


def _load_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _llada(root: Path) -> Peer:
    generate = _load_file("peer_llada", root / "LLaDA" / "generate.py").generate

    def sample(model: Any, task: SamplingTask) -> Tensor:
        return generate(model, task.prompts, **_generate_options(task))

    return Peer(sample, thresholds=False)


def _generate_options(task: SamplingTask) -> dict[str, Any]:
    """Return the arguments of LLaDA's `generate` and of the functions derived from it."""
    return {
        "steps": task.length,
        "gen_length": task.length,
        "block_length": task.block,
        "temperature": task.temperature,
        "mask_id": task.mask_id,
    }


def _fast(root: Path) -> Peer:
    return Peer(_fast_sampler(_fast_module(root).generate), batches=False)


def _fast_module(root: Path) -> ModuleType:
    folder = root / "Fast-dLLM" / "llada"
    if str(folder) not in sys.path:  # generate.py imports its neighbors by name
        sys.path.insert(0, str(folder))
    if "einops" not in sys.modules and importlib.util.find_spec("einops") is None:
        # Its modelling file imports einops, but the code that runs here does not use it.
        stub = ModuleType("einops")
        stub.rearrange = None  # type: ignore[attr-defined]
        sys.modules["einops"] = stub
    return _load_file("peer_fast_dllm", folder / "generate.py")


def _fast_sampler(generate: Callable[..., tuple[Tensor, int]]) -> Sampler:
    def sample(model: Any, task: SamplingTask) -> Tensor:
        ids, _ = generate(model, task.prompts, **_generate_options(task), threshold=task.threshold)
        return ids

    return sample


def _dllm(root: Path) -> Peer:
    top = root / "dllm" / "dllm"
    if not top.is_dir():
        raise FileNotFoundError(f"no folder {top}")
    # Import the packages without their __init__, which would import the trainers and their dependencies.
    for name in ("", ".core", ".pipelines", ".pipelines.fastdllm", ".pipelines.fastdllm.llada"):
        package = ModuleType(f"dllm{name}")
        package.__path__ = [str(top.joinpath(*name.split(".")))]
        sys.modules[package.__name__] = package
    plain = importlib.import_module("dllm.core.samplers.mdlm")
    fast = importlib.import_module("dllm.pipelines.fastdllm.llada.sampler")

    def sample(model: Any, task: SamplingTask) -> Tensor:
        token_ids = SimpleNamespace(mask_token_id=task.mask_id, bos_token_id=0, eos_token_id=1)
        common = {
            "max_new_tokens": task.length,
            "steps": task.length,
            "block_size": task.block,
            "temperature": task.temperature,
        }
        if task.threshold is None:
            sampler, config = plain.MDLMSampler(model, token_ids), plain.MDLMSamplerConfig(**common)
        else:
            sampler = fast.FastdLLMLLaDASampler(model, token_ids)
            config = fast.FastdLLMLLaDASamplerConfig(**common, threshold=task.threshold)
        return sampler.sample(list(task.prompts), config)

    return Peer(sample)
