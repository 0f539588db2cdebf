"""Results of other harnesses, read without the harness: what is damaged is named."""

from __future__ import annotations

import json

import pytest

from twotemp.errors import UserError
from twotemp.integrations.imports import lm_eval


@pytest.mark.parametrize(
    ("kept", "samples"),
    [
        ({}, "{}"),
        ([], "{}"),
        ({"samples": [5], "prompts": {}}, "{}"),
        ({"samples": [{"request": "t/0/0"}], "prompts": {}}, "{not JSON"),
        (
            {"samples": [{"request": "t/0/0"}], "prompts": {}},
            '{"resps":[["a"]],"metrics":["m"],"filter":"f"}',
        ),
    ],
)
def test_results_that_are_damaged_are_named(tmp_path, kept, samples):
    (tmp_path / "results_1.json").write_text(json.dumps({"config": {"twotemp": kept}}))
    (tmp_path / "samples_t_1.jsonl").write_text(f"{samples}\n")
    with pytest.raises(UserError, match=r"results_1\.json cannot be read .*: it is damaged"):
        list(lm_eval([tmp_path], None, True))
