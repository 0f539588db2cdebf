"""Fixtures shared by all tests; one thread for torch, here and in every process a test starts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch is imported. The models here are tiny: more threads would mostly wait for each other, and sum in
# another order.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from tests.helpers import forked

# A shell that starts the tests in the background has them ignore Ctrl-C, which some send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

BESIDE = Path(__file__).resolve().parents[2] / "shared"  # never committed
# What a test may need from there, and where to get it.
FILES = {
    "data/gsm8k_test.jsonl": "github.com/openai/grade-school-math, grade_school_math/data/test.jsonl",
    "data/gsm8k_train.jsonl.gz": "github.com/openai/grade-school-math, grade_school_math/data/train.jsonl, gzipped",
    "data/math500.jsonl": "huggingface.co/datasets/HuggingFaceH4/MATH-500, test.jsonl",
    "data/humaneval.jsonl": "github.com/openai/human-eval, data/HumanEval.jsonl.gz, unpacked",
    "data/mbpp.jsonl": "github.com/google-research/google-research, mbpp/mbpp.jsonl, task_id 11 to 510",
    "data/llada_generations": "not published: a person's verdicts on LLaDA's answers in github.com/dllm-reasoning/d1",
    "fixtures": "not published: larger models of the kind in tests/fixtures, which check the same",
}


Beside = Callable[[str], Path]


@pytest.fixture(scope="session")
def beside() -> Beside:
    """The path of a file that lies beside the repository, in `shared`; without it the test skips and says why."""

    def find(name: str) -> Path:
        if not (BESIDE / name).exists():
            pytest.skip(f"needs ../shared/{name}: {FILES[name]}")
        return BESIDE / name

    return find


@pytest.fixture
def toy_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`toy` and `toy-b` are known as tasks, and `toy` as a grader."""
    from tests.helpers import toy_task

    toy_task.install(monkeypatch)


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the micro model, which is random."""
    from tests.helpers import toy_task
    from twotemp.models.checkpoint import save

    return save(toy_task.micro_model(), tmp_path_factory.mktemp("model") / "micro")


@pytest.fixture(scope="session")
def _fork_server() -> Iterator[None]:
    yield
    forked.stop()


@pytest.fixture
def forked_processes(_fork_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python processes that the test starts have torch and twotemp imported already; see tests/helpers/forked.py."""
    monkeypatch.setattr(subprocess, "Popen", forked.Forked)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. Not for the whole session: while it is open, no test can run an event loop of its own."""
    where = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if where is None:
        pytest.skip("no Chromium installed (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    flags = (
        "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
        "--disable-sync --no-first-run"
    )
    with api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=where, args=flags.split())
        yield opened
        opened.close()
