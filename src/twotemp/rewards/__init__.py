"""Outcome reward models: how good is this answer to this question? A sequence classifier, or a denoiser.

Scores of a cell's samples are computed once and kept in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.sampling.requests import assistant_turn
from twotemp.store import Cell, Config, Key, row_key

if TYPE_CHECKING:
    from twotemp.rewards.denoiser import DenoiserReward

VERIFIER = "verifier"  # the embedded one: a denoiser that was trained to score; `verifier:FOLDER` is your own
LIKELIHOOD, PLL = "likelihood:", "pll:"  # pll:tiny is the pseudo-log-likelihood of the denoiser `tiny`
CHUNK = 1024  # samples between two writes; a kill loses at most these
OnScores = Callable[[str, int, int], None]  # called with the cell, samples scored, samples to score
T = TypeVar("T")


class RewardModel(Protocol):
    """Scores answers."""

    name: str  # with a fingerprint of its weights: scores of different weights never mix in a store

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        """Return one finite number per item, in the order given, or raise an error."""


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
        system: Text before the question, if a classifier was trained with one (AceMath's is known).
        device: Where the model runs; None: CUDA if there is any.
        dtype: Of the weights; None: the device's default.
        batch_size: Rows in a forward pass.

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
        raise UserError("a denoiser reads the problem without a system text; leave the system text out")
    folder = name if colon else locate(VERIFIER, embedded=(VERIFIER,))
    denoiser = load_denoiser(folder, device=device, dtype=dtype)
    build = pseudo if source.startswith(PLL) else scaled_thirds
    return DenoiserReward(denoiser, build, source, batch_size, checks=verifier)


def sampling_model(*, device: str | None = None, batch_size: int = 32) -> Callable[[Config], DenoiserReward]:
    """Return a function from a cell's configuration to the model that drew it, as a reward model (PLL)."""
    from twotemp.models.load import load as load_denoiser
    from twotemp.rewards.denoiser import DenoiserReward, pseudo

    load_once = cache(lambda name: load_denoiser(name, device=device))

    def reward_model(config: Config) -> DenoiserReward:
        model = load_once(config.model)
        if model.fingerprint != config.fingerprint:
            raise UserError(
                f"{config.model} has changed since it drew these samples: its fingerprint is "
                f"{model.fingerprint[:8]}, theirs {config.fingerprint[:8]}. Restore the weights, or use "
                f"another model: --by orm --rm {PLL}{config.model}"
            )
        return DenoiserReward(model, pseudo, PLL + config.model, batch_size)

    return reward_model


def scores(
    cell: Cell, problems: Mapping[str, Problem], model: RewardModel, on_scores: OnScores | None = None
) -> dict[Key, float]:
    """Return the scores of all samples of a cell; those that the store lacks are computed and stored.

    Args:
        cell: Whose samples to score, by their text.
        problems: By id.
        model: The reward model.
        on_scores: Called after every chunk.
    """

    def answers() -> Iterator[tuple[Key, tuple[Problem, str]]]:
        for row in cell.light_rows():
            if row["text"] is None:
                raise UserError(f"{cell.path} holds token ids without text, which a reward model cannot read")
            problem = problems[row["request"]]
            yield row_key(row), (problem, assistant_turn(problem, row["text"]))

    return _stored(cell, model.name, answers(), model.score, on_scores)


def likelihoods(cell: Cell, model: DenoiserReward, on_scores: OnScores | None = None) -> dict[Key, float]:
    """Return the scores by the model that drew the samples, from their token ids (see `scores`)."""
    from twotemp.rewards.denoiser import sample_row

    rows = ((sample.key, sample_row(model.model, sample)) for sample in cell.samples())
    return _stored(cell, model.name, rows, lambda part: model.score_rows(cell.config.task, part), on_scores)


def _stored(
    cell: Cell,
    name: str,
    items: Iterable[tuple[Key, T]],
    score: Callable[[Sequence[T]], list[float]],
    on_scores: OnScores | None,
) -> dict[Key, float]:
    """Return the stored scores under a name, after computing those of the items that have none."""
    known = cell.scores(name)
    missing = [(key, item) for key, item in items if key not in known]
    if not missing:
        return known
    with cell.writer() as writer:
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            values = score([item for _, item in part])
            pairs = [(key, value) for (key, _), value in zip(part, values)]
            writer.scores(name, pairs)
            known.update(pairs)
            if on_scores is not None:
                on_scores(cell.name, start + len(part), len(missing))
    return known
