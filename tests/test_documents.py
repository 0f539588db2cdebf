"""README and CONTRIBUTING, run as they stand: from an installed wheel, in an empty folder, without the checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from twotemp import __version__

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
        inside = {name.split("/")[0] for name in archive.namelist()}
    assert inside == {"twotemp", f"twotemp-{__version__}.dist-info"}
    assert weights
    assert sum(weights) <= LIMIT
    site = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel]
    subprocess.run(install, check=True, capture_output=True)
    return site


# It imports torch and the installed package once, and a copy of it runs each command.
SERVER = """
import json, os, sys, tempfile, traceback, types
import twotemp.cli, twotemp.engine, twotemp.models.load

def become(folder, what, *arguments):
    os.chdir(folder)
    code, *arguments = arguments if what == "-c" else (open(what).read(), *arguments)
    sys.argv = [what, *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(code, what, "exec"), vars(main))

for line in sys.stdin:
    files = [tempfile.TemporaryFile() for _ in range(2)]
    if (child := os.fork()) == 0:
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        status = 1
        try:
            become(*json.loads(line))
            status = 0
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [(file.seek(0), file.read().decode())[1] for file in files]
    print(json.dumps([status, *texts]), flush=True)
"""


@pytest.fixture(scope="module")
def run(installed, tmp_path_factory) -> Iterator[Callable[..., str]]:
    """What `python *command` prints in a folder, of the installed package."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=tmp_path_factory.mktemp("empty"),
        env={**os.environ, "PYTHONPATH": str(installed)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(folder: Path, *command: str) -> str:
        server.stdin.write(json.dumps([str(folder), *command]) + "\n")
        server.stdin.flush()
        status, printed, said = json.loads(server.stdout.readline())
        assert status == 0, said
        return printed

    yield ask
    server.communicate()


def test_the_installed_package_is_the_one_under_test(installed, run, tmp_path):
    code = "import twotemp, pathlib; print(pathlib.Path(twotemp.__file__).parents[1])"
    assert run(tmp_path, "-c", code).strip() == str(installed)


def test_the_readme_example_prints_what_it_says(run, tmp_path):
    """If not, because the weights are others: run it, and say in its comments what it prints."""
    (example,) = blocks("README.md", "python")
    said = [line.partition("#")[2].strip() for line in example.splitlines() if line.startswith("print")]
    printed = run(tmp_path, "-c", example).splitlines()
    assert printed == [text.partition(":")[0] for text in said]


RECIPES = {
    "policy": "add_policy",
    "task": "add_task",
    "grader": "add_grader",
    "model": "wrap",
    "family": "FAMILIES",
}


def code_of(recipe: str) -> str:
    (code,) = (block for block in blocks("CONTRIBUTING.md", "python") if RECIPES[recipe] in block)
    return code


def commands_of(recipe: str) -> str | None:
    """What is run with a plug-in; the other recipes are scripts."""
    if recipe not in ("policy", "task"):
        return None
    (block,) = (block for block in blocks("CONTRIBUTING.md", "shell") if f"--plugin {recipe}.py" in block)
    return block


# For tests/test_site.py, which runs every block that nobody else does.
RUN_HERE = {*blocks("README.md", "python"), *map(code_of, RECIPES), *map(commands_of, RECIPES)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipes_of_contributing_run(run, tmp_path, recipe):
    (tmp_path / f"{recipe}.py").write_text(code_of(recipe))
    commands = commands_of(recipe)
    if commands is None:
        run(tmp_path, f"{recipe}.py")
        return
    for line in commands.splitlines():
        words = shlex.split(line)
        assert words[0] == "twotemp"
        run(tmp_path, "-c", "from twotemp.cli import main; main()", *words[1:])
