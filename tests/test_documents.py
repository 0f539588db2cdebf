"""README and CONTRIBUTING, run as they stand: from an installed wheel, in an empty folder, without the checkout."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 25 * 1024 * 1024


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the installed wheel, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        weights = [i.file_size for i in archive.infolist() if i.filename.endswith(".safetensors")]
        assert "twotemp/py.typed" in archive.namelist()
    assert weights
    assert sum(weights) <= LIMIT
    site = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel]
    subprocess.run(install, check=True, capture_output=True)
    return site


def run(installed: Path, folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_is_the_one_under_test(installed, tmp_path):
    code = "import twotemp, pathlib; print(pathlib.Path(twotemp.__file__).parents[1])"
    assert run(installed, tmp_path, "-c", code).strip() == str(installed)


def test_the_readme_example_prints_what_it_says(installed, tmp_path):
    (example,) = blocks("README.md", "python")
    said = [line.partition("#")[2].strip() for line in example.splitlines() if line.startswith("print")]
    printed = run(installed, tmp_path, "-c", example).splitlines()
    assert printed == [text.partition(":")[0] for text in said]


@pytest.mark.parametrize("recipe", ["policy", "task", "model"])
def test_the_recipes_of_contributing_run(installed, tmp_path, recipe):
    python, shell = blocks("CONTRIBUTING.md", "python"), blocks("CONTRIBUTING.md", "shell")
    (code,) = (
        block
        for block in python
        if {"policy": "add_policy", "task": "add_task", "model": "wrap"}[recipe] in block
    )
    (tmp_path / f"{recipe}.py").write_text(code)
    if recipe == "model":
        run(installed, tmp_path, "model.py")
        return
    (line,) = (block for block in shell if f"--plugin {recipe}.py" in block)
    words = shlex.split(line)
    assert words[0] == "twotemp"
    run(installed, tmp_path, "-c", "from twotemp.cli import main; main()", *words[1:])


def test_the_readme_names_only_commands_that_exist():
    from twotemp.cli import app

    known = {command.name for command in app.registered_commands}
    named = set(re.findall(r"^    twotemp ([a-z-]+)", (ROOT / "README.md").read_text(), flags=re.M))
    assert named
    assert named <= known
