"""Recipes, rewards and the options of `twotemp grpo` that large models need."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from accelerate.tracking import GeneralTracker
from typer.testing import CliRunner

from experiments.grpo_llada import commands
from tests.helpers import rl_toys
from tests.helpers.rl_toys import go, micro_model, same, tensors
from twotemp import plugins, tasks
from twotemp.cli import app
from twotemp.cli import grpo as command
from twotemp.cli.commands import load_command
from twotemp.errors import UserError
from twotemp.folders import read_run
from twotemp.graders import rewards
from twotemp.graders.rewards import REWARDS, parse_rewards
from twotemp.models.checkpoint import save, weight_files
from twotemp.models.load import load
from twotemp.models.quantization import PACKAGES
from twotemp.policies import parse
from twotemp.report import grpo as drawing
from twotemp.rl import parallel
from twotemp.rl.learner import Learner
from twotemp.rl.parallel import accelerator
from twotemp.rl.results import read_steps
from twotemp.rl.settings import GrpoSettings, LearningSettings, RolloutSettings, read_recipe

FILES = sorted(Path("recipes/grpo").glob("*.yaml"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save(micro_model(), tmp_path_factory.mktemp("recipes") / "micro")


def grpo(checkpoint: Path, out: Path, *more: str):
    """Run two small steps of `twotemp grpo`."""
    asked = f"grpo --model {checkpoint} --task countdown-3 --budget 2steps --out {out} --groups 2 --size 4"
    return CliRunner().invoke(
        app, [*asked.split(), "--lora-rank", "4", "--held-out", "0", "--device", "cpu", *more]
    )


# --- recipes


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_has_options_of_the_command_that_can_work(file):
    options = read_recipe(str(file))
    known = {parameter.name: parameter for parameter in load_command("grpo").params}
    assert options.keys() <= known.keys()
    task = tasks.get(options["task"])
    assert {options.get("prompt"), options.get("eval_prompt")} <= {None, *task.prompts}
    parse_rewards(options.get("reward", ()))
    names = {*RolloutSettings.__annotations__, *LearningSettings.__annotations__}
    fields = {name: value for name, value in options.items() if name in names}
    GrpoSettings(parse(options["policy"]), length=options.get("length", task.length), **fields)


def test_the_recipes_of_the_paper_are_d1s_and_differ_in_the_rollouts():
    recipes = {file.stem: read_recipe(str(file)) for file in FILES}
    tct = recipes["llada-gsm8k-tct"]
    d1 = {"learning_rate": 3e-6, "lora_dropout": 0.05, "beta": 0.04, "iterations": 12, "prompt_tokens": 200}
    assert {name: tct[name] for name in d1} == d1
    for task in ("gsm8k", "math"):
        for sampler in ("ar", "ct"):
            one, other = recipes[f"llada-{task}-tct"], recipes[f"llada-{task}-{sampler}"]
            assert {name for name in one if one[name] != other[name]} == {"policy"}
            assert parse(other["policy"]).t_token == 0.9


def test_the_commands_of_the_papers_figure_name_recipes_that_exist():
    listed = [shlex.join(command) for command in commands(Path("runs"))]
    assert listed[0] == (
        "torchrun --nproc-per-node 4 --no-python twotemp grpo --recipe recipes/grpo/llada-gsm8k-ar.yaml "
        "--budget 72h --out runs/gsm8k-ar"
    )
    files = [Path(part) for command in listed for part in command.split() if part.endswith(".yaml")]
    assert len(files) == 6
    assert set(files) <= set(FILES)


def test_a_recipe_gives_what_the_command_does_not(checkpoint, tmp_path):
    (tmp_path / "base.yaml").write_text("base: d1\ntitle: t\ngroups: 3\npolicy: lc\n")
    (tmp_path / "mine.yaml").write_text("base: base.yaml\nlora-alpha: 16\nreward: [correct=2, answered]\n")
    done = grpo(checkpoint, tmp_path / "run", "--recipe", str(tmp_path / "mine.yaml"), "--iterations", "1")
    assert done.exit_code == 0, done.output
    run = read_run(tmp_path / "run")
    settings = run["settings"]
    assert (settings["lora_alpha"], settings["beta"], settings["policy"]["name"]) == (16, 0.04, "lc")
    assert (settings["groups"], settings["iterations"]) == (2, 1), "given"
    assert run["rewards"] == {"correct": 2.0, "answered": 1.0}
    assert '"lora_alpha": 16' in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_recipe_with_a_mistake_is_refused(checkpoint, tmp_path):
    for text, message in (("learning_rat: 1", "learning_rat"), ("base: x.yaml", "its own base")):
        (tmp_path / "x.yaml").write_text(text)
        done = grpo(checkpoint, tmp_path / "run", "--recipe", str(tmp_path / "x.yaml"))
        assert isinstance(done.exception, UserError)
        assert message in str(done.exception)
    assert not (tmp_path / "run").exists()


# --- rewards

WHOLE = "<reasoning>\nso\n</reasoning>\n<answer>\n12\n</answer>\n"
D1 = ("d1-xml-count", "d1-soft-format", "d1-strict-format", "d1-integer", "d1-answer", "d1-tags")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WHOLE, (0.5, 0.0, 0.5, 0.5, 2.0, 0.75)),
        ("<reasoning>so</reasoning> <answer>12</answer>", (0.0, 0.5, 0.0, 0.5, 2.0, 0.75)),
        ("<answer>12.0</answer>", (0.0, 0.0, 0.0, 0.0, 0.0, 0.75)),
        ("12", (0.0, 0.0, 0.0, 0.5, 2.0, 0.25)),
        (WHOLE + "more", (0.492, 0.0, 0.0, 0.5, 2.0, 0.75)),
        (WHOLE + WHOLE, (0.0, 0.0, 0.0, 0.5, 2.0, 0.75)),
    ],
)
def test_the_rewards_of_d1(text, expected):
    """The numbers are those of its functions; `.` does not match a line break there, so WHOLE has no soft format."""
    found = [REWARDS[name](completions=[text], answer=["12"], prompts=["q"])[0] for name in D1]
    assert found == pytest.approx(list(expected))


def test_rewards_are_read_with_their_weights():
    found = parse_rewards(["correct=2", "d1-integer"])
    assert {rewards.reward_name(reward): weight for reward, weight in found.items()} == {
        "correct": 2.0,
        "d1-integer": 1.0,
    }
    with pytest.raises(UserError, match="reward"):
        parse_rewards(["corect"])
    with pytest.raises(UserError, match="must be a number"):
        parse_rewards(["correct=much"])


def test_a_plug_in_adds_a_reward(checkpoint, tmp_path):
    (tmp_path / "short_answers.py").write_text(
        "from twotemp import plugins\n"
        "plugins.add_reward('short', lambda *, completions, **columns: [-len(c) / 100 for c in completions])\n"
    )
    try:
        done = grpo(
            checkpoint,
            tmp_path / "run",
            "--plugin",
            str(tmp_path / "short_answers.py"),
            "--reward",
            "short=0.5",
        )
    finally:
        REWARDS.pop("short", None)
        plugins.NAMED.clear()
    assert done.exit_code == 0, done.output
    assert read_run(tmp_path / "run")["rewards"] == {"short": 0.5}
    assert all(step.reward < 0 for step in read_steps(tmp_path / "run"))


# --- options


def test_the_training_prompt_and_its_cut_reach_the_samples(tmp_path, monkeypatch):
    from twotemp.rl import trainer

    seen, honest = [], trainer.collect

    def collect(*arguments, **options):
        seen.append(honest(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(trainer, "collect", collect)
    go(tmp_path, "1step", prompt_tokens=2)
    assert {len(sample.prompt) for sample in seen[0].samples} == {2}


def test_adapters_are_added_to_the_requested_layers(tmp_path):
    trained = Learner(micro_model(), rl_toys.settings(lora_targets="q_proj,up_proj"), accelerator(cpu=True))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in trained.weights()} == {"q_proj", "up_proj"}
    with pytest.raises(UserError, match="--lora-targets nothing"):
        Learner(micro_model(), rl_toys.settings(lora_targets="nothing"), accelerator(cpu=True))


def test_dropout_is_repeated_by_a_run_that_is_continued(tmp_path):
    go(tmp_path / "whole", "3steps", lora_dropout=0.5, questions=0)
    for budget in ("1step", "3steps"):
        go(tmp_path / "parts", budget, lora_dropout=0.5, questions=0)
    go(tmp_path / "none", "3steps", questions=0)
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    assert not same(tensors(tmp_path / "whole"), tensors(tmp_path / "none"))


def test_the_learning_rate_rises_over_the_warm_up_also_after_a_restart(tmp_path, monkeypatch):
    rates, honest = [], torch.optim.AdamW.step

    def step(self, *arguments):
        rates.append(self.param_groups[0]["lr"])
        return honest(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    for budget in ("1step", "4steps"):
        go(tmp_path, budget, warmup=3, learning_rate=3.0e-3)
    assert len(rates) > 3
    assert rates == pytest.approx([1e-3, 2e-3, *[3e-3] * (len(rates) - 2)])


def test_rollouts_may_use_a_cache_and_evaluations_do_not(tmp_path, monkeypatch):
    from twotemp.rl import trainer

    caches, honest = [], trainer.LocalBackend

    def backend(model, *, batch_size, cache):
        caches.append(cache)
        return honest(model, batch_size=batch_size, cache=cache)

    monkeypatch.setattr(trainer, "LocalBackend", backend)
    go(tmp_path, "1step", cache="dual")
    assert caches == [None, "dual", None]
    with pytest.raises(UserError, match="cache"):
        go(tmp_path / "other", "1step", cache="fast")


def test_the_way_a_model_is_loaded_belongs_to_the_run(checkpoint, tmp_path):
    assert grpo(checkpoint, tmp_path / "run", "--dtype", "bfloat16").exit_code == 0
    assert read_run(tmp_path / "run")["loading"] == {"dtype": "bfloat16"}
    again = grpo(checkpoint, tmp_path / "run", "--budget", "3steps")
    assert "loading.dtype" in str(again.exception)
    assert "device-map" in str(grpo(checkpoint, tmp_path / "x", "--device-map", "auto").exception)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_adapters_are_trained_beside_a_quantized_base(tmp_path, kind):
    pytest.importorskip(PACKAGES[kind])
    checkpoint = save(micro_model(width=64), tmp_path / "wider")  # nf4 is for layers of at least this width
    go(tmp_path / "learns", "10steps", model=load(checkpoint, device="cpu", quantize=kind))
    steps = read_steps(tmp_path / "learns")
    assert max(step.grad_norm for step in steps) > 0
    assert max(step.kl or 0.0 for step in steps) > 0
    done = grpo(checkpoint, tmp_path / "run", "--quantize", kind)
    assert done.exit_code == 0, done.output
    assert read_run(tmp_path / "run")["loading"] == {"quantize": kind}
    exported = load(tmp_path / "run" / "model", device="cpu")
    assert len(weight_files(tmp_path / "run" / "model")) == 1
    assert exported.tensors().keys() == load(checkpoint, device="cpu").tensors().keys(), "not quantized"
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["model_type"] == "llada"
    with pytest.raises(UserError, match="quantized weights cannot be trained"):
        Learner(
            load(checkpoint, device="cpu", quantize=kind),
            rl_toys.settings(lora_rank=0),
            accelerator(cpu=True),
        )


# --- trackers


class Recorder(GeneralTracker):
    """A tracker that keeps what it is sent."""

    name, requires_logging_directory, tracker = "recorder", False, None

    def __init__(self) -> None:
        super().__init__()
        self.config, self.rows = {}, []

    def store_init_configuration(self, values):
        self.config = values

    def log(self, values, step=None, **options):
        self.rows.append((step, values))


def test_every_step_is_sent_to_the_trackers(checkpoint, tmp_path, monkeypatch):
    recorder = Recorder()
    honest = command.accelerator
    monkeypatch.setattr(
        command, "accelerator", lambda **options: honest(**{**options, "trackers": [recorder]})
    )
    done = grpo(checkpoint, tmp_path / "run", "--iterations", "3")
    assert done.exit_code == 0, done.output
    assert recorder.config["learning_rate"] == 5e-4
    steps = read_steps(tmp_path / "run")
    assert [(step, row["reward"], row["updates"]) for step, row in recorder.rows] == [
        (record.step, record.reward, 3 * record.step) for record in steps
    ]


def test_a_tracker_that_is_not_there_is_refused(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "get_available_trackers", lambda: [])
    for name, message in (("wandb", "pip install wandb"), ("excel", "tracker")):
        assert message in str(grpo(checkpoint, tmp_path / "run", "--track", name).exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_x_axis_counts_updates_where_that_is_asked_for(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    go(tmp_path / "run", "2steps", iterations=3, questions=0)
    labels, honest = [], drawing.save

    def save_figure(folder, name, figure, caption):
        axis = figure.axes[0]
        labels.append((axis.get_xlabel(), max(axis.lines[0].get_xdata())))
        return honest(folder, name, figure, caption)

    monkeypatch.setattr(drawing, "save", save_figure)
    for updates in (False, True):
        drawing.write([tmp_path / "run"], tmp_path / "report", updates=updates)
    assert labels == [("step", 2), ("update", 6)]
