"""Training: the objective against brute force, batches and noise as functions of the step, exact resume."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recipes import __main__ as command
from recipes import checkpoints, loop, tokenizer, verifier
from recipes.corpus import Corpus, Examples, generate
from recipes.loop import train
from recipes.muon import Muon, orthogonal
from recipes.objective import diffusion_loss, next_token_loss, stratified_times, uniform_loss
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


@pytest.mark.parametrize("least", [0.0, 0.02, 0.5])
def test_times_are_uniform_and_evenly_spaced(least: float) -> None:
    times = torch.stack([stratified_times(8, least, torch.Generator().manual_seed(s)) for s in range(500)])
    shares = (times - least) / (1 - least) * 8
    assert torch.equal(shares.floor(), torch.arange(8.0).double().expand(500, 8))
    assert torch.allclose(shares % 1, (shares % 1)[:, :1].expand(500, 8))
    assert float((shares % 1).mean()) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("options", "times", "weight"),
    [
        ({}, (0.0, 1.0), lambda t: 1 / t),
        ({"least_time": 0.1, "largest_weight": 2.5}, (0.1, 1.0), lambda t: min(1 / t, 2.5)),
    ],
    ids=["equation 3", "bounded"],
)
def test_diffusion_loss_is_the_papers_objective(options, times, weight) -> None:
    """A set M of m of the L positions is masked with probability t^m (1-t)^(L-m), so the loss is a finite sum over M
    of int w(t) t^m (1-t)^(L-m) dt times the loss of the state; for w = 1/t over [0, 1] that is B(m, L-m+1)."""
    length, prompt, vocabulary, mask = 3, 2, 5, 4
    ids = torch.tensor([[0, 1, 2, 0, 3]])
    table = torch.randn(5, vocabulary**length, vocabulary, generator=torch.Generator().manual_seed(0))

    def logits(x: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        """Return random logits for every position and state, as a function of the visible tokens."""
        state = (x[:, prompt:] * vocabulary ** torch.arange(length)).sum(1)
        rows, columns = want.nonzero(as_tuple=True)
        return table[columns, state[rows]]

    low, high = times
    middles = [low + (high - low) * (i + 0.5) / 20_000 for i in range(20_000)]
    exact = 0.0
    for masked in product((False, True), repeat=length):
        m = sum(masked)
        if m == 0:
            continue
        where = torch.tensor([[False] * prompt + list(masked)])
        nll = -logits(ids.masked_fill(where, mask), where).log_softmax(-1)
        total = float(nll.gather(1, ids[where][:, None]).sum())
        share = sum(weight(t) * t**m * (1 - t) ** (length - m) for t in middles) / 20_000
        if not options:
            beta = math.gamma(m) * math.gamma(length - m + 1) / math.gamma(length + 1)
            assert share == pytest.approx(beta, rel=1e-4)
        exact += share * total
    rows = 4000
    losses = [
        float(
            diffusion_loss(
                logits, ids.expand(rows, -1), prompt, mask, torch.Generator().manual_seed(s), **options
            )
        )
        for s in range(5)
    ]
    assert sum(losses) / 5 == pytest.approx(exact / length, rel=0.02)


def test_diffusion_loss_never_masks_the_prompt_and_asks_only_for_masked_positions() -> None:
    seen = []

    def logits(x: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        seen.append((x, want))
        return torch.zeros(int(want.sum()), 9)

    ids = torch.randint(0, 8, (50, 7), generator=torch.Generator().manual_seed(0))
    diffusion_loss(logits, ids, 3, 8, torch.Generator().manual_seed(1))
    (x, want) = seen[0]
    assert torch.equal(x == 8, want)
    assert torch.equal(x[~want], ids[~want])
    assert not want[:, :3].any()
    assert want[:, 3:].any(0).all()


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


def test_muon_agrees_with_torchs_muon_and_adamw() -> None:
    torch.manual_seed(0)
    network, twin = (loop.llada.new(loop.config(MICRO, WORDS), WORDS, seed=3).module for _ in range(2))
    ours = Muon(network, weight_decay=0.1)
    matrices = [p for name, p in twin.named_parameters() if ".layers." in name and p.ndim == 2]
    others = [p for name, p in twin.named_parameters() if not any(p is m for m in matrices)]
    assert len(matrices) == 7
    theirs = [
        torch.optim.Muon(
            matrices,
            lr=0.01,
            weight_decay=0.1,
            momentum=0.95,
            nesterov=True,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(others, lr=0.01, betas=(0.9, 0.98), weight_decay=0.1),
    ]
    for group in ours.param_groups:
        group["lr"] = 0.01
    for _ in range(3):
        for p, q in zip(network.parameters(), twin.parameters()):
            p.grad = q.grad = torch.randn(p.shape)
        for optimizer in (ours, *theirs):
            optimizer.step()
    for (name, p), q in zip(network.named_parameters(), twin.parameters()):
        # torch's iteration is in bfloat16: about two digits of an update, of which there were three.
        close = 3e-3 if any(q is m for m in matrices) else 1e-6
        assert float((p - q).detach().abs().max()) < close, name


def test_orthogonal_moves_all_singular_values_near_one() -> None:
    wide = torch.randn(3, 6, 20, generator=torch.Generator().manual_seed(0)) * 50
    values = torch.linalg.svdvals(orthogonal(wide))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_uniform_loss_is_the_mean_over_all_states() -> None:
    """A token is the right one with probability 1 - t + t / V, else each other one with t / V."""
    length, prompt, vocabulary, least = 2, 1, 3, 0.2
    ids = torch.tensor([[2, 0, 1]])
    table = torch.randn(length, vocabulary**length, vocabulary, generator=torch.Generator().manual_seed(0))

    def logits(x: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        assert want.tolist() == [[False, True, True]] * len(x)
        assert bool((x[:, 0] == 2).all())
        state = x[:, 1] * vocabulary + x[:, 2]
        return table[:, state].transpose(0, 1).flatten(0, 1)

    exact = 0.0
    for state in product(range(vocabulary), repeat=length):
        at = state[0] * vocabulary + state[1]
        nll = -table[:, at].log_softmax(-1)
        loss = sum(float(nll[k, ids[0, prompt + k]]) for k in range(length)) / length
        wrong = sum(state[k] != int(ids[0, prompt + k]) for k in range(length))
        for i in range(2000):
            t = least + (1 - least) * (i + 0.5) / 2000
            exact += (t / 3) ** wrong * (1 - t + t / 3) ** (length - wrong) * loss / 2000
    losses = [
        float(
            uniform_loss(
                *(logits, ids.expand(20_000, -1), prompt, vocabulary, torch.Generator().manual_seed(s)),
                least_time=least,
            )
        )
        for s in range(3)
    ]
    assert sum(losses) / 3 == pytest.approx(exact, rel=0.01)


def test_next_token_loss_predicts_each_answer_token_from_the_previous_position() -> None:
    ids = torch.tensor([[5, 3, 1, 2], [5, 3, 4, 0]])

    def logits(x: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        assert want.tolist() == [[False, True, True, False]] * 2
        scores = torch.zeros(4, 6)
        scores[torch.arange(4), torch.tensor([1, 2, 4, 0])] = 2.0
        return scores

    expected = math.log(math.exp(2) + 5) - 2
    assert float(next_token_loss(logits, ids, 2)) == pytest.approx(expected)


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
