"""What the plug-in overrides and hooks exists in the sources of SGLang releases; none of it is run or imported.

`pip install --no-deps --target FOLDER/VERSION sglang==VERSION` for each release, then TWOTEMP_SGLANG_SOURCES=FOLDER.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from twotemp_sglang.server import TwoTempAlgorithm

FOLDER = os.environ.get("TWOTEMP_SGLANG_SOURCES")
RELEASES = sorted(path.parent.parent for path in Path(FOLDER).glob("*/sglang/srt")) if FOLDER else []


def parameters(path: Path, owner: str) -> dict[str, list[str]]:
    """Return the names of the parameters of each method of a class."""
    (found,) = (
        n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef) and n.name == owner
    )
    return {n.name: [a.arg for a in n.args.args] for n in found.body if isinstance(n, ast.FunctionDef)}


@pytest.mark.skipif(not RELEASES, reason="needs the sources of SGLang releases in TWOTEMP_SGLANG_SOURCES")
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_release_has_what_the_plug_in_uses(release):
    source = release / "sglang" / "srt"
    theirs = parameters(source / "dllm" / "algorithm" / "base.py", "DllmAlgorithm")
    for name in ("configure_server_args", "validate_request", "init_step_state", "step"):
        code = getattr(TwoTempAlgorithm, name).__code__
        assert theirs[name] == list(code.co_varnames[: code.co_argcount]), name
    assert "algo_name_to_cls" in (source / "dllm" / "algorithm" / "__init__.py").read_text()
    assert "register" in parameters(source / "plugins" / "hook_registry.py", "HookRegistry")
    assert "init_new" in parameters(source / "model_executor" / "forward_batch_info.py", "ForwardBatch")
    scheduled = (source / "managers" / "schedule_batch.py").read_text()
    for name in ("class FINISH_ABORT", "self.to_finish", "self.customized_info"):
        assert name in scheduled, name
