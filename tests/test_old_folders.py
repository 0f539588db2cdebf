"""Folders that version 0.1.0 made (tests/version_0_1_0, by its own commands) are opened, continued and reported."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from twotemp.errors import UserError
from twotemp.folders import kind_of, read_run
from twotemp.forks.journal import Journal
from twotemp.policies import policy
from twotemp.records import Grade
from twotemp.store import Store

OLD = Path(__file__).parent / "version_0_1_0"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_what_they_are(old: Path):
    assert {path.name: kind_of(path) for path in old.iterdir()} == {
        k: k for k in ("evaluation", "grpo", "forks")
    }


def test_an_evaluation_goes_on(old: Path):
    """With another version and an option that 0.1.0 did not know; a new verdict comes after the old ones."""
    store = Store.create(old / "evaluation")
    assert [cell.name.partition("@")[2] for cell in store.cells()] == ["ar", "random", "tct"]
    assert store.damage() == {}
    for cell in store.cells():
        now = replace(cell.config, version="9.9", options={**cell.config.options, "compile": False})
        cell = store.cell(cell.name, now)
        samples = sorted(cell.samples(), key=lambda sample: sample.key)
        questions = sorted({sample.request for sample in samples})
        assert len(samples) == 12
        assert cell.missing(questions, 5) == [(question, 4) for question in questions]
        before = cell.grades("countdown 1")
        assert before.keys() == {sample.key for sample in samples}
        with cell.writer() as writer:
            writer.samples(replace(sample, index=4) for sample in samples[::4])
            writer.grades("countdown 1", [(samples[0].key, Grade("timeout"))])
        again = Store.open(old / "evaluation")[cell.name]
        assert again.missing(questions, 5) == []
        assert len(list(again.samples())) == 15
        assert again.grades("countdown 1") == {**before, samples[0].key: Grade("timeout")}


def test_an_evaluation_is_reported(old: Path):
    from twotemp.cli import app

    result = CliRunner().invoke(app, ["report", str(old / "evaluation"), "--out", str(old / "report")])
    assert result.exit_code == 0, result.output
    assert (old / "report" / "passk.csv").read_text().count("countdown-3") >= 3


def test_a_grpo_run_goes_on(old: Path):
    """Its run.json has a number that JSON does not have, and no kind."""
    from accelerate.state import AcceleratorState, PartialState

    from tests.rl_toys import TASK, ManyNumbers, go
    from twotemp.rl import evaluation, telemetry
    from twotemp.rl.rollouts import Dataset

    run = old / "grpo"
    # The generated tasks have other held-out problems than in 0.1.0, which would rightly be refused.
    described = json.loads((run / "run.json").read_text())
    dataset = Dataset(TASK, ManyNumbers(), held_out=TASK.problems().problems[:10])
    described["held_out"] = dataset.to_dict()["held_out"]
    (run / "run.json").write_text(json.dumps(described))
    same = {
        "policy": policy("random", t_token=1.0),
        "lora_rank": 1,
        "lora_alpha": 2,
        "beta": 0.0,
        "save_every": 100,
    }
    try:
        with pytest.raises(UserError, match=r"settings\.policy\.t_pos: 'inf', now 1\.0"):
            go(run, "5steps", **{**same, "policy": replace(policy("random", t_token=1.0), t_pos=1.0)})
        assert go(run, "5steps", **same).step == 5
    finally:
        AcceleratorState._reset_state()
        PartialState._reset_state()
    assert [record.step for record in telemetry.read(run)] == [1, 2, 3, 4, 5]
    assert [one.step for one in evaluation.read(run)] == [0, 3, 5]
    assert kind_of(run) == "grpo"
    json.loads((run / "run.json").read_text(), parse_constant=pytest.fail)


def test_a_study_of_forks_goes_on(old: Path):
    settings = json.loads((old / "forks" / "settings.json").read_text())
    with pytest.raises(UserError, match=r"`twotemp forks` with other settings \(quantile: 0\.99, now 0\.5\)"):
        Journal(old / "forks", {**settings, "quantile": 0.5})
    journal = Journal(old / "forks", settings)
    before = list(journal.rows())
    assert before
    journal.append([{"name": "new"}])
    journal.close()
    assert list(Journal(old / "forks", settings).rows()) == [*before, {"name": "new"}]
    assert (read_run(old / "forks") or {})["quantile"] == 0.99
