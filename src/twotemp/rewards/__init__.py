"""Outcome reward models: how good is this answer to this question? A sequence classifier, or the denoiser itself."""

from twotemp.errors import UserError
from twotemp.rewards.base import RewardModel
from twotemp.rewards.scoring import scores

__all__ = ["RewardModel", "load", "scores"]

PLL = "pll:"  # pll:tiny is the pseudo-log-likelihood of the denoiser `tiny`


def load(
    source: str = "verifier",
    *,
    system: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int = 32,
) -> RewardModel:
    """A reward model: "verifier" (embedded, for the embedded tasks), a checkpoint folder, a hub id, or "pll:" and a
    denoiser, which then judges answers by their pseudo-log-likelihood.

    system: text before the question, if the model was trained with one (AceMath's is known).
    Weights are read when something has to be scored: what the store already has costs nothing.
    """
    if source.startswith(PLL):
        from twotemp.models.load import load as load_denoiser
        from twotemp.rewards.likelihood import PseudoLikelihood

        if system is not None:
            raise UserError("a denoiser reads the problem as it was asked; leave the system text out")
        return PseudoLikelihood(
            load_denoiser(source.removeprefix(PLL), device=device, dtype=dtype), batch_size
        )
    from twotemp.rewards.classifier import SequenceClassifier

    return SequenceClassifier(source, system=system, device=device, dtype=dtype, batch_size=batch_size)
