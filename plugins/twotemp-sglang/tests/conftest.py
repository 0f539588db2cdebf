"""Fixtures of the plug-in's tests, which also use helpers of the main suite (`tests`) and run with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# Set before torch is imported, because the number of threads changes the order of sums.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

import fake_sglang
from tests.helpers.tiny_checkpoints import random_model, word_tokenizer
from twotemp.models.base import LanguageModel
from twotemp.models.checkpoint import save
from twotemp.models.load import load


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Path]:
    """Return a random SDAR and its folder."""
    folder = save(random_model("sdar", word_tokenizer()), tmp_path_factory.mktemp("sdar") / "model")
    return load(folder), folder


@pytest.fixture
def algorithm(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """Return the plug-in's algorithm, registered with the fake SGLang."""
    return fake_sglang.install(monkeypatch)
