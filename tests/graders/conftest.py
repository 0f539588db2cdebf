"""The sandbox of the graders' tests, in both confinements."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from twotemp.graders.sandbox import Sandbox, unavailable_reason


@pytest.fixture(scope="module", params=("bwrap", "landlock"))
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Yield a sandbox, which hostile programs must not see `SECRET_OF_THE_TEST` in; skip where it does not work."""
    os.environ["SECRET_OF_THE_TEST"] = "1"
    if (reason := unavailable_reason(request.param)) is not None:
        pytest.skip(f"{request.param} does not work on this machine: {reason}")
    sandbox = Sandbox(request.param)
    yield sandbox
    sandbox.close()
