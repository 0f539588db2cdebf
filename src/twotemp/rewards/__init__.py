"""Outcome reward models: how good is this answer to this question? A sequence classifier, or a denoiser."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from twotemp.errors import UserError
from twotemp.rewards.base import RewardModel
from twotemp.rewards.scoring import OnScores, likelihoods, scores
from twotemp.store import Config

if TYPE_CHECKING:
    from twotemp.rewards.denoiser import DenoiserReward

__all__ = [
    "LIKELIHOOD",
    "PLL",
    "VERIFIER",
    "OnScores",
    "RewardModel",
    "likelihoods",
    "load",
    "sampling_model",
    "scores",
]

VERIFIER = "verifier"  # the embedded one: a denoiser that was trained to score; `verifier:FOLDER` is your own
LIKELIHOOD, PLL = "likelihood:", "pll:"  # pll:tiny is the pseudo-log-likelihood of the denoiser `tiny`


def load(
    source: str = VERIFIER,
    *,
    system: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int = 32,
) -> RewardModel:
    """Load a reward model.

    Args:
        source: "verifier" (embedded, for the embedded tasks), "verifier:FOLDER" (one that you trained), a checkpoint
            folder or hub id of a sequence classifier, or a denoiser that scores answers by their likelihood:
            "likelihood:" or "pll:" and its name.
        system: text before the question, if a classifier was trained with one (AceMath's is known).
        device: where the model runs; None: CUDA if there is any.
        dtype: of the weights; None: the device's default.
        batch_size: rows in a forward pass.

    Returns:
        The reward model. A classifier's weights are read when it scores its first answer.
    """
    kind, colon, name = source.partition(":")
    verifier = kind == VERIFIER
    if not verifier and not source.startswith((LIKELIHOOD, PLL)):
        from twotemp.rewards.classifier import SequenceClassifier

        return SequenceClassifier(source, system=system, device=device, dtype=dtype, batch_size=batch_size)
    from twotemp.models.load import load as load_denoiser
    from twotemp.models.load import locate
    from twotemp.rewards.denoiser import DenoiserReward, pseudo, scaled_thirds

    if system is not None:
        raise UserError("a denoiser reads the problem as it was asked; leave the system text out")
    folder = name if colon else locate(VERIFIER, embedded=(VERIFIER,))
    denoiser = load_denoiser(folder, device=device, dtype=dtype)
    build = pseudo if source.startswith(PLL) else scaled_thirds
    return DenoiserReward(denoiser, build, source, batch_size, checks=verifier)


def sampling_model(
    *, device: str | None = None, batch_size: int = 32
) -> "Callable[[Config], DenoiserReward]":
    """Return a function from a cell's configuration to the model that drew it, as a reward model (PLL)."""
    from twotemp.models.load import load as load_denoiser
    from twotemp.rewards.denoiser import DenoiserReward, pseudo

    load_once = cache(lambda name: load_denoiser(name, device=device))

    def reward_model(config: Config) -> DenoiserReward:
        model = load_once(config.model)
        if model.fingerprint != config.fingerprint:
            raise UserError(
                f"{config.model} is no longer what drew these samples: its fingerprint is {model.fingerprint[:8]}, "
                f"theirs {config.fingerprint[:8]}. Put the weights back, or score with another model: "
                f"--by orm --rm {PLL}{config.model}"
            )
        return DenoiserReward(model, pseudo, PLL + config.model, batch_size)

    return reward_model
