"""twotemp: simple, efficient and diverse sampling from masked diffusion language models.

>>> import twotemp
>>> model = twotemp.load("tiny")
>>> policy = twotemp.policy("tct", t_token=0.8, t_pos=0.1, threshold=0.6)
>>> samples = twotemp.sample(model, ["3 7 12 -> 33", "4 9 2 -> 15"], policy, n=4, seed=0)
>>> len(samples)
8
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twotemp.engine import StepView
    from twotemp.errors import UserError
    from twotemp.integrations.transformers import generate
    from twotemp.likelihood.score import Likelihood, score
    from twotemp.models.base import Denoiser, LanguageModel
    from twotemp.models.load import load
    from twotemp.models.wrap import wrap
    from twotemp.policies import Portfolio, policy
    from twotemp.records import Policy, Sample
    from twotemp.sampling.api import Samples, StreamEvent, infill, sample, stream

__all__ = [
    "Denoiser",
    "LanguageModel",
    "Likelihood",
    "Policy",
    "Portfolio",
    "Sample",
    "Samples",
    "StepView",
    "StreamEvent",
    "UserError",
    "generate",
    "infill",
    "load",
    "policy",
    "sample",
    "score",
    "stream",
    "wrap",
]
__version__ = "0.3.0"

_HOMES = {
    "Denoiser": "twotemp.models.base",
    "LanguageModel": "twotemp.models.base",
    "Likelihood": "twotemp.likelihood.score",
    "Policy": "twotemp.records",
    "Portfolio": "twotemp.policies",
    "Sample": "twotemp.records",
    "Samples": "twotemp.sampling.api",
    "StepView": "twotemp.engine",
    "UserError": "twotemp.errors",
    "StreamEvent": "twotemp.sampling.api",
    "generate": "twotemp.integrations.transformers",
    "infill": "twotemp.sampling.api",
    "load": "twotemp.models.load",
    "policy": "twotemp.policies",
    "sample": "twotemp.sampling.api",
    "score": "twotemp.likelihood.score",
    "stream": "twotemp.sampling.api",
    "wrap": "twotemp.models.wrap",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `import twotemp` and `twotemp --help` do not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'twotemp' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
