"""Outcome reward models: how good is this answer to this question? A sequence classifier, or a denoiser."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from twotemp.errors import UserError
from twotemp.rewards.base import RewardModel
from twotemp.rewards.scoring import Watch, likelihoods, scores
from twotemp.store import Config

if TYPE_CHECKING:
    from twotemp.rewards.likelihood import Likelihood

__all__ = [
    "LIKELIHOOD",
    "PLL",
    "VERIFIER",
    "RewardModel",
    "Watch",
    "itself",
    "likelihoods",
    "load",
    "scores",
]

VERIFIER = "verifier"  # the embedded one: a denoiser that was trained to judge; `verifier:FOLDER` is your own
LIKELIHOOD, PLL = "likelihood:", "pll:"  # pll:tiny is the pseudo-log-likelihood of the denoiser `tiny`


def load(
    source: str = VERIFIER,
    *,
    system: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int = 32,
) -> RewardModel:
    """A reward model: "verifier" (embedded, for the embedded tasks; "verifier:FOLDER" is one that you trained), a
    checkpoint folder or hub id of a sequence classifier, or a denoiser, which judges answers by how likely it finds
    them: "likelihood:" or "pll:" and its name.

    system: text before the question, if a classifier was trained with one (AceMath's is known).
    """
    kind, colon, name = source.partition(":")
    own = kind == VERIFIER
    if not own and not source.startswith((LIKELIHOOD, PLL)):
        from twotemp.rewards.classifier import SequenceClassifier

        return SequenceClassifier(source, system=system, device=device, dtype=dtype, batch_size=batch_size)
    from twotemp.models.load import load as load_denoiser
    from twotemp.models.load import locate
    from twotemp.rewards.likelihood import Likelihood, all_and_thirds, each_alone, likelihood_and_checks

    if system is not None:
        raise UserError("a denoiser reads the problem as it was asked; leave the system text out")
    folder = name if colon else locate(VERIFIER, embedded=(VERIFIER,))
    denoiser = load_denoiser(folder, device=device, dtype=dtype)
    views = (
        likelihood_and_checks(denoiser) if own else each_alone if source.startswith(PLL) else all_and_thirds
    )
    return Likelihood(denoiser, views, source, batch_size, embedded_tasks_only=own)


def itself(*, device: str | None = None, batch_size: int = 32) -> Callable[[Config], "Likelihood"]:
    """Who judges a cell by its configuration: the model that drew its samples (pseudo-log-likelihood)."""
    from twotemp.models.load import load as load_denoiser
    from twotemp.rewards.likelihood import Likelihood, each_alone

    loaded = cache(lambda name: load_denoiser(name, device=device))

    def judge(config: Config) -> Likelihood:
        model = loaded(config.model)
        if model.fingerprint != config.fingerprint:
            raise UserError(
                f"{config.model} is no longer what drew these samples: its fingerprint is {model.fingerprint[:8]}, "
                f"theirs {config.fingerprint[:8]}. Put the weights back, or judge with another model: "
                f"--by orm --rm {PLL}{config.model}"
            )
        return Likelihood(model, each_alone, PLL + config.model, batch_size)

    return judge
