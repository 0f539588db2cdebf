"""Count the modules and functions of twotemp that one request enters, and print them as JSON.

    python -m benchmarks.modules > before.json

load: `twotemp.load("tiny")`. sample: one `twotemp.sample` call on the loaded model. eval: `twotemp eval` of one
question, which loads, draws, grades and shows a table. eval_inner: the same without the command line and without what
only loading enters. http: one chat request with n = 2 and a stop string to the application of `twotemp serve`.

All threads are counted, other processes are not. A similar request is made first, so that imports do not count.
Only entry points that a redesign keeps are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import uvicorn
from starlette.testclient import TestClient

import twotemp
from twotemp.cli import main as command_line

SOURCE = str(Path(twotemp.__file__).parent) + os.sep
PROMPT = "20 10 15 -> 45"
WARM_UP, COUNTED = "tct:t_pos=0.2,threshold=0.6", "tct:t_pos=0.1,threshold=0.6"
STOP = ["20"]  # with seed 0 it ends the second sample of COUNTED but not the first
Functions = set[tuple[str, str]]  # module, qualified name


class Profiler:
    """Record the functions of twotemp called inside `counting`, in this thread and in all threads started later."""

    def __init__(self) -> None:
        self._entered: Functions | None = None
        threading.setprofile(self._record)
        sys.setprofile(self._record)

    def _record(self, frame: FrameType, event: str, _: Any) -> None:
        entered, code = self._entered, frame.f_code
        # Names such as <genexpr> and <lambda> belong to a function that is counted.
        if entered is None or event != "call" or code.co_name.startswith("<"):
            return
        if code.co_filename.startswith(SOURCE):
            module = code.co_filename.removeprefix(SOURCE).removesuffix(".py").replace(os.sep, ".")
            entered.add((module.removesuffix(".__init__"), code.co_qualname))

    @contextlib.contextmanager
    def counting(self) -> Iterator[Functions]:
        """Yield a set that receives every function called inside the context."""
        self._entered = entered = set()
        try:
            yield entered
        finally:
            self._entered = None


def run(*arguments: str) -> None:
    """Run the command line in this process, with stdout sent to stderr."""
    with patch.object(sys, "argv", ["twotemp", *arguments]), contextlib.redirect_stdout(sys.stderr):
        try:
            command_line()
        except SystemExit as stop:
            if stop.code:
                raise


def load(profiler: Profiler) -> Functions:
    """Return the functions entered by `twotemp.load`."""
    twotemp.load("tiny")
    with profiler.counting() as entered:
        twotemp.load("tiny")
    return entered


def sample(profiler: Profiler) -> Functions:
    """Return the functions entered by `twotemp.sample`."""
    model = twotemp.load("tiny")
    for policy in (WARM_UP, COUNTED):
        with profiler.counting() as entered:
            samples = twotemp.sample(model, PROMPT, policy, n=2, length=12)
            assert all(sample.text for sample in samples)
    return entered


def evaluate(profiler: Profiler) -> Functions:
    """Return the functions entered by `twotemp eval`."""
    options = "--tasks countdown-3 --questions 1 -n 2".split()
    with tempfile.TemporaryDirectory() as folder:
        for name, policy in enumerate((WARM_UP, COUNTED)):
            with profiler.counting() as entered:
                run("eval", *options, "--policies", policy, "--out", f"{folder}/{name}")
    return entered


def http(profiler: Profiler) -> Functions:
    """Return the functions entered by a chat request to the server."""
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "n": 2,
        "stop": STOP,
        "seed": 0,
        "max_tokens": 12,
    }
    counted: Functions = set()

    def serve(server: uvicorn.Server, *_: Any) -> None:
        """Send the requests where uvicorn would listen for them."""
        with TestClient(server.config.app, base_url="http://localhost") as client:
            for policy in (WARM_UP, COUNTED):
                with profiler.counting() as entered:
                    reply = client.post("/v1/chat/completions", json=body | {"policy": policy})
        texts = [choice["message"]["content"] for choice in reply.raise_for_status().json()["choices"]]
        assert [text.endswith("45") for text in texts] == [True, False], texts
        counted.update(entered)

    with patch.object(uvicorn.Server, "run", serve):
        run("serve", "--model", "tiny", "--slots", "8")
    return counted


def main() -> None:
    profiler = Profiler()
    requests = {"load": load, "sample": sample, "eval": evaluate, "http": http}
    entered = {name: request(profiler) for name, request in requests.items()}
    inner = entered["eval"] - (entered["load"] - entered["sample"])
    entered["eval_inner"] = {pair for pair in inner if pair[0].partition(".")[0] != "cli"}
    counts = {}
    for name, functions in entered.items():
        modules = Counter(module for module, _ in functions)
        counts[name] = {
            "modules": len(modules),
            "functions": len(functions),
            "entered": dict(sorted(modules.items())),
        }
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
