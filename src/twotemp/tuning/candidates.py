"""Expand policy specs into candidates: each policy with every combination of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from twotemp.errors import UserError, unknown
from twotemp.policies import PRESETS, policy
from twotemp.records import PARAMETERS, Policy, Rule

# Plain and tempered, by the scale of each rule's noise: Gumbel on logarithms, Logistic on probabilities.
_T_POS: dict[Rule, tuple[float, ...]] = {
    "budget": (0.0, 0.5, 1.0),
    "entropy_bound": (0.0, 0.5, 1.0),
    "threshold": (0.0, 0.1, 0.3),
    "stable": (0.0, 0.1, 0.3),
}
_T_TOKEN = (0.6, 0.8, 1.0, 1.2)
_THRESHOLD = (0.5, 0.7, 0.9)
_K = (1, 2)


def expand(specs: Sequence[str]) -> tuple[Policy, ...]:
    """Return all candidates of some specs, without two that decode alike.

    A parameter that a spec names takes the values given (`tct:t_pos=0.1,threshold=0.6|0.8`), the others take the
    default values of this module: `tct` varies T_token, T_pos and lambda.
    """
    candidates: dict[Policy, Policy] = {}
    for spec in specs:
        for candidate in _expand(spec):
            candidates.setdefault(replace(candidate, name=""), candidate)
    return tuple(candidates.values())


def _expand(spec: str) -> list[Policy]:
    name, _, rest = spec.partition(":")
    name = name.strip()
    if name not in PRESETS:
        raise unknown("policy", name, PRESETS)
    axes: dict[str, Sequence[Any]] = _axes(name)
    for part in filter(None, rest.split(",")):
        key, equals, values = part.partition("=")
        key = key.strip()
        if not equals:
            raise UserError(
                f"policy {spec!r}: write parameters as name=value or name=value|value, not {part!r}"
            )
        # `policy` reports an unknown name and suggests the nearest one.
        parameter = PARAMETERS.get(key)
        axes[key] = [parameter.read(key, v.strip()) if parameter else v for v in values.split("|")]
    return [policy(name, **dict(zip(axes, numbers))) for numbers in product(*axes.values())]


def _axes(name: str) -> dict[str, Sequence[Any]]:
    """Return the default values of each parameter of a preset."""
    preset = PRESETS[name]
    rule = preset.policy.rule
    axes: dict[str, Sequence[Any]] = {"t_token": _T_TOKEN}
    if "t_pos" in preset.parameters:
        axes["t_pos"] = _T_POS[rule]
    if "threshold" in preset.parameters:
        axes["threshold"] = _THRESHOLD
    if "k" in preset.parameters and rule == "budget":
        axes["k"] = _K
    return axes
