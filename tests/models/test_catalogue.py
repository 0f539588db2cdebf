"""What is said about models before they are loaded: the table, the families, `twotemp doctor --model`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.helpers.tiny_checkpoints import CONFIGS, LLADA_8B, random_model
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.models import catalogue
from twotemp.models.checkpoint import INDEX, save
from twotemp.models.families import FAMILIES, family
from twotemp.models.load import load
from twotemp.models.summary import summarize

ROOT = Path(__file__).parents[2]


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    between = text.split("<!-- models -->")[1].strip()
    assert between == catalogue.table(), (
        "put the output of twotemp.models.catalogue.table() between the marks"
    )


def test_every_family_is_compared_with_its_own_code() -> None:
    """Its fixture has what that code computed, and is what all other tests of families run on.

    DiffusionGemma's code is in transformers, so that it runs in tests/models/test_diffusion_gemma.py. The family of
    `tiny-uniform` is ours.
    """
    others = ("diffusion_gemma", "llada-uniform")
    assert {FAMILIES[name] for name in [*CONFIGS, *others]} == set(FAMILIES.values())
    assert {FAMILIES[model.family] for model in catalogue.MODELS} <= set(FAMILIES.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_family_is_known_by_architecture_before_model_type(name: str) -> None:
    assert family(CONFIGS[name]) is FAMILIES[name]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "wedlm", "architectures": ["WeDLMForCausalLM"]}, "WeDLM: .* verified"),
        ({"model_type": "qwen3", "architectures": ["IDLMForCausalLM"]}, "I-DLM: .* verified"),
        (
            {"model_type": "qwen3", "architectures": ["EfficientDLM"]},
            "modeling_edlm.py .* can become a family",
        ),
        ({"model_type": "edlm"}, "Efficient-DLM: its authors' code"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "unknown model family"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "unknown model family"),
    ],
)
def test_other_processes_are_refused_by_name(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        family(config)


def test_dream_reasoner_is_refused() -> None:
    with pytest.raises(UserError, match="DreamReasoner"):
        family(CONFIGS["Dream"]).native_config({**CONFIGS["Dream"], "block_size": 32})


def test_the_kind_of_an_a2d_model_must_be_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(random_model("a2d-qwen3"), tmp_path / "m")
    assert load(folder).block_size is None  # as it was saved
    config = json.loads((folder / "config.json").read_text())
    del config["block_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"block size \(0: bidirectional\)"):
        load(folder)
    assert load(folder, block_size=0).block_size is None
    assert load(save(load(folder, block_size=4), tmp_path / "n")).block_size == 4
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    assert load("dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1").block_size == 32
    assert load("dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1").block_size is None


# Before anything is fetched.


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The hub has LLaDA-8B; what is asked of it."""
    asked: list[list[str]] = []
    (tmp_path / "config.json").write_text(json.dumps(LLADA_8B))
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 16_031_162_368}, "weight_map": {}}))

    def snapshot_download(name: str, *, allow_patterns: list[str], **options: object) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_a_summary_downloads_no_weights(published: list[list[str]]) -> None:
    found = summarize("GSAI-ML/LLaDA-8B-Instruct")
    assert found.parameters == 8_015_581_184
    assert found.weights == found.missing == 16_031_162_368
    assert found.dtype == torch.bfloat16  # by its size: the published config.json does not say
    assert found.about == "mask id 126336, bidirectional"
    assert found.int8 is not None
    assert 8.9e9 < found.int8 < 9.2e9  # the embedding and the head keep two bytes
    assert len(published) == 1
    assert "*.safetensors" not in published[0]


def doctor(*arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    ran = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    return ran.exit_code, {row["check"]: (row["state"], row["detail"]) for row in rows}


def test_doctor_shows_what_a_model_is_and_whether_it_fits(
    published: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twotemp.models.weight_loading.free_bytes", lambda device: 12_000_000_000)
    code, found = doctor("--model", "GSAI-ML/LLaDA-8B-Instruct")
    assert code == 0
    assert found["model"] == ("ok", "llada, 8.02 billion parameters")
    assert "logits, tokens" in found["compared"][1]
    assert found["download"] == ("missing", "16.0 GB of 16.0 GB are not on this machine yet")
    state, memory = found["memory"]
    assert state == "ok"
    assert memory.startswith("fits only in int8 (quantize): 12.0 GB free on ")
    monkeypatch.setattr("twotemp.models.weight_loading.free_bytes", lambda device: 1_000_000_000)
    assert doctor("--model", "GSAI-ML/LLaDA-8B-Instruct")[1]["memory"][0] == "missing"


def test_doctor_on_folders(tmp_path: Path) -> None:
    code, found = doctor("--model", str(save(random_model("llada"), tmp_path / "m")))
    assert code == 0
    assert {state for state, _ in found.values()} == {"ok"}
    folder = save(random_model("sdar"), tmp_path / "n")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "mask_token_id"}))
    state, detail = doctor("--model", str(folder))[1]["tokens"]
    assert state == "missing"
    assert "mask_id=" in detail
    code, found = doctor("--model", "GSAI-ML/LLaDA-8B-Instruct")  # tests run with the hub offline
    assert code == 1
    assert "cannot be reached" in found["model"][1]
    assert found["published"] == ("ok", "llada, mask id 126336, shifted: no, bidirectional")
    code, found = doctor("--model", "./nope")
    assert code == 1
    assert found["model"][0] == "broken"


def test_doctor_prints_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is not lost, nor waited for, when a later check hangs or dies."""

    def dies() -> None:
        raise RuntimeError("torch")

    monkeypatch.setattr("twotemp.cli.doctor._torch", dies)
    ran = CliRunner().invoke(app, ["doctor"])
    assert isinstance(ran.exception, RuntimeError)
    assert ran.stdout.splitlines()[0].split()[:2] == ["ok", "python"]


@pytest.mark.parametrize(
    ("hub_id", "reason"),
    [
        ("inclusionAI/LLaDA2.2-flash", "routes whole blocks"),
        ("UT-IFML/dQwen3.5-0.8B-Base", "DeltaNet"),
        ("nvidia/Nemotron-Labs-Diffusion-8B", "read causally"),
        ("GSAI-ML/LLaDA-MoE-v2-30B-A3B-Base", "its router"),
    ],
)
def test_models_that_only_resemble_a_family_are_refused_by_name(hub_id: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load(hub_id)
