"""The built wheel holds everything: built, installed elsewhere, and sampled from there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 12 * 1024 * 1024


def test_wheel_samples_on_its_own(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        weights = [i.file_size for i in archive.infolist() if i.filename.endswith(".safetensors")]
    assert weights
    assert sum(weights) <= LIMIT
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel],
        check=True,
        capture_output=True,
    )
    code = (
        "import twotemp, pathlib; print(pathlib.Path(twotemp.__file__).parents[1]); "
        "m = twotemp.load('tiny'); "
        "s = twotemp.sample(m, '3 7 12 -> 33', twotemp.policy('tct'), n=2, length=12); "
        "print(len(s), s[0].text is not None)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    assert found[0] == str(site), "the installed package is the one under test, not the checkout"
    assert found[1] == "2 True"
