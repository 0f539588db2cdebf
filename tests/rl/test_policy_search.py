"""Learning a policy's numbers by the gradient of pass@k: its estimate, a search that is killed, and the command."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from tests.helpers import rl_toys
from tests.helpers.rl_toys import ManyNumbers, micro_model
from twotemp.cli import app
from twotemp.cli.options import split_policies
from twotemp.errors import UserError
from twotemp.folders import read_log
from twotemp.policies import policy
from twotemp.rl import policy_search
from twotemp.rl.policy_search import SearchResult, SearchSettings, pass_at_k_advantages, search

NAN = math.nan


@pytest.mark.parametrize(("n", "k"), [(2, 2), (3, 2), (4, 2), (4, 3), (5, 1)])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_the_estimate_is_the_gradient_of_pass_at_k(n, k, p):
    """Over all outcomes of n samples that are right with probability p; d log P is 1/p or -1/(1 - p)."""
    total = 0.0
    for outcome in product((0.0, 1.0), repeat=n):
        probability = math.prod(p if right else 1 - p for right in outcome)
        slopes = torch.tensor([1 / p if r else -1 / (1 - p) for r in outcome], dtype=torch.float64)
        total += probability * float((pass_at_k_advantages(torch.tensor([outcome]), k)[0] * slopes).sum())
    assert total == pytest.approx(k * (1 - p) ** (k - 1), abs=1e-9)


def test_with_k_samples_it_is_the_leave_one_out_reward():
    rewards = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    for row, found in zip(rewards.tolist(), pass_at_k_advantages(rewards, 3).tolist()):
        assert found == pytest.approx([max(row) - max(row[:i] + row[i + 1 :]) for i in range(3)])


def test_ungraded_samples_count_as_not_drawn():
    rewards = torch.tensor([[1.0, NAN, 0.0, 0.0], [1.0, NAN, NAN, NAN]])
    found = pass_at_k_advantages(rewards, 2)
    torch.testing.assert_close(found[0, [0, 2, 3]], pass_at_k_advantages(rewards[:1, [0, 2, 3]], 2)[0])
    assert (found[1] == 0).all()
    assert found[0, 1] == 0


SETTINGS = SearchSettings(policy("tct", threshold=0.3, t_pos=0.2, t_token=1.0), k=2, length=4, questions=3)


def go(out: Path, budget: float = 150, grader=None, settings: SearchSettings = SETTINGS) -> SearchResult:
    problems = rl_toys.TASK.problems().problems[:5]
    return search(micro_model(), problems, grader or ManyNumbers(), settings, out, budget=budget)


class Deadly(ManyNumbers):
    """Kills its process in the third step."""

    calls = 0

    def grade(self, items):
        self.calls += 1
        if self.calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().grade(items)


def test_a_search_moves_its_numbers_and_continues_after_a_kill(tmp_path):
    whole = go(tmp_path / "whole")
    child = get_context("fork").Process(target=go, args=(tmp_path / "parts", 150, Deadly()))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert len(read_log(tmp_path / "parts" / policy_search.STEPS)) == 2
    assert go(tmp_path / "parts") == whole
    first, second = (read_log(tmp_path / name / policy_search.STEPS) for name in ("whole", "parts"))
    assert first == second
    assert whole.spent >= 150 > first[-2]["spent"]
    for name in ("t_token", "t_pos", "threshold"):
        assert getattr(whole.policy, name) != getattr(SETTINGS.policy, name)
    with pytest.raises(UserError, match="settings"):
        go(tmp_path / "parts", settings=replace(SETTINGS, seed=1))


def test_gradient_search_raises_the_pass_rate(tmp_path):
    """T_token as the only number of LC: the toy's reward is likelier the colder the policy is."""
    settings = replace(SETTINGS, policy=policy("lc", t_token=1.0), k=1, questions=5, rate=0.2)
    found = go(tmp_path, 1200, settings=settings)
    rates = [row["pass_at_k"] for row in read_log(tmp_path / policy_search.STEPS)]
    assert set(read_log(tmp_path / policy_search.STEPS)[0]["numbers"]) == {"t_token"}
    assert sum(rates[-5:]) > sum(rates[:5])
    assert found.policy.t_pos == 0


def test_the_command_names_the_policy_found_and_writes_it(tmp_path):
    arguments = ["tune", "--task", "countdown-3", "--at", "pass@2", "--gradient", "--policies", "tct"]
    limits = ["--budget", "150", "--questions", "4", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*arguments, *limits])
    assert result.exit_code == 0, result.output
    (found,) = yaml.safe_load((tmp_path / "run" / "tuned.yaml").read_text())["policies"]
    assert result.output.strip().splitlines()[-1] == f"Use {found}"
    (again,) = split_policies(f"@{tmp_path / 'run' / 'tuned.yaml'}")
    assert again.rule == "threshold"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policies", "tct,tlc"], "starts from one policy"),
        (["--policies", "tct", "--at", "pass@NFE=100"], "is for pass@k"),
        (["--policies", "tct", "--portfolio"], "leave --portfolio"),
        (["--policies", "eb"], "start from a budget"),
        (["--policies", "lc:t_token=0.001"], "has no number to learn"),
    ],
)
def test_options_that_gradient_search_cannot_use_are_refused(tmp_path, options, message):
    arguments = ["tune", "--task", "countdown-3", "--gradient", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*arguments, *options])
    assert result.exit_code != 0
    assert message in str(result.exception)
    assert not (tmp_path / "run").exists()
