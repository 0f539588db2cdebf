"""The public interface: its names, their documentation with examples that run, and types."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import twotemp

NAMES = "load wrap sample stream infill score policy generate".split()
NAMES += (
    "Policy Portfolio Sample Samples StepView StreamEvent Likelihood LanguageModel Denoiser UserError".split()
)


def test_the_public_names_are_exactly_these():
    assert sorted(twotemp.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(twotemp))
    for name in NAMES:
        assert getattr(twotemp, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'samples_'"):
        twotemp.samples_  # noqa: B018


def test_the_package_is_typed():
    assert (files("twotemp") / "py.typed").is_file()


def test_every_direct_dependency_is_pinned():
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.match(r"[\w.-]+", requirement)[0] for group in groups for requirement in group} - {"twotemp"}
    pins = "".join((root / name).read_text() for name in ("constraints.txt", "constraints-harnesses.txt"))
    assert names <= set(re.findall(r"^([\w.-]+)==", pins, flags=re.MULTILINE))


def test_importing_the_package_does_not_import_torch():
    code = "import sys, twotemp; twotemp.UserError, twotemp.Policy; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["", *NAMES])
def test_the_examples_of_docstrings_run(name):
    documented = getattr(twotemp, name) if name else twotemp
    tests = [
        t for t in doctest.DocTestFinder(recurse=False).find(documented, name or "twotemp") if t.examples
    ]
    if name in ("", "load", "wrap", "sample", "stream", "infill", "score", "policy", "LanguageModel"):
        assert tests, f"{name} has no example"
    for test in tests:
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
        assert result.failed == 0
