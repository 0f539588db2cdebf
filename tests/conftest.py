"""Fixtures shared by all tests. Torch runs with one thread, also in the processes that tests start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Set before torch is imported. The models are tiny: more threads would mostly wait for each other, and would sum in
# a different order.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from tests.helpers import forked

# Processes started in the background by a shell ignore Ctrl-C, but some tests send it to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that optional tests read from the folder TWOTEMP_TEST_DATA, and where to get them.
FILES = {
    "data/gsm8k_test.jsonl": "github.com/openai/grade-school-math, grade_school_math/data/test.jsonl",
    "data/gsm8k_train.jsonl.gz": "github.com/openai/grade-school-math, grade_school_math/data/train.jsonl, gzipped",
    "data/math500.jsonl": "huggingface.co/datasets/HuggingFaceH4/MATH-500, test.jsonl",
    "data/humaneval.jsonl": "github.com/openai/human-eval, data/HumanEval.jsonl.gz, unpacked",
    "data/mbpp.jsonl": "github.com/google-research/google-research, mbpp/mbpp.jsonl, task_id 11 to 510",
    "data/llada_generations": "a private folder (human verdicts on LLaDA's answers); the test is skipped without it",
    "fixtures": "a private folder (larger models of the kind in tests/fixtures); the test is skipped without it",
}

DataFile = Callable[[str], Path]


@pytest.fixture(scope="session")
def data_file() -> DataFile:
    """Return a function from a name in FILES to its path; it skips the test where the file is missing."""

    def locate(name: str) -> Path:
        folder = os.environ.get("TWOTEMP_TEST_DATA")
        if not folder or not (path := Path(folder) / name).exists():
            pytest.skip(f"needs {name} in the folder TWOTEMP_TEST_DATA: {FILES[name]}")
        return path

    return locate


@pytest.fixture
def toy_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the tasks `toy` and `toy-b` and the grader `toy` for one test."""
    from tests.helpers import toy_task

    toy_task.install(monkeypatch)


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a checkpoint of the micro model, whose weights are random."""
    from tests.helpers import toy_task
    from twotemp.models.checkpoint import save

    return save(toy_task.micro_model(), tmp_path_factory.mktemp("model") / "micro")


@pytest.fixture(scope="session")
def _fork_server() -> Iterator[None]:
    yield
    forked.stop()


@pytest.fixture
def forked_processes(_fork_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start Python processes from a server that has imported torch and twotemp; see tests/helpers/forked.py."""
    monkeypatch.setattr(subprocess, "Popen", forked.ForkedPopen)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield a headless Chromium. Its scope is the module: while it is open, no test can run its own event loop."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium installed (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    flags = (
        "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
        "--disable-sync --no-first-run"
    )
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=flags.split())
        yield chromium
        chromium.close()
