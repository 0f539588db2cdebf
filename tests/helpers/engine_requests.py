"""Build the engine's requests and compare its samples."""

from __future__ import annotations

from dataclasses import replace

from twotemp.records import Request, Sample


def requests_of(model, chosen, count=8, length=12, block=4, **more) -> list[Request]:
    """Return requests with prompts of different lengths, so that every batch is padded.

    With a policy whose samples repel each other, every request is the first sample of its question
    (tests/engine/test_groups.py tests the others).
    """
    block = None if model.block_size else block
    index = [0 if chosen.repel else i for i in range(count)]
    return [
        Request(
            f"q{i}", tuple(range(2, 5 + 3 * (i % 4))), chosen, length, block, seed=3, index=index[i], **more
        )
        for i in range(count)
    ]


def by_key(samples) -> dict[tuple[str, int], Sample]:
    """Return the samples by request id and index."""
    return {(s.request, s.index): s for s in samples}


def same(a: Sample, b: Sample) -> bool:
    """Tell whether two samples have the same tokens and steps; times and confidences are not compared."""
    strip = {"seconds": 0.0, "trace": None}
    steps = a.trace is None or b.trace is None or a.trace.steps == b.trace.steps
    return steps and replace(a, **strip) == replace(b, **strip)
