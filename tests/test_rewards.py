"""Reward models: the AceMath layout from a folder, scores equal to the model called directly, and what goes wrong."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from tests.toy_task import micro_model
from twotemp import rewards, tasks
from twotemp.errors import UserError
from twotemp.models.checkpoint import save
from twotemp.models.load import locate
from twotemp.records import Problem
from twotemp.rewards.classifier import SYSTEM, SequenceClassifier
from twotemp.rewards.likelihood import (
    Canvas,
    Likelihood,
    all_and_thirds,
    canvas_of,
    checks,
    likelihood_and_checks,
    log_q,
)
from twotemp.tasks import SOURCES
from twotemp.tasks.generated import split_of
from twotemp.training import tokenizer as words
from twotemp.training import verifier
from twotemp.training.corpus import Batch, generate
from twotemp.training.muon import Muon

TEMPLATE = (  # Qwen2's: turns between <|im_start|> and <|im_end|>
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} <|eot_id|> {% endfor %}"
)
ITEMS = [
    (Problem("a", "countdown-3", "4 9 2 -> 34"), "4 * 9 = 36 , 36 - 2 = 34"),
    (Problem("b", "countdown-3", "1 2 3 -> 6"), "1 + 2 = 3"),
    (Problem("c", "countdown-3", "1 2 3 -> 6"), ""),
    (
        Problem("d", "words-2", "pen 9 cup 12 . Ann buys 2 for 21 . 2 of her cheapest cost ?"),
        "9 + 12 = 21 ; " * 4,
    ),
    (Problem("b", "countdown-3", "1 2 3 -> 6"), "1 + 2 = 3"),
]


def acemath(folder: Path, pad: int | None = 1, labels: int = 1, template: str | None = TEMPLATE) -> Path:
    """A random reward model in the layout of AceMath-7B-RM, every weight of which matters."""
    tokenizer = words.build()
    tokenizer.chat_template = template
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=pad,
    )
    config.num_labels = labels
    module = Qwen2ForSequenceClassification(config)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            random = torch.randn(weight.shape, generator=noise)
            weight.copy_(1 + 0.2 * random if "norm" in name else 0.3 * random)
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def directly(folder: Path, items) -> list[float]:
    """As AceMath's model card does it: one conversation, no padding, no mask."""
    module = Qwen2ForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = words.build()
    tokenizer.chat_template = TEMPLATE
    found = []
    for problem, answer in items:
        chat = [{"role": "user", "content": problem.prompt}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
        ids = tokenizer.encode(text, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            found.append(float(module(input_ids=ids)[0][0]))
    return found


@pytest.mark.parametrize("pad", [1, None, 3], ids=["pad", "no pad", "pad ends every text"])
@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_scores_are_those_of_the_model_called_directly(tmp_path, pad, batch_size):
    """AceMath's config names no padding token; others pad with the token their texts end with (here <|eot_id|>)."""
    folder = acemath(tmp_path / "rm", pad)
    found = rewards.load(str(folder), batch_size=batch_size).score(ITEMS)
    expected = directly(folder, ITEMS)
    assert len(set(expected)) == 4
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=2e-5, rtol=1e-4)


def test_the_score_is_read_at_the_last_real_token_whatever_stands_beside_it(tmp_path):
    model = SequenceClassifier(acemath(tmp_path / "rm", None))
    rows = [model.encode(p.prompt, a) for p, a in ITEMS[:4]]
    alone = torch.cat([model.logits([row]) for row in rows])
    torch.testing.assert_close(model.logits(rows), alone, atol=2e-5, rtol=1e-4)
    # The test can fail: padding that counts as text gives another number.
    ends = {row[-1] for row in rows}
    assert len(ends) == 1
    module, wrong = model._module, [row + [7] * (len(rows[3]) - len(row)) for row in rows]
    module.config.pad_token_id = 0
    with torch.no_grad():
        counted = module(input_ids=torch.tensor(wrong)).logits[:, 0]
    assert not torch.allclose(counted, alone, atol=1e-2)


def test_equal_answers_are_computed_once(tmp_path, monkeypatch):
    model = SequenceClassifier(acemath(tmp_path / "rm"))
    rows: list[int] = []
    honest = model.logits
    monkeypatch.setattr(model, "logits", lambda some: rows.append(len(some)) or honest(some))
    found = model.score(ITEMS * 3)
    assert sum(rows) == 4
    assert found[1] == found[4] == found[6]


def test_an_encoder_is_a_reward_model_too(tmp_path):
    tokenizer = words.build()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, pad_token_id=1,
    )  # fmt: skip
    config.num_labels = 1
    torch.manual_seed(0)
    module = BertForSequenceClassification(config).eval()
    module.save_pretrained(tmp_path / "rm")
    tokenizer.save_pretrained(tmp_path / "rm")
    model = SequenceClassifier(tmp_path / "rm")
    with torch.no_grad():
        expected = [
            float(module(input_ids=torch.tensor([model.encode(p.prompt, a)])).logits) for p, a in ITEMS
        ]
    torch.testing.assert_close(torch.tensor(model.score(ITEMS)), torch.tensor(expected), atol=1e-5, rtol=1e-4)


# --- names and system prompts ---------------------------------------------------------------------------------


def test_acemath_gets_the_system_prompt_it_was_trained_with(tmp_path):
    model = SequenceClassifier(acemath(tmp_path / "AceMath-7B-RM"))
    assert model.system == SYSTEM["AceMath-7B-RM"]
    with_system = model.encode("1 2 -> 3", "1 + 2 = 3")
    other = SequenceClassifier(acemath(tmp_path / "rm"))
    assert len(with_system) > len(other.encode("1 2 -> 3", "1 + 2 = 3"))
    said = SequenceClassifier(tmp_path / "rm", system="1 2 3")
    assert (
        said.encode("4", "5")
        == other._tokenizer(
            "system 1 2 3 <|eot_id|> user 4 <|eot_id|> assistant 5 <|eot_id|> ", add_special_tokens=False
        )["input_ids"]
    )


def test_the_name_changes_with_whatever_changes_scores(tmp_path):
    folder = acemath(tmp_path / "rm")
    name = SequenceClassifier(folder).name
    assert name.startswith("rm ")
    copied = shutil.copytree(folder, tmp_path / "elsewhere" / "rm")
    assert SequenceClassifier(copied).name == name
    assert SequenceClassifier(folder, system="think").name != name
    module = Qwen2ForSequenceClassification.from_pretrained(copied)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(1.01)
    module.save_pretrained(copied)
    assert SequenceClassifier(copied).name != name


def test_weights_are_read_only_when_something_is_scored(tmp_path, monkeypatch):
    model = SequenceClassifier(acemath(tmp_path / "rm"))
    assert "_module" not in vars(model)
    model.score(ITEMS[:1])
    assert "_module" in vars(model)


# --- what goes wrong ------------------------------------------------------------------------------------------


def test_nan_is_an_error_that_names_the_question(tmp_path):
    folder = acemath(tmp_path / "rm")
    module = Qwen2ForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        module.score.weight[0, 0] = torch.nan
    module.save_pretrained(folder)
    with pytest.raises(UserError, match=r"'rm \w+' gave nan to an answer to '.*check its weights"):
        SequenceClassifier(folder).score(ITEMS)


def test_a_language_model_is_no_reward_model(tmp_path):
    save(micro_model(), tmp_path / "lm")
    with pytest.raises(UserError, match=r"not a reward model.*LLaDAModelLM.*sequence classifier"):
        SequenceClassifier(tmp_path / "lm")


def test_several_outputs_are_no_reward(tmp_path):
    with pytest.raises(UserError, match=r"one output.*score.weight"):
        SequenceClassifier(acemath(tmp_path / "rm", labels=3)).score(ITEMS)


def test_a_missing_head_is_not_made_up(tmp_path):
    folder = acemath(tmp_path / "rm")
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"missing score.weight.*saved with its head"):
        SequenceClassifier(folder).score(ITEMS)


def test_pickled_weights_are_refused(tmp_path):
    folder = acemath(tmp_path / "rm")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="only as pickle"):
        SequenceClassifier(folder)


def test_remote_code_is_not_run(tmp_path):
    folder = acemath(tmp_path / "rm")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "evil.Model"}
    config["model_type"] = "evil"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="cannot be loaded as a reward model"):
        SequenceClassifier(folder).score(ITEMS)
    assert not (tmp_path / "ran").exists()


def test_no_chat_template_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no tokenizer with a chat template"):
        SequenceClassifier(acemath(tmp_path / "rm", template=None)).score(ITEMS)


def test_a_text_longer_than_the_model_reads_is_an_error(tmp_path):
    model = SequenceClassifier(acemath(tmp_path / "rm"))
    with pytest.raises(UserError, match=r"tokens is longer than .* can read \(128\)"):
        model.score([(ITEMS[0][0], "1 " * 200)])


def test_a_source_that_is_nothing_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"not an embedded model \(verifier\)"):
        rewards.load("verifer")


# --- the embedded verifier ------------------------------------------------------------------------------------

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
            found = SOURCES[task].distinct(RECIPE.seed, split, 50)
            assert {split_of(f"{task} {example.key}") for example in found} == {split}
            held_out = {problem.prompt for problem in tasks.get(task).problems().problems}
            assert not held_out & {example.prompt for example in found}
    assert (
        verifier.VerifierRecipe.read(Path(__file__).parents[1] / "recipes" / "verifier.yaml").model == "tiny"
    )


def test_training_gives_a_folder_that_judges(tmp_path):
    folder = verifier.train(RECIPE, tmp_path / "out")
    with pytest.raises(UserError, match=r"not a reward model.*`likelihood:` and its name"):
        rewards.load(str(folder))
    trained, untrained = (rewards.load(f"verifier:{source}") for source in (folder, "tiny"))
    assert all(a != b for a, b in zip(trained.score(ITEMS[:2]), untrained.score(ITEMS[:2]), strict=True))
    report = json.loads((tmp_path / "out" / "report.json").read_text())["validation"]
    assert report["countdown-3"]["samples"] == 3 * 4
    assert {"verifier", "untrained", "pll"} < set(report["words-2"])
    rows = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 14 * 4


def test_training_again_uses_the_samples_it_kept_and_gives_the_same_weights(tmp_path, monkeypatch):
    first = (verifier.train(RECIPE, tmp_path / "out") / "model.safetensors").read_bytes()

    def drawn_again(*_: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(verifier, "sampled", drawn_again)
    with pytest.raises(UserError, match="has a verifier; remove"):
        verifier.train(RECIPE, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "model")
    assert (verifier.train(RECIPE, tmp_path / "out") / "model.safetensors").read_bytes() == first


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    rows = [judged("a", "4 * 9 = 36 , 36 - 2 = 34", True), judged("a", "4 + 9 = 13", False)]
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
    found = weights(tmp_path / "stopped")
    assert next(steps) == 5 + 1 + 2  # steps 5 and 6 again, after the checkpoint of the fourth
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    with pytest.raises(UserError, match="learning_rate"):
        verifier.fit(verifier.load("tiny"), rows, replace(recipe, learning_rate=0.1), tmp_path / "stopped")


def test_training_teaches_what_it_is_shown(tmp_path):
    """A pair that the denoiser ranks wrong, shown twenty times, is ranked right."""
    rows = [judged("a", "4 + 9 = 13", True), judged("a", "4 * 9 = 36 , 36 - 2 = 34", False)]
    model = verifier.load("tiny")

    def gap() -> float:
        judge = Likelihood(model, likelihood_and_checks(model), "x")
        right, wrong = judge.score([(Problem("a", row.task, row.prompt), row.answer) for row in rows])
        return right - wrong

    assert gap() < -1
    verifier.fit(model, rows, replace(RECIPE, steps=20), tmp_path)
    assert gap() > 1


def test_without_a_right_and_a_wrong_answer_there_is_nothing_to_learn(tmp_path):
    with pytest.raises(UserError, match="no problem has a right and a wrong answer"):
        verifier.fit(micro_model(), [judged("a", "4 + 9 = 13", False)], RECIPE, tmp_path)


def judged(problem: str, answer: str, passed: bool, task: str = "countdown-3") -> verifier.Judged:
    return verifier.Judged(task, problem, "4 9 2 -> 34", answer, passed)


def test_only_problems_with_right_and_wrong_answers_teach_and_each_answer_once():
    rows = [
        judged("both", "4 * 9 = 36", True),
        judged("both", "4 * 9 = 36", True),
        judged("both", "4 + 9 = 13", False),
        judged("both", "4 - 2 = 2", False),
        judged("all right", "4 * 9 = 36", True),
        judged("all wrong", "4 + 9 = 13", False),
        judged("other", "4 + 9 = 13", False, "words-2"),
    ]
    (shelf,) = verifier.shelves(micro_model(), rows)
    assert [(len(q.right), len(q.wrong)) for q in shelf.questions] == [(1, 2)]


def test_auc_is_within_a_question():
    """Scores that only tell an easy question from a hard one are worth nothing."""
    rows = [judged(q, str(i), i < right) for q, right in (("easy", 3), ("hard", 1)) for i in range(4)]
    assert verifier.within_question_auc(rows, [5.0] * 4 + [1.0] * 4) == 0.5
    assert verifier.within_question_auc(rows, [1, 1, 1, 0, 9, 7, 8, 9]) == pytest.approx((1 + 2.5 / 3) / 2)
    assert verifier.within_question_auc(rows[:3], [1, 2, 3]) is None


def test_the_pair_loss_is_its_formula():
    """Against the scores of the judge itself, one answer at a time; answers have different numbers of checks."""
    model = micro_model()
    pairs = [("4 * 9 = 36 , 36 - 2 = 34", "4 + 9 = 13"), ("9 - 4 = 5", "2 - 2 = 0 , 4 - 4 = 0")]
    judge = Likelihood(model, likelihood_and_checks(model), "x", batch_size=1)
    asked = Problem("a", "countdown-3", "4 9 2 -> 34")
    scores = torch.tensor(
        [judge.score([(asked, text) for text in pair]) for pair in pairs], dtype=torch.float64
    )
    expected = -torch.sigmoid(scores[:, 0] - scores[:, 1]).log().mean()
    canvases = [[canvas_of(model, asked.task, asked.prompt, text) for text in pair] for pair in pairs]
    right, wrong = zip(*canvases)
    assert verifier.pair_loss(model, right, wrong).item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_loss_of_right_answers_is_that_of_checks_and_a_share_of_the_likelihood(monkeypatch):
    """Two examples of programs, all or none of them checked: -log q per token, by the judge's own terms."""
    model = micro_model()
    shelf = generate({"programs-1": 40}, 5, model.tokenizer.get_vocab())[0]
    batch = Batch("programs-1", shelf.prompt, shelf.ids[:2].long())
    canvases = [Canvas("programs-1", ids, shelf.prompt, len(ids)) for ids in batch.ids.tolist()]
    for checked, anchor in ((1.0, 1.0), (0.0, 0.5)):
        monkeypatch.setattr(verifier, "CHECKED", checked)
        found = verifier.right_loss(model, batch, 0.5, torch.Generator().manual_seed(3)).item()
        options = [checks(model, one) if checked else all_and_thirds(one) for one in canvases]
        possible = []
        for views in product(*options):
            tokens = sum(len(view.asked) for view in views)
            possible.append(-anchor * log_q(model, batch.ids, views).sum().item() / tokens)
        assert min(abs(found - value) for value in possible) < 1e-5


def test_an_unknown_key_or_task_in_a_recipe_is_an_error(tmp_path):
    text = (Path(__file__).parents[1] / "recipes" / "verifier.yaml").read_text()
    (tmp_path / "a.yaml").write_text(text + "epochs: 3\n")
    with pytest.raises(UserError, match=r"unknown key in .* 'epochs'"):
        verifier.VerifierRecipe.read(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text(text.replace("countdown-3", "countdown-5"))
    with pytest.raises(UserError, match="did you mean"):
        verifier.VerifierRecipe.read(tmp_path / "b.yaml")


def test_the_shipped_verifier_is_small_and_tells_right_from_wrong():
    """Right answers to held-out problems against the same with one wrong result (how it does on samples:
    docs/selection.md)."""
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
