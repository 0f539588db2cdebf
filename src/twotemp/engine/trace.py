"""Replay: the states a sample went through, rebuilt from its trace without the model."""

from __future__ import annotations

from collections.abc import Iterator

from twotemp.errors import UserError
from twotemp.records import Sample


def states(sample: Sample, mask_id: int) -> Iterator[tuple[list[int], list[int]]]:
    """For every step: the row of token ids before it, and the positions it committed."""
    if sample.trace is None:
        raise UserError(
            f"sample {sample.index} of request {sample.request!r} has no trace; sample with trace=True"
        )
    row = list(sample.prompt) + [mask_id] * (max(sample.positions) + 1 - len(sample.prompt))
    by_step: dict[int, list[int]] = {}
    for n, step in enumerate(sample.trace.steps):
        by_step.setdefault(step, []).append(n)
    for step in sorted(s for s in by_step if s >= 0):
        yield list(row), [sample.positions[n] for n in by_step[step]]
        for n in by_step[step]:
            row[sample.positions[n]] = sample.tokens[n]
