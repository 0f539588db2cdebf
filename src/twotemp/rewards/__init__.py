"""Outcome reward models: how good is this answer to this question? Any sequence classifier with one output."""

from twotemp.rewards.base import RewardModel
from twotemp.rewards.scoring import scores

__all__ = ["RewardModel", "load", "scores"]


def load(
    source: str = "verifier",
    *,
    system: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int = 32,
) -> RewardModel:
    """A reward model: "verifier" (embedded, for the embedded tasks), a checkpoint folder, or a hub id.

    system: text before the question, if the model was trained with one (AceMath's is known).
    Weights are read when something has to be scored: what the store already has costs nothing.
    """
    from twotemp.rewards.classifier import SequenceClassifier

    return SequenceClassifier(source, system=system, device=device, dtype=dtype, batch_size=batch_size)
