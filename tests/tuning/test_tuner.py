"""Races with a model, their reports and the command line."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tests.helpers.simulated_races import Simulated, unrelated
from twotemp import metrics
from twotemp.backends.local import LocalBackend
from twotemp.cli import app
from twotemp.cli.options import split_policies
from twotemp.errors import UserError
from twotemp.evaluation import Plan, TaskChoice
from twotemp.graders.puzzles import CountdownGrader
from twotemp.models.load import load
from twotemp.policies import parse_portfolio, policy, spell
from twotemp.report.tuning import markdown, recommendation, tuned_yaml
from twotemp.store import Store
from twotemp.tuning import (
    Goal,
    Measurement,
    Tuner,
    expand,
    race,
    standings,
)
from twotemp.tuning.race import Round
from twotemp.tuning.tuner import Tuned

# --- with a model


@pytest.mark.parametrize(
    ("name", "goal"), [("tiny", "pass@2"), ("tiny", "pass@NFE=24"), ("tiny-uniform", "pass@2")]
)
def test_a_small_race_is_an_ordinary_run_that_can_be_continued(tmp_path, name, goal):
    candidates = expand(["lc:t_token=0.8,k=2|6", "ct:t_token=0.8,threshold=0.5"])
    plan = Plan((TaskChoice("countdown-3"),), candidates, questions=10, seed=1)
    backend = LocalBackend(load(name), batch_size=32)
    first = Tuner(plan, Goal.parse(goal), backend, tmp_path / "run", budget=5000).race()
    cells = Store.open(tmp_path / "run").cells()
    assert {cell.config.policy for cell in cells} == set(candidates)
    assert {cell.config.subset for cell in cells} == {"validation"}
    files = sorted(path.name for path in (tmp_path / "run").glob("*/samples-*"))
    again = Tuner(plan, Goal.parse(goal), backend, tmp_path / "run", budget=5000).race()
    assert files == sorted(path.name for path in (tmp_path / "run").glob("*/samples-*"))
    assert again.standings == first.standings
    assert 0 < first.spent <= 5000
    best = first.standings[0]
    assert best.questions == 10
    assert best.mean == max(standing.mean for standing in first.standings)
    # The numbers are those of the stored samples.
    cell = next(cell for cell in cells if cell.config.policy == best.candidate)
    stored = cell.table(cell.graders()[0])
    if goal == "pass@2":
        assert best.mean == pytest.approx(float(np.mean(metrics.pass_at_k(stored.n, stored.correct, [2]))))
        assert best.cost == pytest.approx(2 * metrics.mean_cost(stored.nfe))
    else:
        assert best.cost == 24
    text = tuned_yaml(first)
    assert yaml.safe_load(text)["policies"] == [spell(best.candidate)]
    (tmp_path / "tuned.yaml").write_text(text)
    assert split_policies(f"ar,@{tmp_path / 'tuned.yaml'}") == (policy("ar"), best.candidate)
    assert spell(best.candidate) in recommendation(first)
    assert len([line for line in markdown(first).splitlines() if line.startswith("| ")]) == 2 + len(
        candidates
    )


def test_a_race_continues_with_a_newer_grader(tmp_path, monkeypatch):
    plan = Plan((TaskChoice("countdown-3"),), expand(["lc:t_token=0.8,k=2|6"]), questions=10, seed=1)
    backend = LocalBackend(load("tiny"), batch_size=32)
    first = Tuner(plan, Goal.parse("pass@1"), backend, tmp_path / "run", budget=5000).race()
    monkeypatch.setattr(CountdownGrader, "name", "countdown 2")
    again = Tuner(plan, Goal.parse("pass@1"), backend, tmp_path / "run", budget=5000).race()
    assert again.standings == first.standings
    for cell in Store.open(tmp_path / "run").cells():
        assert cell.graders() == ["countdown 1", "countdown 2"]


def test_with_too_few_questions_no_interval_is_stated():
    """Then no candidate can be told from the winner, and no text contains nan."""
    policies = expand(["tct:t_token=0.8,t_pos=0.1,threshold=0.5|0.7|0.9"])
    measurements = {
        candidate: Measurement(np.array([1.0, i / 2]), 3.0 - i, 6.0) for i, candidate in enumerate(policies)
    }
    rounds = [Round(2, measurements, policies)]
    goal, ranked = Goal.parse("pass@4"), standings(rounds, unrelated)
    tuned = Tuned(goal, TaskChoice("countdown-3"), "m", 18.0, rounds, ranked)
    text = recommendation(tuned)
    assert "2 of the other 2 cannot be told" in text
    assert "nan" not in text + markdown(tuned) + tuned_yaml(tuned)


def recommended(task: TaskChoice, *rates: float) -> str:
    policies = expand(["tct:t_token=0.8,t_pos=0.1,threshold=0.5|0.7|0.9"])[: len(rates)]
    measurements = {
        candidate: Measurement(np.full(4, rate), 3.0, 12.0) for candidate, rate in zip(policies, rates)
    }
    rounds = [Round(4, measurements, policies)]
    goal, ranked = Goal.parse("pass@4"), standings(rounds, unrelated)
    return recommendation(Tuned(goal, task, "m", 18.0, rounds, ranked))


def test_a_recommendation_without_rivals_does_not_claim_a_victory():
    choice = TaskChoice("countdown-3", subset="validation")
    assert "There was no other candidate." in recommended(choice, 0.5)
    assert "No other candidate reached the last round." in recommended(choice, 0.5, math.nan)


def test_without_validation_problems_no_fresh_test_problems_are_suggested():
    assert recommended(TaskChoice("countdown-3", subset="validation"), 0.5).endswith(
        "measure it on test problems."
    )
    for choice in (TaskChoice("gsm8k"), TaskChoice("gsm8k", subset="full")):
        assert recommended(choice, 0.5).endswith("to measure it, tune on others (--subset, --data).")
    assert "measure it on test problems" in recommended(TaskChoice("gsm8k", subset="train"), 0.5)


def test_several_tasks_are_refused_and_a_file_without_policies(tmp_path):
    plan = Plan((TaskChoice("countdown-3"), TaskChoice("words-2")), (policy("lc"),))
    with pytest.raises(UserError, match="one task at a time"):
        Tuner(plan, Goal(k=1), None, tmp_path / "run", budget=10).race()
    (tmp_path / "a.yaml").write_text("policies: tct")
    with pytest.raises(UserError, match="must have a list"):
        split_policies(f"@{tmp_path / 'a.yaml'}")
    with pytest.raises(UserError, match="no file of policies"):
        split_policies(f"@{tmp_path / 'b.yaml'}")


def test_the_frontier_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra: pip install 'twotemp[plots]'")
    from twotemp.report.tuning import draw_frontier

    simulated = Simulated([0.8, 0.5, 0.2], prices=[40.0, 10.0, 20.0], common=False, questions=60)
    named = [policy("lc"), policy("fork"), policy("tpp")]
    rounds = race(
        named,
        lambda policies, q: simulated.measure([named.index(p) for p in policies], q),
        unrelated,
        budget=9000,
        questions=60,
    )
    draw_frontier(standings(rounds, unrelated), "pass@4", "a model, a task", tmp_path / "frontier")
    assert {path.name for path in tmp_path.iterdir()} == {"frontier.png", "frontier.pdf"}


@pytest.mark.slow
def test_a_race_does_not_need_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr("twotemp.report.figures.available", lambda: False)
    options = [
        "--task",
        "countdown-3",
        "--at",
        "pass@1",
        "--policies",
        "lc:t_token=0.8,k=6",
        "--questions",
        "2",
    ]
    done = CliRunner().invoke(app, ["tune", *options, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "Without figures" in done.stderr
    assert "; next, on test problems: twotemp eval" in done.stderr


def test_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    options = [
        "--task",
        "countdown-3",
        "--at",
        "pass@1",
        "--policies",
        "lc:t_token=0.8,k=2|6",
        "--questions",
        "6",
    ]
    done = CliRunner().invoke(app, ["tune", *options, "--budget", "1000", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["candidate"] for row in rows} == {"lc:k=2", "lc:k=6"}
    assert f"Use {rows[0]['candidate']}: pass@1" in " ".join(done.stderr.split())
    assert {"tuned.yaml", "frontier.md", "frontier.png", "frontier.pdf", "run.json"} <= {
        p.name for p in out.iterdir()
    }


def test_a_portfolio_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    words = (
        "--task countdown-3 --at pass@4 --portfolio --questions 20 --budget 6000 --json --policies".split()
    )
    words += ["lc:t_token=0.8,k=1;tlc:t_token=0.8,k=1,t_pos=1;lc:t_token=0.8,k=12", "--out", str(out)]
    done = CliRunner().invoke(app, ["tune", *words])
    assert done.exit_code == 0, done.output
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    found = yaml.safe_load((out / "tuned.yaml").read_text())["policies"]
    assert found == list(dict.fromkeys([row["portfolio"], row["single"]]))
    assert "k=12" not in " ".join(found), "all tokens in one step: no portfolio uses it"
    assert row["difference"]["low"] <= row["difference"]["mean"] <= row["difference"]["high"]
    assert (row["questions"], row["goal"]) == (20, "pass@4")
    drawn = {
        cell.config.policy.k: {key[0] for key in cell.grades("countdown 1")}
        for cell in Store.open(out).cells()
    }
    assert len(drawn[12]) == 16, "it dropped out after the first round"
    again = CliRunner().invoke(app, ["tune", *words])
    assert json.loads(again.stdout) == row
    assert "on 20 validation problems" in " ".join(again.stderr.split())
    assert split_policies(f"@{out / 'tuned.yaml'}")[0] == parse_portfolio(row["portfolio"])


def test_the_first_round_of_a_portfolio_keeps_to_the_budget(tmp_path):
    words = "tune --task countdown-3 --at pass@4 --portfolio --questions 20 --json".split()
    words += ["--policies", "lc:t_token=0.8,k=1;tlc:t_token=0.8,k=1,t_pos=1", "--out"]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "run"), "--budget", "700"])
    assert done.exit_code == 0, done.output
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert 4 <= row["questions"] <= 8  # about 96 NFE each; without regard to the budget, it had 16
    assert row["spent"] < 900
    refused = CliRunner().invoke(app, [*words, str(tmp_path / "poor"), "--budget", "100"])
    assert "a budget of 100 NFE is too small" in str(refused.exception)
