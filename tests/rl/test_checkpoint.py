"""Checkpoints and adapters of a run on a micro model: their layout, their export, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.helpers import rl_toys
from tests.helpers.rl_toys import go, micro_model, same
from tests.helpers.tiny_checkpoints import MIXTURES, random_model
from twotemp.errors import UserError
from twotemp.folders import claim
from twotemp.models.checkpoint import read_tensors, save, weight_files
from twotemp.models.load import load
from twotemp.rl import checkpoint, results
from twotemp.rl.checkpoint import published_adapter, trainable


def saved(folder: Path, tied: bool = False) -> Path:
    """Return a folder with the untrained micro model."""
    return save(micro_model(tied=tied), folder / "untrained")


def test_the_adapter_has_peft_layout_and_the_merged_model_its_family_layout(tmp_path):
    trained = micro_model()
    go(tmp_path / "run", "3steps", model=trained, learning_rate=1e-2)
    ids = torch.arange(5, 25)[None]
    want = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        expected = trained.logits(ids, None, want)
        untrained = micro_model().logits(ids, None, want)
        assert (expected - untrained).abs().max() > 1e-2
        checkpoint.export(saved(tmp_path), tmp_path / "run", tmp_path / "model")
        merged = load(tmp_path / "model", device="cpu")
        torch.testing.assert_close(merged.logits(ids, None, want), expected, atol=1e-4, rtol=1e-4)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "llada"
    card = (tmp_path / "model" / "README.md").read_text()
    assert "after 3 steps of GRPO" in card
    assert '"learning_rate": 0.01' in card
    adapter = checkpoint.latest(tmp_path / "run") / "adapter"
    assert_adapts(micro_model().to_checkpoint_layout(micro_model().module.state_dict()), adapter, merged)


def own_code(weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A stand-in for a checkpoint's own code: a module of every matrix, under the checkpoint's names."""
    root = torch.nn.Module()
    for key, weight in weights.items():
        *path, name, kind = key.split(".")
        if weight.dim() == 2 and kind == "weight":
            module = root
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module.get_submodule(part)
            leaf = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            leaf.weight.data = weight.clone()
            module.add_module(name, leaf)
    return root


def assert_adapts(untrained: dict[str, torch.Tensor], adapter: Path, trained) -> None:
    """PEFT loads the adapter onto the checkpoint's own module names, and merged it is the trained model."""
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(own_code(untrained), str(adapter)).merge_and_unload().state_dict()
    expected = trained.to_checkpoint_layout(trained.module.state_dict())
    assert any((expected[key] - untrained[key]).abs().max() > 1e-3 for key in loaded)
    for key, weight in loaded.items():
        torch.testing.assert_close(weight, expected[key], atol=1e-5, rtol=1e-5)


def adapted(family: str, lora_rank: int = 2):
    """A model with a random adapter: the weights before, the model, its network, the adapter."""
    model = random_model(family)
    untrained = {
        key: weight.clone() for key, weight in model.to_checkpoint_layout(model.module.state_dict()).items()
    }
    network = trainable(model, rl_toys.settings(lora_rank=lora_rank))
    weights = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}
    for tensor in weights.values():
        torch.nn.init.normal_(tensor, std=0.1, generator=torch.Generator().manual_seed(tensor.numel()))
    return untrained, model, network, weights


@pytest.mark.parametrize("family", ["llada", "Dream", "sdar"])
def test_an_adapter_has_the_names_of_the_checkpoints_own_code(family, tmp_path):
    untrained, model, network, weights = adapted(family)
    adapter = published_adapter(model, network.peft_config["default"], weights)
    folder = checkpoint.write(tmp_path, checkpoint.State(), weights, {}, adapter) / "adapter"
    assert same(checkpoint.read(tmp_path)[1], weights)
    model.module = network.merge_and_unload()
    assert_adapts(untrained, folder, model)


@pytest.mark.parametrize("family", MIXTURES)
def test_a_mixture_has_no_adapter_for_its_own_code(family):
    """The native class stacks its experts, whose updates have no modules there."""
    _, model, network, weights = adapted(family)
    assert published_adapter(model, network.peft_config["default"], weights) is None


@pytest.mark.parametrize("family", ["llada", "llada2_moe", "sdar_moe"])
@pytest.mark.parametrize("lora_rank", [2, 0])
def test_the_export_is_what_peft_merges(family, lora_rank, tmp_path):
    untrained, model, network, weights = adapted(family, lora_rank)
    source = tmp_path / "untrained"
    save(random_model(family), source)
    described = {"task": "t", "grader": "g", "rewards": {}}
    described["settings"] = rl_toys.settings(lora_rank=lora_rank).to_dict()
    claim(tmp_path / "run", "grpo", described)
    checkpoint.write(tmp_path / "run", checkpoint.State(3), weights, {}, None)
    if lora_rank:
        model.module = network.merge_and_unload()
    expected = model.to_checkpoint_layout(model.module.state_dict())
    assert any((expected[key] - untrained[key]).abs().max() > 1e-2 for key in expected)
    files = weight_files(checkpoint.export(source, tmp_path / "run", tmp_path / "model"))
    found = dict(read_tensors(files))
    assert found.keys() == untrained.keys()
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, expected[key])


def test_export_ignores_the_adapter_config(tmp_path):
    """Old versions of PEFT import any module that it names; ours is made from the run's settings."""
    trained = micro_model()
    go(tmp_path / "run", "2steps", model=trained, learning_rate=1e-2)
    config = checkpoint.latest(tmp_path / "run") / "adapter" / "adapter_config.json"
    config.write_text(
        json.dumps({"peft_type": "LORA", "r": 4, "megatron_config": {"a": 1}, "megatron_core": "antigravity"})
    )
    checkpoint.export(saved(tmp_path), tmp_path / "run", tmp_path / "model")
    ids = torch.arange(5, 25)[None]
    want = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        exported = load(tmp_path / "model", device="cpu").logits(ids, None, want)
        torch.testing.assert_close(exported, trained.logits(ids, None, want), atol=1e-4, rtol=1e-4)


def test_weights_of_another_model_are_not_exported(tmp_path):
    go(tmp_path / "run", "1step")
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    described["settings"]["lora_rank"] = 8
    (tmp_path / "run" / "run.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match="holds weights of another model"):
        checkpoint.export(saved(tmp_path), tmp_path / "run", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("tied", [False, True])
def test_fully_trained_weights_are_exported(tmp_path, tied):
    trained = micro_model(tied=tied)
    go(tmp_path / "run", "2steps", model=trained, lora_rank=0)
    checkpoint.export(saved(tmp_path, tied), tmp_path / "run", tmp_path / "model")
    ids = torch.arange(5, 25)[None]
    want = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        exported = load(tmp_path / "model", device="cpu").logits(ids, None, want)
        torch.testing.assert_close(exported, trained.logits(ids, None, want))


def test_checkpoints_are_data_only_and_old_ones_are_removed(tmp_path):
    go(tmp_path, "6steps", save_every=1)
    folders = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert folders == ["step-00000005", "step-00000006"]
    kinds = {path.suffix for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json"}


def test_a_missing_checkpoint_is_an_error(tmp_path):
    import shutil

    go(tmp_path, "2steps")
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        go(tmp_path, "4steps")
    assert len(results.read_steps(tmp_path)) == 2  # the record of what was done is not touched


def test_a_damaged_checkpoint_is_named(tmp_path):
    go(tmp_path, "2steps")
    damaged = checkpoint.latest(tmp_path) / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(UserError, match="step-00000002"):
        go(tmp_path, "4steps")
