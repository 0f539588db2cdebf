"""run.json: a run continues only with the settings it was started with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.rl_toys import go
from twotemp.errors import UserError
from twotemp.folders import read_run
from twotemp.policies import policy
from twotemp.rl import results
from twotemp.rl.settings import GrpoSettings


def test_other_settings_need_another_folder(tmp_path):
    go(tmp_path, "1step")
    with pytest.raises(
        UserError, match=r"settings\.epsilon: 0\.5, now 0\.3; settings\.policy\.t_pos: 0\.1, now 0\.2"
    ):
        go(tmp_path, "2steps", epsilon=0.3, policy=policy("tct", threshold=0.3, t_token=1.0, t_pos=0.2))
    with pytest.raises(UserError, match=r"\(held_out: '10 questions \w+', now '9 questions \w+'\)"):
        go(tmp_path, "2steps", questions=9)
    assert len(results.read_steps(tmp_path)) == 1


def test_settings_that_do_not_change_the_result_may_differ_and_adjustments_are_recorded(tmp_path):
    go(tmp_path, "1step")
    go(tmp_path, "2steps", batch_size=3, micro_batch=5, save_every=7)
    assert "changes" not in read_run(tmp_path)
    go(tmp_path, "3steps", learning_rate=1e-4)
    go(tmp_path, "4steps", learning_rate=1e-4)
    assert read_run(tmp_path)["changes"] == [{"after step": 2, "settings.learning_rate": 1e-4}]
    assert go(tmp_path, "5steps").step == 5
    assert read_run(tmp_path)["changes"][1:] == [{"after step": 4, "settings.learning_rate": 2e-3}]


def test_a_run_with_the_former_name_of_a_setting_is_read_and_continued(tmp_path):
    go(tmp_path, "1step")
    described = read_run(tmp_path)
    described["settings"]["learn_rate"] = described["settings"].pop("policy_learning_rate")
    (tmp_path / "run.json").write_text(json.dumps(described))
    assert GrpoSettings.from_dict(described["settings"]).policy_learning_rate == 0.02
    assert go(tmp_path, "2steps").step == 2


def test_the_error_names_a_description_that_cannot_be_read(tmp_path):
    go(tmp_path, "1step")
    (tmp_path / "run.json").write_text('{"twotemp')
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        go(tmp_path, "2steps")


def test_the_description_is_written_only_when_it_changes_and_atomically(tmp_path, monkeypatch):
    go(tmp_path, "1step")
    written = (tmp_path / "run.json").stat().st_mtime_ns
    go(tmp_path, "2steps")
    assert (tmp_path / "run.json").stat().st_mtime_ns == written
    text = (tmp_path / "run.json").read_text()

    def power_cut(*_):
        raise SystemExit("killed")

    monkeypatch.setattr(Path, "replace", power_cut)
    with pytest.raises(SystemExit):
        go(tmp_path, "3steps", learning_rate=1e-4)
    assert (tmp_path / "run.json").read_text() == text


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "afile").write_text("")
    with pytest.raises(UserError, match=r"a file is where a folder is needed"):
        go(tmp_path / "afile", "1step")


def test_bad_training_data_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="leave the data path out"):
        go(tmp_path / "run", "1step", data=tmp_path / "train.jsonl")
    assert not (tmp_path / "run").exists()
