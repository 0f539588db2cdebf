"""The code of README and CONTRIBUTING runs from an installed wheel, in an empty folder, without the checkout."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.documents import RECIPES, ROOT, blocks, code_of, commands_of
from twotemp import __version__

LIMIT = 25 * 1024 * 1024


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return a folder with the installed wheel and nothing of the checkout."""
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


# Imports torch and the installed package once; a fork runs each command.
SERVER = """
import json, os, sys, tempfile, traceback, types
import twotemp.cli, twotemp.engine, twotemp.models.load

def become(folder, script, *arguments):
    os.chdir(folder)
    code, *arguments = arguments if script == "-c" else (open(script).read(), *arguments)
    sys.argv = [script, *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(code, script, "exec"), vars(main))

for line in sys.stdin:
    files = [tempfile.TemporaryFile() for _ in range(2)]
    if (child := os.fork()) == 0:
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        status = 1
        try:
            become(*json.loads(line))
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
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
    """Yield a function that runs `python *command` in a folder with the installed package and returns its output."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=tmp_path_factory.mktemp("empty"),
        env={**os.environ, "PYTHONPATH": str(installed)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run_python(folder: Path, *command: str) -> str:
        server.stdin.write(json.dumps([str(folder), *command]) + "\n")
        server.stdin.flush()
        status, output, errors = json.loads(server.stdout.readline())
        assert status == 0, errors
        return output

    yield run_python
    server.communicate()


def test_the_installed_package_is_the_one_under_test(installed, run, tmp_path):
    code = "import twotemp, pathlib; print(pathlib.Path(twotemp.__file__).parents[1])"
    assert run(tmp_path, "-c", code).strip() == str(installed)


def test_the_readme_example_prints_its_comments(run, tmp_path):
    """If the weights have changed, run the example and update its comments."""
    (example,) = blocks("README.md", "python")
    comments = [line.partition("#")[2].strip() for line in example.splitlines() if line.startswith("print")]
    printed = run(tmp_path, "-c", example).splitlines()
    assert printed == [text.partition(":")[0] for text in comments]


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
