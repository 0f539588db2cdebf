"""What an evaluation refuses, and that it does so before it makes a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import benchmark_rows
from twotemp.errors import UserError
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.graders import sandbox
from twotemp.policies import parse

PLAN = Plan((TaskChoice("toy"), TaskChoice("toy-b")), (parse("ar"), parse("tlc")), n=3, questions=4)

pytestmark = pytest.mark.usefixtures("toy_tasks")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n must be an integer >= 1"),
        ({"questions": 0}, "questions must be"),
        ({"seed": "abc"}, "seed must be an integer, not 'abc'"),
        ({"seed": 2**63}, "seed must be at most 9223372036854775807"),
        ({"tasks": ()}, "no task given"),
        ({"policies": ()}, "no policy given"),
        ({"tasks": (TaskChoice("toy"), TaskChoice("toy"))}, "task toy is given twice"),
        ({"policies": (parse("tlc"), parse("tlc:t_pos=1"))}, "policy tlc is given twice"),
    ],
)
def test_a_plan_is_checked_when_it_is_made(change, message):
    with pytest.raises(UserError, match=message):
        replace(PLAN, **change)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (TaskChoice("toi"), "unknown task 'toi'; did you mean 'toy'"),
        (TaskChoice("toy", grader="tou"), "unknown grader 'tou'; did you mean 'toy'"),
        (TaskChoice("gsm8k", data=Path("nowhere.jsonl")), "no data file nowhere.jsonl"),
        (TaskChoice("countdown-3", subset="tests"), "unknown subset of countdown-3 'tests'"),
    ],
)
def test_errors_are_found_before_a_folder_is_created(tmp_path, choice, message):
    with pytest.raises(UserError, match=message):
        Evaluation(replace(PLAN, tasks=(choice,)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_altered_data_file_is_refused_unless_allowed(tmp_path):
    file = benchmark_rows.write(tmp_path / "altered.jsonl", benchmark_rows.MADE_UP["gsm8k"](3))
    with pytest.raises(UserError, match="--allow-altered-data"):
        Evaluation(replace(PLAN, tasks=(TaskChoice("gsm8k", data=file),)), tmp_path / "run")
    allowed = TaskChoice("gsm8k", data=file, allow_altered=True)
    Evaluation(replace(PLAN, tasks=(allowed,)), tmp_path / "run").close()


def test_without_a_sandbox_programs_are_refused_before_anything_is_drawn(tmp_path, monkeypatch):
    from twotemp.graders import programs

    def none(*wanted: object) -> str:
        raise UserError("no way to confine programs works here: install bubblewrap")

    monkeypatch.setattr(sandbox, "working_confinement", none)
    monkeypatch.setattr(programs, "working_confinement", none)
    with pytest.raises(UserError, match="install bubblewrap"):
        Evaluation(replace(PLAN, tasks=(TaskChoice("programs-1"),)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_shard_without_a_question_is_refused(tmp_path):
    with pytest.raises(UserError, match="shard 9/9 of these tasks has no question"):
        Evaluation(replace(PLAN, questions=2), tmp_path / "run", shard=(9, 9))
    assert not (tmp_path / "run").exists()


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="holds something other than a run"):
        Evaluation(PLAN, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
