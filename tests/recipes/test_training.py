"""Training: batches and noise as functions of the step, exact resume, and what a recipe says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recipes import __main__ as command
from recipes import checkpoints, loop, tokenizer, verifier
from recipes.corpus import Corpus, Examples, generate
from recipes.loop import train
from recipes.muon import Muon
from recipes.objective import diffusion_loss
from recipes.recipe import Recipe
from tests.helpers.micro_recipe import MICRO
from twotemp.errors import UserError
from twotemp.folders import only_writer
from twotemp.models.load import load, locate
from twotemp.records import NO_MASK
from twotemp.tasks import SOURCES

torch.set_num_threads(1)
WORDS = tokenizer.build()
RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.mark.slow
def test_the_recipe_sets_the_number_of_threads(tmp_path, monkeypatch):
    """A different number changes the order of sums, and so the weights."""
    seen = []

    def counted(*arguments, **options):
        seen.append(torch.get_num_threads())
        return diffusion_loss(*arguments, **options)

    monkeypatch.setattr(loop, "diffusion_loss", counted)
    for count in (1, 2):
        train(replace(MICRO, threads=count), tmp_path / str(count))
    assert seen == [1] * MICRO.steps + [2] * MICRO.steps
    assert torch.get_num_threads() == 1, "as it was before"


@pytest.mark.parametrize("task", sorted(SOURCES))
def test_training_examples_are_from_the_train_split(task: str) -> None:
    """Decoded from the ids that batches are drawn from; the stream of the same seed also has held-out problems."""
    words = {number: word for word, number in WORDS.get_vocab().items()}
    seen = {
        " ".join(words[number] for number in row[1 : group.prompt - 1])
        for group in generate({task: 300}, 5, WORDS.get_vocab())
        for row in group.ids.tolist()
    }
    splits = {
        split: {example.prompt for example in islice(SOURCES[task].examples(5, split), 300)}
        for split in ("train", "validation", "test")
    }
    assert seen == splits["train"]
    assert not seen & (splits["validation"] | splits["test"])


def test_a_loss_that_is_not_finite_ends_the_training_before_the_weights_change() -> None:
    network = loop.llada.new(loop.config(MICRO, WORDS), WORDS, seed=3).module
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    loss = next(network.parameters()).sum() * float("nan")
    with pytest.raises(UserError, match=r"the loss is nan; start again with a smaller learning_rate"):
        Muon(network, weight_decay=0.1).descend(loss, 0.01)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_causal_attention_sees_the_past_and_full_attention_everything() -> None:
    words = tokenizer.build()
    network = loop.llada.new(loop.config(MICRO, words), words, seed=3).module
    ids = torch.randint(5, 50, (1, 6), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, -1] += 1
    first = torch.zeros(1, 6, dtype=torch.bool)
    first[0, 0] = True
    for causal in (True, False):
        logits = loop.forward(network, causal=causal, compiled=False)
        assert torch.equal(logits(ids, first), logits(changed, first)) == causal


def test_every_example_is_drawn_equally_often() -> None:
    groups = [
        Examples("a", 1, torch.zeros(30, 4)),
        Examples("b", 2, torch.zeros(10, 8)),
        Examples("c", 1, torch.zeros(5, 2)),
    ]
    corpus = Corpus(groups, batch_tokens=16)
    drawn = {"a": 0, "b": 0, "c": 0}
    for step in range(6000):
        batch = corpus.batch(torch.Generator().manual_seed(step))
        assert batch.ids.numel() == 16
        drawn[batch.task] += len(batch.ids)
    per_example = [drawn[group.task] / len(group.ids) for group in groups]
    assert per_example == pytest.approx([sum(per_example) / 3] * 3, rel=0.1)


def test_a_corpus_is_a_function_of_its_seed() -> None:
    vocabulary = tokenizer.build().get_vocab()
    a, b = (generate({"programs-1": 30}, 4, vocabulary) for _ in range(2))
    other = generate({"programs-1": 30}, 5, vocabulary)
    assert [s.ids.tolist() for s in a] == [s.ids.tolist() for s in b] != [s.ids.tolist() for s in other]
    assert sum(len(s.ids) for s in a) == 30


@pytest.mark.parametrize("next_token_steps", [0, 5])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path, next_token_steps: int, monkeypatch) -> None:
    recipe = replace(MICRO, next_token_steps=next_token_steps)
    whole = load(train(recipe, tmp_path / "whole"))

    class Killed(Exception):
        pass

    def killed_at_step_6(self, step, *rest) -> None:
        if step == 6:
            raise Killed
        write(self, step, *rest)

    write = loop.LossLog.write
    monkeypatch.setattr(loop.LossLog, "write", killed_at_step_6)
    with pytest.raises(Killed):
        train(recipe, tmp_path / "parts")
    monkeypatch.setattr(loop.LossLog, "write", write)
    parts = load(train(recipe, tmp_path / "parts"))
    for key, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, parts.module.state_dict()[key]), key
    logs = [
        [json.loads(line) for line in (tmp_path / run / "log.jsonl").read_text().splitlines()]
        for run in ("whole", "parts")
    ]
    assert [row["step"] for row in logs[0]] == [2, 4, 6, 8]
    assert [row["loss"] for row in logs[0]] == [row["loss"] for row in logs[1]]
    assert (tmp_path / "whole" / "loss.png").is_file()


def test_a_resumed_run_may_change_later_steps_but_not_finished_ones(tmp_path: Path) -> None:
    recipe = replace(MICRO, steps=20, decay=4)
    words = tokenizer.build()
    network = loop.llada.new(loop.config(recipe, words), words).module
    optimizer = Muon(network, weight_decay=0.0)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    checkpoints.write(tmp_path, 12, recipe, network, optimizer)
    assert checkpoints.read(tmp_path, replace(recipe, steps=30), network, optimizer) == 12
    assert checkpoints.read(tmp_path, replace(recipe, steps=14, decay=2), network, optimizer) == 12
    for other in (
        replace(recipe, steps=14),
        replace(recipe, next_token_steps=3),
        replace(recipe, learning_rate=1.0),
        replace(recipe, seed=9),
    ):
        with pytest.raises(UserError, match="other settings"):
            checkpoints.read(tmp_path, other, network, optimizer)


def test_training_learns(tmp_path: Path) -> None:
    recipe = replace(
        MICRO, steps=60, warmup=5, decay=10, learning_rate=0.01, log_every=10, checkpoint_every=60
    )
    out = train(recipe, tmp_path)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"]["programs-1"] < 0.7 * log[0]["loss"]["programs-1"]
    model = load(out)
    assert model.config["model_type"] == "llada"
    assert model.tokenizer.decode([model.mask_id]) == "<|mdm_mask|>"


def test_the_learning_rate_warms_up_stays_and_decays() -> None:
    recipe = replace(MICRO, steps=100, warmup=10, decay=20, learning_rate=1.0)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:80] == [1.0] * 71
    assert rates[81] == pytest.approx(0.95)
    assert rates[-1] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stepz: 3", "did you mean 'steps'"),
        ("steps: many", "steps must be an integer"),
        ("warmup: 100", "must fit into steps"),
        ("n_heads: 5", "multiple of n_heads"),
        ("examples: {countdown-5: 10}", "did you mean 'countdown-"),
        ("examples: {countdown-3: 0}", "must be an integer >= 1"),
        ("compile: 1", "compile must be true or false"),
        ("noise: masks", "did you mean 'mask'"),
        ("after: 3", "after must name a recipe's file"),
        ("after: recipe.yaml", "leads back to this recipe"),
    ],
)
def test_bad_recipes_are_refused(tmp_path: Path, change: str, message: str) -> None:
    fields = {**MICRO.to_dict()}
    text = "".join(
        f"{key}: {json.dumps(value)}\n" for key, value in fields.items() if key != change.split(":")[0]
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(text + change + "\n")
    with pytest.raises(UserError, match=message):
        Recipe.read(path)


def test_a_second_phase_starts_with_the_weights_of_the_first(tmp_path: Path) -> None:
    """With a rate of 0 it also ends with them; its own seed would give a different network."""
    still = replace(MICRO, name="still", after=MICRO, learning_rate=0.0, seed=3)
    train(still, tmp_path / "still")
    train(MICRO, tmp_path / "alone")
    first = load_file(tmp_path / "alone" / "model" / "model.safetensors")
    second = load_file(tmp_path / "still" / "model" / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_may_start_from_an_embedded_model_and_use_random_tokens(tmp_path: Path) -> None:
    recipe = replace(Recipe.read(RECIPES / "tiny-uniform.yaml"), compile=False, learning_rate=0.0)
    recipe = replace(recipe, steps=2, decay=1, warmup=1, examples={"countdown-3": 20}, batch_tokens=60)
    out = train(recipe, tmp_path)
    weights, start = (load_file(folder / "model.safetensors") for folder in (out, locate("tiny")))
    assert weights.keys() == start.keys()
    assert all(torch.equal(weights[name], start[name]) for name in weights)
    model = load(out)
    assert (model.mask_id, model.config["model_type"]) == (NO_MASK, "llada-uniform")
    assert "mask_token_id" not in model.config


def test_phases_of_a_recipe_must_have_the_same_architecture(tmp_path: Path) -> None:
    for name, recipe in (("first.yaml", MICRO), ("second.yaml", replace(MICRO, d_model=32))):
        path = tmp_path / name
        path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in recipe.to_dict().items()))
    path.write_text(path.read_text() + "after: first.yaml\n")
    with pytest.raises(UserError, match="d_model, n_layers, n_heads, mlp_hidden_size must be those of micro"):
        Recipe.read(path)
    assert Recipe.read(RECIPES / "tiny.yaml").after == Recipe.read(RECIPES / "tiny-first.yaml")


def test_a_recipe_without_examples_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: x\n")
    with pytest.raises(UserError, match="lacks"):
        Recipe.read(path)


def test_a_recipe_determines_whether_a_denoiser_or_a_verifier_is_trained(tmp_path: Path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(loop, "train", lambda recipe, out, on_progress: made.append(recipe) or out)
    monkeypatch.setattr(verifier, "train", lambda recipe, out, on_progress: made.append(recipe) or out)
    for name in ("tiny", "verifier"):
        assert command.train(command.locate(Path(f"{name}.yaml")), tmp_path) == tmp_path
    assert [type(recipe) for recipe in made] == [Recipe, verifier.VerifierRecipe]
    assert [recipe.name for recipe in made] == ["tiny", "verifier"]
    with pytest.raises(UserError, match="no recipe"):
        command.train(tmp_path / "absent.yaml", tmp_path)


def test_the_command_trains_stops_and_continues(tmp_path: Path, monkeypatch, capsys) -> None:
    recipe, out = tmp_path / "micro.yaml", tmp_path / "run"
    recipe.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in MICRO.to_dict().items()))

    def interrupted(*given) -> None:
        write(*given)
        raise KeyboardInterrupt

    write = checkpoints.write
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", interrupted)
        assert command.main([str(recipe), "--out", str(out)]) == 130
    assert f"run the same command to continue from the last checkpoint in {out}" in capsys.readouterr().err
    assert command.main([str(recipe), "--out", str(out)]) == 0
    assert f"saved {out / 'model'}" in capsys.readouterr().out
    weights = load_file(out / "model" / "model.safetensors")
    whole = load_file(train(MICRO, tmp_path / "whole") / "model.safetensors")
    assert all(torch.equal(whole[name], weights[name]) for name in whole)
    assert command.main([str(tmp_path / "absent.yaml"), "--out", str(out)]) == 2
    assert "error: no recipe" in capsys.readouterr().err


def test_help_loads_no_torch() -> None:
    """The policy of waiting threads must be set before torch reads it."""
    code = "import sys, recipes.__main__; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=RECIPES.parent
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["tiny", "tiny-ar", "tiny-uniform"])
def test_the_shipped_weights_match_their_recipe_and_log(name: str) -> None:
    recipe = Recipe.read(RECIPES / f"{name}.yaml")
    model = load(name)
    expected = loop.config(recipe, tokenizer.build())
    assert {key: model.config[key] for key in expected if key != "eos_token_id"} == {
        key: value for key, value in expected.items() if key != "eos_token_id"
    }
    assert model.tokenizer.get_vocab() == tokenizer.build().get_vocab()
    log = [json.loads(line) for line in (RECIPES / f"{name}.log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == recipe.steps
    phases = [row["step"] for row in log if row["objective"] == "next token"]
    assert max(phases, default=0) == recipe.next_token_steps


def test_two_processes_cannot_train_in_the_same_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(verifier, "sampled", None)  # where it gets so far, it fails at once
    recipe = verifier.VerifierRecipe.read(RECIPES / "verifier.yaml")
    with only_writer(tmp_path):
        for call in (lambda: train(MICRO, tmp_path), lambda: verifier.train(recipe, tmp_path)):
            with pytest.raises(UserError, match="another process is writing"):
                call()
    assert not list(tmp_path.iterdir())
