"""Fixtures of the tests of `twotemp.rl`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from accelerate.state import AcceleratorState, PartialState


@pytest.fixture(autouse=True)
def reset_accelerate() -> Iterator[None]:
    """Reset accelerate's settings, which it keeps in globals."""
    yield
    AcceleratorState._reset_state()
    PartialState._reset_state()
