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
    from twotemp.engine import StepView as StepView
    from twotemp.errors import UserError as UserError
    from twotemp.integrations.transformers import generate as generate
    from twotemp.likelihood.score import Likelihood as Likelihood
    from twotemp.likelihood.score import score as score
    from twotemp.models.base import Denoiser as Denoiser
    from twotemp.models.base import LanguageModel as LanguageModel
    from twotemp.models.load import load as load
    from twotemp.models.wrap import wrap as wrap
    from twotemp.policies import Portfolio as Portfolio
    from twotemp.policies import policy as policy
    from twotemp.records import Policy as Policy
    from twotemp.records import Sample as Sample
    from twotemp.sampling.api import Samples as Samples
    from twotemp.sampling.api import StreamEvent as StreamEvent
    from twotemp.sampling.api import infill as infill
    from twotemp.sampling.api import sample as sample
    from twotemp.sampling.api import stream as stream

__version__ = "0.3.0"

_NAMES = {
    "engine": "StepView",
    "errors": "UserError",
    "integrations.transformers": "generate",
    "likelihood.score": "Likelihood score",
    "models.base": "Denoiser LanguageModel",
    "models.load": "load",
    "models.wrap": "wrap",
    "policies": "Portfolio policy",
    "records": "Policy Sample",
    "sampling.api": "Samples StreamEvent infill sample stream",
}
_MODULES = {name: f"twotemp.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import on first use: `import twotemp` and `twotemp --help` do not wait for torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'twotemp' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
