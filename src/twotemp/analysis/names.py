"""What policies, tasks and models are called, in sentences, tables and figures alike."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from twotemp.policies import PRESETS
from twotemp.records import Policy

NAMES = {
    "ar": "Autoregressive",
    "lc": "Low confidence",
    "random": "Random",
    "tlc": "TLC",
    "ct": "Fast-dLLM (CT)",
    "tct": "TCT",
}
TASKS = {"gsm8k": "GSM8K", "math500": "MATH-500", "humaneval": "HumanEval", "mbpp": "MBPP"}
_SYMBOLS = {"t_pos": r"T_\mathrm{pos}", "t_token": r"T_\mathrm{token}", "threshold": r"\lambda", "k": "K"}


def task_name(task: str) -> str:
    return TASKS.get(task, task)


def model_name(model: str) -> str:
    """`GSAI-ML/LLaDA-8B-Instruct` -> `LLaDA-8B-Instruct`; a folder by its own name, or by its run's.

    All models that `twotemp grpo` and `twotemp train` save are called `model`: RUN/model is RUN's.
    """
    return model.rstrip("/").removesuffix("/model").rsplit("/", 1)[-1]


def dataset(model: str, task: str, models: Collection[str]) -> str:
    """The task; with the model where there are several."""
    return f"{task_name(task)}, {model_name(model)}" if len(set(models)) > 1 else task_name(task)


def parameters(policy: Policy, hide: Collection[str] = ()) -> dict[str, Any]:
    """What a name must say: T_pos of a tempered family, and whatever differs from the preset."""
    if policy.name not in PRESETS:
        return {}
    preset = PRESETS[policy.name]
    return {
        key: getattr(policy, key)
        for key in preset.settable
        if key not in hide
        and (getattr(policy, key) != getattr(preset.policy, key) or (key == "t_pos" and policy.t_pos))
    }


def label(policy: Policy, *, plain: bool = False, hide: Collection[str] = ()) -> str:
    """`TCT ($T_pos=0.1$)` for figures and LaTeX; plain: `TCT (t_pos=0.1)`, for terminals and Markdown."""
    name = NAMES.get(policy.name, policy.name)
    said = parameters(policy, hide)
    if not said:
        return name
    write = _plain if plain else _mathematical
    return f"{name} ({', '.join(write(key, value) for key, value in said.items())})"


def _plain(key: str, value: Any) -> str:
    return f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"


def _mathematical(key: str, value: Any) -> str:
    if key not in _SYMBOLS:
        return _plain(key, value).replace("_", " ")
    number = r"\infty" if math.isinf(value) else f"{value:g}"
    return f"${_SYMBOLS[key]}={number}$"


def signed(value: float, digits: int = 1) -> str:
    """`+0.5`, and `+0.0` for what rounds to zero from below."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"
