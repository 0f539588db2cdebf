"""TRL's trainer on the embedded model: rollouts of `twotemp.sample`, the loss and gradient of `twotemp grpo`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import twotemp
from tests.helpers import rl_toys
from twotemp.errors import UserError

pytest.importorskip("trl", reason="needs pip install 'twotemp[trl]'")
pytest.importorskip("peft", reason="needs pip install 'twotemp[train]'")

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig

from twotemp.integrations.trl import DiffusionGRPOTrainer
from twotemp.rl.learner import Learner
from twotemp.rl.parallel import accelerator
from twotemp.rl.rollouts import Rollouts

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ["3 7 12 -> 33", "20 10 15 -> 45"]
POLICY = "tct:t_pos=0.5,t_token=6"  # answers of different lengths
LENGTH = 12
SIZE = 4


def checksum(completions, **columns):
    """Reward answers by a number that differs from answer to answer."""
    return [float(sum(map(ord, completion[0]["content"])) % 7) for completion in completions]


def trainer_of(model, folder, *, likelihood="d1", draws=1, policy=POLICY, peft_config=None, **options):
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]
    args = GRPOConfig(
        str(folder),
        **{
            "per_device_train_batch_size": len(PROMPTS) * SIZE,
            "num_generations": SIZE,
            "max_completion_length": LENGTH,
            "max_steps": 1,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "report_to": "none",
            "save_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "shuffle_dataset": False,
            "max_grad_norm": 0.0,
            "loss_type": "dapo",
            "seed": 5,
            "epsilon": 0.5,
            **options,
        },
    )
    return DiffusionGRPOTrainer(
        model,
        checksum,
        args=args,
        train_dataset=Dataset.from_list(rows),
        policy=policy,
        likelihood=likelihood,
        draws=draws,
        peft_config=peft_config,
    )


def observe(trainer):
    """Train, and return the loss, the gradients and the rollouts of the first step."""
    seen = {}
    plain = trainer.training_step

    def training_step(model, inputs, count):
        loss = plain(model, inputs, count)
        if not seen:
            seen["loss"] = float(loss)
            seen["gradients"] = {
                name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None
            }
            seen["rollouts"] = list(trainer._rollouts[True])
        return loss

    trainer.training_step = training_step
    trainer.train()
    return seen


@pytest.mark.parametrize(("likelihood", "draws"), [("d1", 1), ("trajectory", 1), ("coupled", 2), ("fork", 1)])
def test_loss_and_gradient_are_those_of_grpo(tmp_path, likelihood, draws):
    seen = observe(trainer_of(twotemp.load("tiny"), tmp_path, likelihood=likelihood, draws=draws))
    samples = tuple(seen["rollouts"])
    texts = [[{"content": sample.text}] for sample in samples]
    rewards = torch.tensor(checksum(texts)).view(len(PROMPTS), SIZE)
    model = twotemp.load("tiny")
    settings = rl_toys.settings(
        **{"likelihood": likelihood, "draws": draws, "length": LENGTH, "epsilon": 0.5, "beta": 0.0},
        **{"iterations": 1, "lora_rank": 0, "scale_advantage": True, "max_grad_norm": 1e9},
    )
    learner = Learner(model, settings, accelerator(cpu=True))
    update = learner.update(Rollouts((), samples, (), rewards, 0.0, 0.0))
    if likelihood in ("d1", "trajectory"):  # the others do not weigh every token with 1: another constant
        assert seen["loss"] == pytest.approx(update.loss, abs=1e-5)
        assert abs(update.loss) > 1e-3
    ours = {name: p.grad for name, p in model.module.named_parameters() if p.grad is not None}
    assert ours.keys() == seen["gradients"].keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(seen["gradients"][name], gradient, atol=1e-5, rtol=1e-3)
    assert max(float(gradient.abs().max()) for gradient in ours.values()) > 1e-3


def test_rollouts_are_the_samples_of_the_library(tmp_path):
    rollouts = observe(trainer_of(twotemp.load("tiny"), tmp_path))["rollouts"]
    model = twotemp.load("tiny")
    prompts = [[{"role": "user", "content": text}] for text in PROMPTS]
    for group in range(len(PROMPTS)):
        drawn = rollouts[group * SIZE : (group + 1) * SIZE]
        prompt = next(p for p in prompts if tuple(model.encode(p)) == drawn[0].prompt)
        expected = twotemp.sample(
            model, prompt, POLICY, n=SIZE, length=LENGTH, seed=5, ids=[drawn[0].request]
        )
        assert [s.tokens for s in drawn] == [s.tokens for s in expected]
        assert drawn[0].request.endswith("@0")


def test_adapters_learn_while_the_base_stays(tmp_path):
    model = twotemp.load("tiny")
    before = {name: p.clone() for name, p in model.module.named_parameters()}
    trainer = trainer_of(
        model,
        tmp_path,
        policy="lc:t_token=3 + tlc:t_pos=1,t_token=3",
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
        beta=0.04,
        max_steps=3,
        num_iterations=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        learning_rate=1e-2,
    )
    old = torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])
    trainer.train()
    new = torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])
    assert not torch.equal(old, new)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 3
    assert all("kl" in entry for entry in logged)
    assert {sample.policy.name for sample in trainer._rollouts[True]} == {"lc", "tlc"}
    for name, p in model.module.named_parameters():
        if (plain := name.replace(".base_layer", "")) in before:
            assert torch.equal(p, before[plain]), name


def test_settings_that_cannot_work_are_refused(tmp_path):
    model = twotemp.load("tiny")
    with pytest.raises(UserError, match="beta > 0"):
        trainer_of(model, tmp_path, beta=0.1)
    with pytest.raises(UserError, match="that twotemp"):
        trainer_of(model.module, tmp_path)
    with pytest.raises(UserError, match="likelihood 'deferral' scores whole steps"):
        trainer_of(model, tmp_path, likelihood="deferral")


# The example of docs/trl.md, which then writes what each process ends with.
REPORT = """
import json, os, torch
rank = os.environ["RANK"]
weights = torch.cat([p.detach().flatten() for name, p in trainer.model.named_parameters() if "lora_B" in name])
rollouts = trainer._rollouts[True]
facts = {
    "processes": trainer.accelerator.num_processes,
    "weights": weights.tolist(),
    "rollouts": [(sample.request, list(sample.prompt), sample.index, list(sample.tokens)) for sample in rollouts],
}
open(os.path.join(os.environ["REPORTS"], rank), "w").write(json.dumps(facts))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_accelerate_launches_two_processes(tmp_path):
    """They end with the same weights, which moved, and each drew rollouts of its own."""
    example = (ROOT / "docs" / "trl.md").read_text().split("```python\n")[1].split("```")[0]
    (script := tmp_path / "example.py").write_text(example + REPORT)
    (reports := tmp_path / "reports").mkdir()
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    environment = {**os.environ, "REPORTS": str(reports)}
    done = subprocess.run(
        [*launcher, str(script)], capture_output=True, text=True, env=environment, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((reports / str(rank)).read_text()) for rank in range(2))
    assert (first["processes"], second["processes"]) == (2, 2)
    assert first["weights"] == second["weights"]
    assert any(value != 0 for value in first["weights"]), "they start at 0"
    assert not {row[0] for row in first["rollouts"]} & {row[0] for row in second["rollouts"]}
