"""Replay: the states a sample went through, rebuilt from its trace without the model."""

from __future__ import annotations

from collections.abc import Iterator

from twotemp.errors import UserError
from twotemp.records import Sample


def states(sample: Sample, mask_id: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield for every step the row of token ids before it, and the positions it wrote.

    A step of an editing policy may write nothing; steps after the last write are in no trace.
    """
    if sample.trace is None:
        raise UserError(
            f"sample {sample.index} of request {sample.request!r} has no trace; sample with trace=True"
        )
    row = list(sample.prompt) + [mask_id] * (max(sample.positions) + 1 - len(sample.prompt))
    by_step: dict[int, dict[int, int]] = {}
    final = zip(sample.trace.steps, sample.positions, sample.tokens)
    lost = ((step, sample.positions[n], token) for step, n, token in sample.trace.edits)
    for step, at, token in (*final, *lost):
        by_step.setdefault(step, {})[at] = token
    for step in range(max(by_step) + 1):
        written = by_step.get(step, {})
        yield list(row), sorted(written)
        for at, token in written.items():
            row[at] = token
