"""Sequence classifiers as reward models: AceMath's layout, scores equal to the model called directly, errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from recipes import tokenizer as words
from tests.helpers.toy_task import micro_model
from twotemp import rewards
from twotemp.errors import UserError
from twotemp.models.checkpoint import save
from twotemp.records import Problem
from twotemp.rewards.classifier import SYSTEM, SequenceClassifier

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


def test_the_score_is_read_at_the_last_token_before_the_padding(tmp_path):
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
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda batch: rows.append(len(batch)) or logits(batch))
    scores = model.score(ITEMS * 3)
    assert sum(rows) == 4
    assert scores[1] == scores[4] == scores[6]


def test_an_encoder_can_be_a_reward_model(tmp_path):
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
    given = SequenceClassifier(tmp_path / "rm", system="1 2 3")
    assert (
        given.encode("4", "5")
        == other._tokenizer(
            "system 1 2 3 <|eot_id|> user 4 <|eot_id|> assistant 5 <|eot_id|> ", add_special_tokens=False
        )["input_ids"]
    )


def test_the_name_changes_with_weights_and_system_prompt(tmp_path):
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


# --- errors -------------------------------------------------------------------------------------------------


def test_nan_is_an_error_that_names_the_question(tmp_path):
    folder = acemath(tmp_path / "rm")
    module = Qwen2ForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        module.score.weight[0, 0] = torch.nan
    module.save_pretrained(folder)
    with pytest.raises(UserError, match=r"'rm \w+' gave nan to an answer to '.*check its weights"):
        SequenceClassifier(folder).score(ITEMS)


def test_a_language_model_is_refused(tmp_path):
    save(micro_model(), tmp_path / "lm")
    with pytest.raises(UserError, match=r"not a reward model.*LLaDAModelLM.*sequence classifier"):
        SequenceClassifier(tmp_path / "lm")


def test_several_outputs_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"one output.*score.weight"):
        SequenceClassifier(acemath(tmp_path / "rm", labels=3)).score(ITEMS)


def test_a_missing_head_is_an_error(tmp_path):
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


def test_an_unknown_source_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"not an embedded model \(verifier\)"):
        rewards.load("verifer")
