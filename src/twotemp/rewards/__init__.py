"""Outcome reward models: how good is this answer to this question? A sequence classifier, or a denoiser."""

from twotemp.errors import UserError
from twotemp.rewards.base import RewardModel
from twotemp.rewards.scoring import scores

__all__ = ["LIKELIHOOD", "PLL", "VERIFIER", "RewardModel", "load", "scores"]

VERIFIER = "verifier"  # the embedded one: the likelihood by a denoiser that was trained for it
LIKELIHOOD, PLL = "likelihood:", "pll:"  # pll:tiny is the pseudo-log-likelihood of the denoiser `tiny`


def load(
    source: str = VERIFIER,
    *,
    system: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int = 32,
) -> RewardModel:
    """A reward model: "verifier" (embedded, for the embedded tasks), a checkpoint folder or hub id of a sequence
    classifier, or a denoiser, which judges answers by how likely it finds them: "likelihood:" or "pll:" and its name.

    system: text before the question, if a classifier was trained with one (AceMath's is known).
    """
    if source != VERIFIER and not source.startswith((LIKELIHOOD, PLL)):
        from twotemp.rewards.classifier import SequenceClassifier

        return SequenceClassifier(source, system=system, device=device, dtype=dtype, batch_size=batch_size)
    from twotemp.models.load import load as load_denoiser
    from twotemp.models.load import locate
    from twotemp.rewards.likelihood import LOG_ODDS, Likelihood, all_and_thirds, each_alone

    if system is not None:
        raise UserError("a denoiser reads the problem as it was asked; leave the system text out")
    own = source == VERIFIER
    folder = locate(VERIFIER, embedded=(VERIFIER,)) if own else source.partition(":")[2]
    views, scale = (each_alone, 1.0) if source.startswith(PLL) else (all_and_thirds, LOG_ODDS)
    denoiser = load_denoiser(folder, device=device, dtype=dtype)
    return Likelihood(denoiser, views, source, batch_size, scale=scale, embedded_tasks_only=own)
