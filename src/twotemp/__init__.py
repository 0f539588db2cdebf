"""twotemp: simple, efficient and diverse sampling from masked diffusion language models.

model = twotemp.load("tiny")
policy = twotemp.policy("tct", t_token=0.8, t_pos=0.1, threshold=0.6)
samples = twotemp.sample(model, prompts, policy, n=64, length=256, block=32, seed=0)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twotemp.models.load import load
    from twotemp.policies.presets import policy
    from twotemp.sampling import infill, sample

__all__ = ["infill", "load", "policy", "sample"]
__version__ = "0.1.0"

_HOMES = {
    "load": "twotemp.models.load",
    "policy": "twotemp.policies.presets",
    "sample": "twotemp.sampling",
    "infill": "twotemp.sampling",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `import twotemp` and `twotemp --help` do not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'twotemp' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
