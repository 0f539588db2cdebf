"""Fixtures shared by all tests. Threads are capped so that parallel test runs do not fight over cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Benchmarks and checkpoint fixtures that lie beside the repository and are never committed."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not (path / "fixtures").is_dir():
        pytest.skip("needs the folder `shared` (fixtures, data) beside the repository")
    return path
