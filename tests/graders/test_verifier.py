"""The training of the verifier, and the shipped verifier."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import pytest
import torch
import yaml

from recipes import verifier
from recipes.corpus import Examples, generate
from recipes.muon import Muon
from tests.helpers.toy_task import micro_model
from twotemp import rewards, tasks
from twotemp.errors import UserError
from twotemp.likelihood.queries import Completion, CompletionBatch, concatenate, log_q
from twotemp.models.load import locate
from twotemp.records import Problem
from twotemp.rewards.denoiser import DenoiserReward, answer_row, checks, scaled_thirds
from twotemp.tasks import SOURCES
from twotemp.tasks.base import split_of

RECIPE = verifier.VerifierRecipe(
    name="test",
    model="tiny",
    sampled={"countdown-3": 12, "words-2": 2},
    policies={"ar": 1, "tct": 3},
    blocks=2,
    validation=3,
    examples={"countdown-3": 30, "words-2": 30},
    batch_tokens=200,
    steps=3,
    pairs_from=1,
    batch_pairs=4,
    warmup=1,
    learning_rate=1e-3,
    weight_decay=0.0,
    anchor=0.5,
    seed=5,
)


def test_training_problems_are_never_test_or_validation_problems():
    for split in ("train", "validation"):
        for task in RECIPE.sampled:
            examples = SOURCES[task].distinct(RECIPE.seed, split, 50)
            assert {split_of(f"{task} {example.key}") for example in examples} == {split}
            held_out = {problem.prompt for problem in tasks.get(task).problems().problems}
            assert not held_out & {example.prompt for example in examples}


def test_training_writes_a_reward_model(tmp_path):
    folder = verifier.train(RECIPE, tmp_path / "out")
    with pytest.raises(UserError, match=r"not a reward model.*`likelihood:` and its name"):
        rewards.load(str(folder))
    trained, untrained = (rewards.load(f"verifier:{source}") for source in (folder, "tiny"))
    asked = [(Problem("a", "countdown-3", "4 9 2 -> 34"), text) for text in ("4 * 9 = 36", "4 + 9 = 13")]
    assert all(a != b for a, b in zip(trained.score(asked), untrained.score(asked), strict=True))
    report = json.loads((tmp_path / "out" / "report.json").read_text())["validation"]
    assert report["countdown-3"]["samples"] == 3 * 4
    assert {"verifier", "untrained", "pll"} < set(report["words-2"])
    for split, samples in (("train", 14 * 4), ("validation", 6 * 4)):
        kept = [path.read_text().splitlines() for path in (tmp_path / "out").glob(f"{split}-*.jsonl")]
        rows = [json.loads(line) for lines in kept for line in lines]
        assert (len(kept), len(rows)) == (2 * 2, samples)
        for task in RECIPE.sampled:
            prompts = {row["prompt"] for row in rows if row["task"] == task}
            problems = SOURCES[task].distinct(RECIPE.seed, split, len(prompts))
            assert prompts == {problem.prompt for problem in problems}, "of the right split"


@pytest.mark.slow
def test_a_run_stopped_while_drawing_keeps_the_samples_of_finished_policies(tmp_path, monkeypatch):
    drawn, calls = verifier.drawn, []

    def counted(*arguments):
        calls.append(arguments[2:])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return drawn(*arguments)

    monkeypatch.setattr(verifier, "drawn", counted)
    with pytest.raises(KeyboardInterrupt):
        verifier.train(RECIPE, tmp_path / "out")
    verifier.train(RECIPE, tmp_path / "out")
    asked = [(task, n, *policy) for task, n in RECIPE.sampled.items() for policy in RECIPE.policies.items()]
    assert calls[:3] == asked[:3]
    assert calls[3:5] == asked[2:], "the two that were done are not drawn again"


@pytest.mark.slow
def test_training_again_uses_the_stored_samples_and_gives_the_same_weights(tmp_path, monkeypatch):
    first = (verifier.train(RECIPE, tmp_path / "out") / "model.safetensors").read_bytes()

    def drawn_again(*_: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(verifier, "drawn", drawn_again)
    with pytest.raises(UserError, match="already has a verifier; remove"):
        verifier.train(RECIPE, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "model")
    with pytest.raises(UserError, match=r"recipe\.policies\.ar: 1, now 2"):
        verifier.train(replace(RECIPE, policies={"ar": 2, "tct": 3}), tmp_path / "out")
    assert (verifier.train(RECIPE, tmp_path / "out") / "model.safetensors").read_bytes() == first


@pytest.mark.slow
def test_a_run_stopped_during_the_evaluation_is_not_trained_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(verifier, "measure", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            verifier.train(RECIPE, tmp_path / "out")
    monkeypatch.setattr(verifier, "fit", lambda *_: pytest.fail("trained again"))
    with pytest.raises(UserError, match=r"recipe\.steps: 3, now 4"):
        verifier.train(replace(RECIPE, steps=4), tmp_path / "out")
    verifier.train(RECIPE, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["recipe"]["steps"] == 3
    assert json.loads((tmp_path / "out" / "run.json").read_text())["recipe"]["steps"] == 3


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_resumed_training_ends_with_the_same_weights(tmp_path, monkeypatch):
    rows = [graded_answer("a", "4 * 9 = 36 , 36 - 2 = 34", True), graded_answer("a", "4 + 9 = 13", False)]
    recipe = replace(RECIPE, steps=6, pairs_from=3)

    def weights(out: Path) -> dict[str, torch.Tensor]:
        out.mkdir(exist_ok=True)
        model = verifier.load("tiny")
        verifier.fit(model, rows, recipe, out)
        return model.module.state_dict()

    expected = weights(tmp_path / "whole")
    monkeypatch.setattr(verifier, "CHECKPOINT_EVERY", 2)
    descend, steps = Muon.descend, iter(range(20))

    def stopped(*arguments: object) -> None:
        if next(steps) == 5:
            raise KeyboardInterrupt
        descend(*arguments)

    monkeypatch.setattr(Muon, "descend", stopped)
    with pytest.raises(KeyboardInterrupt):
        weights(tmp_path / "stopped")
    resumed = weights(tmp_path / "stopped")
    assert next(steps) == 5 + 1 + 2  # steps 5 and 6 again, after the checkpoint of the fourth
    assert all(torch.equal(resumed[name], tensor) for name, tensor in expected.items())
    with pytest.raises(UserError, match="learning_rate"):
        verifier.fit(verifier.load("tiny"), rows, replace(recipe, learning_rate=0.1), tmp_path / "stopped")


@pytest.mark.slow
def test_training_reverses_a_wrong_ranking(tmp_path):
    """A pair that the denoiser ranks wrong is ranked right after twenty steps on it."""
    rows = [graded_answer("a", "4 + 9 = 13", True), graded_answer("a", "4 * 9 = 36 , 36 - 2 = 34", False)]
    model = verifier.load("tiny")

    def gap() -> float:
        judge = DenoiserReward(model, scaled_thirds, "x", checks=True)
        right, wrong = judge.score([(Problem("a", row.task, row.prompt), row.answer) for row in rows])
        return right - wrong

    assert gap() < -1
    verifier.fit(model, rows, replace(RECIPE, steps=20), tmp_path)
    assert gap() > 1


def test_samples_without_right_and_wrong_answers_are_refused(tmp_path):
    with pytest.raises(UserError, match="no problem has a right and a wrong answer"):
        verifier.fit(micro_model(), [graded_answer("a", "4 + 9 = 13", False)], RECIPE, tmp_path)


def graded_answer(
    problem: str, answer: str, passed: bool, task: str = "countdown-3"
) -> verifier.GradedAnswer:
    return verifier.GradedAnswer(task, problem, "4 9 2 -> 34", answer, passed)


def test_groups_have_problems_with_right_and_wrong_answers_each_answer_once():
    rows = [
        graded_answer("both", "4 * 9 = 36", True),
        graded_answer("both", "4 * 9 = 36", True),
        graded_answer("both", "4 + 9 = 13", False),
        graded_answer("both", "4 - 2 = 2", False),
        graded_answer("all right", "4 * 9 = 36", True),
        graded_answer("all wrong", "4 + 9 = 13", False),
        graded_answer("other", "4 + 9 = 13", False, "words-2"),
    ]
    (group,) = verifier.problem_groups(micro_model(), rows)
    assert [(len(q.right), len(q.wrong)) for q in group.questions] == [(1, 2)]


def test_auc_is_within_a_question():
    """Scores that only separate easy from hard questions have an AUC of one half."""
    rows = [graded_answer(q, str(i), i < right) for q, right in (("easy", 3), ("hard", 1)) for i in range(4)]
    assert verifier.within_question_auc(rows, [5.0] * 4 + [1.0] * 4) == 0.5
    assert verifier.within_question_auc(rows, [1, 1, 1, 0, 9, 7, 8, 9]) == pytest.approx((1 + 2.5 / 3) / 2)
    assert verifier.within_question_auc(rows[:3], [1, 2, 3]) is None


def test_the_pair_loss_matches_its_formula():
    """Compare with the reward model's scores, one answer at a time; answers have different numbers of checks."""
    model = micro_model()
    pairs = [("4 * 9 = 36 , 36 - 2 = 34", "4 + 9 = 13"), ("9 - 4 = 5", "2 - 2 = 0 , 4 - 4 = 0")]
    judge = DenoiserReward(model, scaled_thirds, "x", batch_size=1, checks=True)
    asked = Problem("a", "countdown-3", "4 9 2 -> 34")
    scores = torch.tensor(
        [judge.score([(asked, text) for text in pair]) for pair in pairs], dtype=torch.float64
    )
    expected = -torch.sigmoid(scores[:, 0] - scores[:, 1]).log().mean()
    right, wrong = zip(*([answer_row(model, asked, text) for text in pair] for pair in pairs))
    assert verifier.pair_loss(model, "countdown-3", right, wrong).item() == pytest.approx(
        expected.item(), rel=1e-4
    )


def test_the_loss_of_right_answers_sums_checks_and_weighted_likelihoods(monkeypatch):
    """Two programs, all or none of them checked: -log q per token, from the terms of the reward model."""
    model = micro_model()
    shelf = generate({"programs-1": 40}, 5, model.tokenizer.get_vocab())[0]
    batch = Examples("programs-1", shelf.prompt, shelf.ids[:2].long())
    completions = [Completion.after(ids[: shelf.prompt], ids[shelf.prompt :]) for ids in batch.ids.tolist()]
    rows = [
        CompletionBatch.pad([completion], eos_ids=model.eos_ids, mask_id=model.mask_id)
        for completion in completions
    ]
    forbidden = torch.tensor(model.forbidden_ids)
    for checked, anchor in ((1.0, 1.0), (0.0, 0.5)):
        monkeypatch.setattr(verifier, "CHECKED", checked)
        found = verifier.right_loss(model, batch, 0.5, torch.Generator().manual_seed(3)).item()
        build = checks(model, "programs-1") if checked else scaled_thirds
        options = [build(row, range(1)).split(1) for row in rows]
        possible = []
        for queries in map(concatenate, product(*options)):
            terms = log_q(model.logits, queries, forbidden)
            possible.append(-anchor * terms.sum().item() / len(terms))
        assert min(abs(found - value) for value in possible) < 1e-5


def test_an_unknown_key_or_task_in_a_recipe_is_an_error(tmp_path):
    text = (Path(__file__).parents[2] / "recipes" / "verifier.yaml").read_text()
    (tmp_path / "a.yaml").write_text(text + "epochs: 3\n")
    with pytest.raises(UserError, match=r"unknown key in .* 'epochs'"):
        verifier.VerifierRecipe.read(tmp_path / "a.yaml")
    for wrong in (
        "learning_rate: 1e-3",
        "steps: many",
        "blocks: 50",
        "blocks: 0",
        "policies: {ar: 0}",
        "examples: {}",
    ):
        name = wrong.split(":")[0]
        kept = {key: value for key, value in yaml.safe_load(text).items() if key != name}
        (tmp_path / "c.yaml").write_text(f"{yaml.safe_dump(kept)}{wrong}\n")
        with pytest.raises(UserError, match=r"recipe verifier: .* must"):
            verifier.VerifierRecipe.read(tmp_path / "c.yaml")
    (tmp_path / "b.yaml").write_text(text.replace("countdown-3", "countdown-5"))
    with pytest.raises(UserError, match="did you mean"):
        verifier.VerifierRecipe.read(tmp_path / "b.yaml")


def test_the_shipped_verifier_is_small_and_separates_right_from_wrong():
    """Right answers to held-out problems score higher than the same answers with one wrong result.

    docs/selection.md has the AUC on samples.
    """
    folder = locate("verifier", embedded=("verifier",))
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 4_000_000
    model = rewards.load()
    right, wrong = [], []
    for number, example in enumerate(islice(SOURCES["countdown-3"].examples(77, "validation"), 200)):
        problem = Problem(str(number), "countdown-3", example.prompt)
        tokens = example.answer.split()
        at = 4 if number % 2 else 10  # the result of the first step, or of the last
        tokens[at] = str(int(tokens[at]) % 90 + 1 + number % 5)
        right.append((problem, example.answer))
        wrong.append((problem, " ".join(tokens)))
    better = [a > b for a, b in zip(model.score(right), model.score(wrong))]
    assert sum(better) / len(better) > 0.95
