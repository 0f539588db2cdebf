"""The plug-in inside the real SGLang on the CPU, in an environment created by `cpu/set_up.sh`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SET_UP = Path(__file__).parents[1] / "cpu" / "set_up.sh"
ENVIRONMENT = Path(os.environ.get("TWOTEMP_SGLANG", ""))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", ["engine", "server"])
def test_sglang_draws_the_same_samples_as_twotemp(part):
    if not (ENVIRONMENT / "ready").exists():
        pytest.skip(f"needs SGLang: create an environment with {SET_UP} FOLDER and set TWOTEMP_SGLANG=FOLDER")
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run([SET_UP, ENVIRONMENT, part], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert done.stdout.count("equal") == {"engine": 5, "server": 1}[part]
