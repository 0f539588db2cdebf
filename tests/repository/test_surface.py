"""The public interface: its names, their documentation with examples that run, and types."""

from __future__ import annotations

import doctest
import subprocess
import sys
from importlib.resources import files

import pytest

import twotemp

NAMES = "load wrap sample stream infill score policy".split()
NAMES += "Policy Sample Samples StepView StreamEvent Likelihood LanguageModel Denoiser UserError".split()


def test_the_public_names_are_exactly_these():
    assert sorted(twotemp.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(twotemp))
    for name in NAMES:
        assert getattr(twotemp, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'samples_'"):
        twotemp.samples_  # noqa: B018


def test_the_package_is_typed():
    assert (files("twotemp") / "py.typed").is_file()


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
