"""Models that fit: memory of the host while loading, int8 weights, several devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.large_models import Operations
from tests.helpers.tiny_checkpoints import CONFIGS, MASK, random_model
from twotemp.engine import run
from twotemp.engine.observers import drift
from twotemp.errors import UserError
from twotemp.models import quantization
from twotemp.models.checkpoint import INDEX, fingerprint, save
from twotemp.models.families import FAMILIES
from twotemp.models.load import load
from twotemp.models.quantization import PACKAGES, quantize_layer, quantized_layers
from twotemp.models.weight_loading import weight_bytes
from twotemp.policies import policy
from twotemp.records import Request

# The published layouts, scaled down.
LARGER: dict[str, dict[str, Any]] = {
    "llada": {
        **CONFIGS["llada"],
        "d_model": 512,
        "n_layers": 16,
        "n_heads": 8,
        "n_kv_heads": 8,
        "mlp_hidden_size": 1536,
        "embedding_size": 4096,
    },
    "llada2_moe": {
        **CONFIGS["llada2_moe"],
        "mask_token_id": MASK,
        "block_size": 4,
        "vocab_size": 4096,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "moe_intermediate_size": 256,
        "num_experts": 16,
    },
}
MEASURE = """
import sys, json, torch
from twotemp.models.load import load
options = json.loads(sys.argv[2])
load("tiny", quantize=options.get("quantize"))  # whatever is imported or allocated once
def field(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024
before = field("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
model = load(sys.argv[1], **options)
size = sum(t.numel() * t.element_size() for t in model.tensors().values())
print(json.dumps({"peak": field("VmHWM") - before, "size": size}))
"""


def write_shards(model_type: str, folder: Path, shards: int) -> None:
    """A checkpoint whose tensors are dealt out over several files."""
    folder.mkdir()
    config = LARGER[model_type]
    (folder / "config.json").write_text(json.dumps(config))
    family = FAMILIES[model_type]
    native = family.native_config(config)
    with torch.device("meta"):
        layout = family.layout(family.native(native).state_dict(), native)
    shapes = {key: (sum(p.shape[0] for p in parts), *parts[0].shape[1:]) for key, parts in layout.items()}
    names = {key: f"model-{number % shards}.safetensors" for number, key in enumerate(shapes)}
    for name in set(names.values()):
        save_file({key: torch.full(shapes[key], 0.01) for key in shapes if names[key] == name}, folder / name)
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))


def measure(folder: Path, **options: str) -> dict[str, int]:
    """Bytes: the model's size, and the most that was taken while it was loaded."""
    # The weights of real models are large enough for malloc to give them back; here it has to be told.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-W", "ignore", "-c", MEASURE, str(folder), json.dumps(options)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from /proc")
@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llada", "llada2_moe"])
def test_the_host_holds_the_model_and_one_shard(model_type: str, tmp_path: Path) -> None:
    """The experts of a mixture are stacked in place: no second copy of them, nor of anything else."""
    write_shards(model_type, tmp_path / "m", shards=12)
    found = measure(tmp_path / "m")
    assert found["size"] > 100e6
    assert found["peak"] < 1.2 * found["size"]


def test_quantized_loading_needs_its_extra_and_a_kind_that_exists() -> None:
    with pytest.raises(UserError, match="did you mean 'int8'"):
        load("tiny", quantize="int9")
    try:
        import torchao  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match=r"pip install 'twotemp\[quantize\]'"):
            load("tiny", quantize="int8")


@pytest.mark.parametrize(
    ("kind", "share", "kl", "changed"),
    [("int8", 0.4, 0.01, 0.05), ("nf4", 0.5, 0.2, 0.2)],
    ids=["int8", "nf4"],
)
def test_quantized_weights(kind: str, share: float, kl: float, changed: float, tmp_path: Path) -> None:
    """They take a share of the memory and change some tokens; they cannot be saved."""
    pytest.importorskip(PACKAGES[kind], reason="needs the extra: pip install 'twotemp[quantize]'")
    plain, small = load("tiny"), load("tiny", quantize=kind)
    size = [sum(t.numel() * t.element_size() for t in model.tensors().values()) for model in (plain, small)]
    assert size[1] < share * size[0]
    assert size[1] == pytest.approx(weight_bytes(plain.module, kind), rel=0.08)
    wanted = [Request(str(i), (5, 6, 7 + i), policy("ct"), length=24) for i in range(8)]
    found = drift(small, wanted, against=plain)
    assert found.predictions > 0
    assert 0 < found.kl_mean < kl
    assert found.changed_tokens < changed
    assert fingerprint(plain) != fingerprint(small) == fingerprint(load("tiny", quantize=kind))
    with pytest.raises(UserError, match="quantized and cannot be saved"):
        save(small, tmp_path / "copy")
    folder = save(random_model("sdar_moe"), tmp_path / "moe")
    with pytest.raises(UserError, match="experts"):
        load(folder, quantize=kind)


def test_int4_needs_an_nvidia_gpu() -> None:
    pytest.importorskip("torchao", reason="needs the extra: pip install 'twotemp[quantize]'")
    with pytest.raises(UserError, match="NVIDIA"):
        load("tiny", quantize="int4", device="cpu")


@pytest.mark.parametrize("bias", [False, True])
def test_an_nf4_layer_computes_with_the_weights_that_its_numbers_stand_for(bias: bool) -> None:
    """The product, its gradient and the error of one weight: half a step of the scale's 16 values at most."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="needs the extra [quantize]")
    layer = torch.nn.Linear(128, 96, bias=bias)
    original = layer.weight.detach().clone()
    quantize_layer(layer, "nf4", torch.device("cpu"))
    weight: Any = layer.weight
    assert weight.dtype == torch.uint8
    assert weight.numel() == original.numel() // 2
    values = functional.dequantize_4bit(weight.data, weight.quant_state)
    largest = original.reshape(-1, 64).abs().amax(1, keepdim=True)
    step = weight.quant_state.code.diff().max() / 2
    assert ((values - original).reshape(-1, 64).abs() <= 1.05 * step * largest).all()
    inputs = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(0), requires_grad=True)
    product = layer(inputs)
    torch.testing.assert_close(product, torch.nn.functional.linear(inputs, values, layer.bias))
    product.sum().backward()
    torch.testing.assert_close(inputs.grad, values.sum(0).expand_as(inputs))


def test_nf4_leaves_layers_alone_whose_rows_are_no_whole_blocks() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(128, 96), torch.nn.Linear(96, 128))
    assert quantized_layers(module, "nf4") == [module[0]]
    assert quantized_layers(module, "int8") == [*module]


def test_int8_without_a_mask() -> None:
    """Every position is predicted nearly as by the exact weights, and a sample does not depend on its batch."""
    pytest.importorskip("torchao", reason="needs the extra: pip install 'twotemp[quantize]'")
    plain, small = load("tiny-uniform"), load("tiny-uniform", quantize="int8")
    ids = torch.randint(5, plain.vocab_size, (8, 30), generator=torch.Generator().manual_seed(0))
    exact, ours = (
        m.logits(ids, None, torch.ones_like(ids, dtype=torch.bool)).log_softmax(-1) for m in (plain, small)
    )
    assert 0 < float((exact.exp() * (exact - ours)).sum(-1).mean()) < 0.01
    wanted = [Request(str(i), (5, 6, 7 + i), policy("tct", steps=6), length=12) for i in range(3)]
    alone = [sample.tokens for request in wanted for sample in run(small, [request])]
    together = {sample.request: sample.tokens for sample in run(small, wanted)}
    assert alone == [together[request.id] for request in wanted]


@pytest.mark.parametrize("bias", [False, True])
def test_a_quantized_layer_in_slices_is_the_same_layer(monkeypatch, bias: bool) -> None:
    pytest.importorskip("torchao", reason="needs the extra: pip install 'twotemp[quantize]'")
    layer = torch.nn.Linear(48, 150, bias=bias)
    quantize_layer(layer, "int8", torch.device("cpu"))
    inputs = torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = layer(inputs)
        monkeypatch.setattr(quantization, "_SLICE_BYTES", 0)
        with Operations() as operations:
            sliced = layer(inputs)
    assert operations.counts["aten.cat.default"] == 1
    torch.testing.assert_close(sliced, whole)
    with torch.enable_grad():
        inputs.requires_grad_()
        layer(inputs).sum().backward()
    expected = layer.weight.dequantize().sum(0).expand_as(inputs)
    torch.testing.assert_close(inputs.grad, expected)


@pytest.mark.slow
def test_int8_is_quantized_while_it_is_read(tmp_path: Path) -> None:
    """The host never holds the float32 model: the peak is the quantized one and a shard."""
    pytest.importorskip("torchao", reason="needs the extra: pip install 'twotemp[quantize]'")
    write_shards("llada", tmp_path / "m", shards=16)
    found = measure(tmp_path / "m", quantize="int8")
    shard = sum(file.stat().st_size for file in (tmp_path / "m").glob("*.safetensors")) / 16
    assert found["peak"] < 1.2 * (found["size"] + shard)


def test_device_map_auto_is_the_cpu_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate", reason="needs the extra: pip install 'twotemp[train]'")
    folder = save(random_model("llada"), tmp_path / "m")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fingerprint(load(folder, device_map="auto")) == fingerprint(load(folder))
    with pytest.raises(UserError, match="must be 'auto'"):
        load(folder, device_map="balanced")
    with pytest.raises(UserError, match="leave device"):
        load(folder, device_map="auto", device="cpu")
