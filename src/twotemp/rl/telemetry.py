"""The record of every step, one JSON object per line: learning, diversity, speed, and the model's confidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twotemp.folders import Log, read_log
from twotemp.rl.objective import group_std
from twotemp.rl.rollouts import Rollouts

FILE = "steps.jsonl"


@dataclass(frozen=True)
class StepRecord:
    """Means over the global batch of one step.

    Confidence and `tokens_per_forward` that rise while `distinct` falls are the collapse that users report of
    thresholded rollouts: the model grows sure of everything, writes it all at once, and groups become copies.
    """

    step: int  # from 1
    reward: float
    reward_std: float  # within a group, mean over groups
    zero_std: float  # share of groups whose rewards are all equal: nothing to learn from them
    distinct: float  # different answers in a group (texts, where no answer was found)
    ungraded: int
    nfe: float  # of a sample
    tokens_per_forward: float
    confidence: float  # of tokens when they were committed
    entropy: float  # of the predictions there and then, nats
    threshold: float  # lambda of the policy; moves only if it is controlled
    loss: float
    kl: float | None  # to the untrained model; None where it is not part of the loss (beta = 0)
    clipped: float
    grad_norm: float
    seconds_drawing: float
    seconds_grading: float
    seconds_updating: float
    total_seconds: float
    total_nfe: int


COLUMNS = (
    "reward graded std zero_std distinct nfe forwards tokens committed confidence entropy "
    "seconds_drawing seconds_grading"
).split()


def group_numbers(rollouts: Rollouts) -> Tensor:
    """Return sums over each group's samples [groups, columns], which the workers exchange."""
    size = rollouts.size
    std = group_std(rollouts.rewards)
    rows = []
    for group in range(len(rollouts.problems)):
        part = slice(group * size, (group + 1) * size)
        samples, rewards = rollouts.samples[part], rollouts.rewards[group]
        answers = {g.answer or s.text for g, s in zip(rollouts.grades[part], samples)}
        traces = [s.trace for s in samples if s.trace is not None]
        tokens = (token for t in traces for token in zip(t.steps, t.confidence, t.entropy))
        written = [token for token in tokens if token[0] >= 0]
        rows.append(
            [
                float(rewards.nansum()),
                float((~rewards.isnan()).sum()),
                float(std[group]),
                float(std[group] == 0),
                len(answers),
                sum(s.nfe for s in samples),
                sum(s.forwards for s in samples),
                sum(len(s.tokens) for s in samples),
                len(written),
                sum(confidence for _, confidence, _ in written),
                sum(entropy for _, _, entropy in written),
                rollouts.seconds_drawing / len(rollouts.problems),
                rollouts.seconds_grading / len(rollouts.problems),
            ]
        )
    return torch.tensor(rows, dtype=torch.float64).view(-1, len(COLUMNS))


def summarise(numbers: Tensor, size: int, workers: int) -> dict[str, Any]:
    """Return the rollouts' part of a `StepRecord`.

    Args:
        numbers: `group_numbers` of all groups.
        size: samples in a group.
        workers: over which times are averaged.
    """
    total = dict(zip(COLUMNS, numbers.sum(0).tolist()))
    groups = len(numbers)
    return {
        "reward": total["reward"] / max(1, total["graded"]),
        "reward_std": total["std"] / groups,
        "zero_std": total["zero_std"] / groups,
        "distinct": total["distinct"] / groups,
        "ungraded": int(groups * size - total["graded"]),
        "nfe": total["nfe"] / (groups * size),
        "tokens_per_forward": total["tokens"] / total["forwards"],
        "confidence": total["confidence"] / max(1, total["committed"]),
        "entropy": total["entropy"] / max(1, total["committed"]),
        "seconds_drawing": total["seconds_drawing"] / workers,
        "seconds_grading": total["seconds_grading"] / workers,
    }


def open_log(folder: Path, done: int) -> Log:
    """Open the log of a run that is continued after step `done`."""
    return Log(folder / FILE, keep=lambda row: row["step"] <= done)


def read(folder: Path) -> list[StepRecord]:
    """Return the records of a run; a torn last line is left out."""
    return [StepRecord(**row) for row in read_log(folder / FILE)]
