"""Anchor-fork models for the tests of `theory`."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from theory.anchor_fork import AnchorFork, constant, table

SEARCH = settings(max_examples=60, deadline=None, derandomize=True)
T_POS = st.floats(0.05, 20)
UNIT = st.floats(0, 1)


@st.composite
def models(draw: st.DrawFn, drifting: bool = True, longest: int = 4) -> AnchorFork:
    """Generate anchor-fork models that satisfy the assumption; with `drifting`, confidences depend on the state."""
    length = draw(st.integers(2, longest))
    fork, *others = draw(st.permutations(range(length)))
    anchors = others[: draw(st.integers(1, length - 1))]
    eta = {a: draw(st.floats(0.05, 1)) for a in anchors}

    def row() -> list[float]:
        c = [0.02 + 0.98 * draw(UNIT) for _ in range(length)]
        c[fork] = 0.02 + 0.88 * draw(UNIT)
        for a in anchors:
            c[a] = c[fork] + (1 - c[fork]) * (0.02 + 0.98 * draw(UNIT))
        return c

    states = range(1 << length) if drifting else [0]
    rows = {s: row() for s in states}
    path = table(rows) if drifting else constant(rows[0])
    return AnchorFork(length, fork, eta, sum(eta.values()) + draw(st.floats(0.01, 1)), path)


def model_of(confidences: list[float], fork: int, eta: dict[int, float]) -> AnchorFork:
    """Return a model with constant confidences."""
    return AnchorFork(len(confidences), fork, eta, sum(eta.values()) + 0.5, constant(confidences))
