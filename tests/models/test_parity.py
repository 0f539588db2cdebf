"""The published reference code's logits and its samplers' greedy tokens, on random weights in the published layout.

tests/fixtures/<name>: config.json and model.safetensors as that code wrote them, and what it computed. Larger ones,
made independently, are optional data (CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import DataFile
from tests.helpers.fixture_models import FIXTURES
from tests.helpers.tiny_checkpoints import LLADA_8B, left_padded
from twotemp import sample
from twotemp.engine import run
from twotemp.models.checkpoint import save
from twotemp.models.families import FAMILIES, Dream, FastDLLM
from twotemp.models.llada import LLaDA
from twotemp.models.load import load
from twotemp.models.transformer import Transformer
from twotemp.policies import policy
from twotemp.records import Request

NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/reference.json"))
TOLERANCE = 1e-4


def reference(name: str) -> dict[str, Any]:
    """What the reference was asked; `logits` as it gave them, one row of the network for each token."""
    about = json.loads((FIXTURES / name / "reference.json").read_text())
    return {**about, "logits": load_file(FIXTURES / name / "logits.safetensors")}


def open_as(folder: Path, about: dict[str, Any]) -> Transformer:
    return load(folder, **about["options"])


def error(model: Transformer, about: dict[str, Any], padded: bool) -> float:
    """The largest difference of logits, over all positions that can be predicted, aligned to them."""
    ids, real = left_padded(about["rows"], max(map(len, about["rows"])) + 2)
    worst = 0.0
    for number, row in enumerate(about["rows"]):
        at = slice(number, number + 1)
        one, mask = (ids, real) if padded else (torch.tensor([row]), None)
        want = torch.zeros_like(one, dtype=torch.bool)
        want[at if padded else 0, -len(row) + about["shift"] :] = True
        expected = about["logits"][f"row{number}"][: len(row) - about["shift"]]
        with torch.no_grad():
            worst = max(worst, float((model.logits(one, mask, want) - expected).abs().max()))
    return worst


@pytest.mark.parametrize("name", NAMES)
def test_logits_match_the_reference(name: str) -> None:
    """Row by row, and in a left-padded batch."""
    about = reference(name)
    model = open_as(FIXTURES / name, about)
    assert error(model, about, padded=False) < TOLERANCE
    assert error(model, about, padded=True) < TOLERANCE


HALF = sorted(path.parent.name for path in FIXTURES.glob("*/logits_bfloat16.safetensors"))


def half_precision_errors(folder: Path, name: str) -> list[tuple[float, float, float, float]]:
    """Return for each row the mean and the largest difference in bfloat16: ours from the reference, and the
    reference's from its own float32.

    On a CPU the reference's logits do not depend on the batch at all, so that its rounding is the scale instead.
    """
    about = reference(name)
    model = load(folder, dtype="bfloat16", **about["options"])
    rounded = load_file(FIXTURES / name / "logits_bfloat16.safetensors")
    errors = []
    for number, row in enumerate(about["rows"]):
        want = torch.zeros(1, len(row), dtype=torch.bool)
        want[0, about["shift"] :] = True
        predicted = slice(len(row) - about["shift"])
        half, full = rounded[f"row{number}"][predicted].float(), about["logits"][f"row{number}"][predicted]
        with torch.no_grad():
            ours = (model.logits(torch.tensor([row]), None, want).float() - half).abs()
        scale = (half - full).abs()
        errors.append((float(ours.mean()), float(ours.max()), float(scale.mean()), float(scale.max())))
    return errors


@pytest.mark.parametrize("name", HALF)
def test_bfloat16_logits_are_as_near_to_the_reference_as_its_rounding(name: str, tmp_path: Path) -> None:
    """The reference code was run in bfloat16, too. A small mistake is farther away."""
    assert {"dream", "llada"} <= set(HALF)
    for mean, largest, scale, largest_scale in half_precision_errors(FIXTURES / name, name):
        assert mean < scale
        assert largest < largest_scale
    config = json.loads((FIXTURES / name / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": config["rope_theta"] / 10}))
    weights = FIXTURES / name / "model.safetensors"
    (tmp_path / "model.safetensors").write_bytes(weights.read_bytes())
    assert all(mean > scale for mean, _, scale, _ in half_precision_errors(tmp_path, name))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_match_the_official_sampler(name: str) -> None:
    """All of its prompts in one batch, which is refilled; block-causal models with their exact cache."""
    about = reference(name)
    model = open_as(FIXTURES / name, about)
    wanted = [
        Request(
            *(
                str(number),
                tuple(asked["prompt"]),
                policy(**asked["policy"]),
                asked["length"],
                asked["block"],
            ),
            extend=asked.get("extend", False),
        )
        for number, asked in enumerate(about["samples"])
    ]
    for batch_size in (1, 8):
        found = {sample.request: list(sample.tokens) for sample in run(model, wanted, batch_size=batch_size)}
        assert found == {str(number): asked["tokens"] for number, asked in enumerate(about["samples"])}


@pytest.mark.parametrize("name", NAMES)
def test_samples_do_not_depend_on_the_batch(name: str) -> None:
    """Alone, and where a finished row makes room for another; with the cache of its kind."""
    about = reference(name)
    model = open_as(FIXTURES / name, about)
    block, cache = (None, None) if model.block_size else (4, "dual")
    wanted = [
        Request(str(i), tuple(range(1, 4 + i)), policy("tct", t_token=0.8), length, block, seed=i)
        for i, length in enumerate((4, 9, 7))
    ]
    alone = {request.id: next(iter(run(model, [request], cache=cache))).tokens for request in wanted}
    found = run(model, wanted, batch_size=2, cache=cache)
    assert {sample.request: sample.tokens for sample in found} == alone


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_copy_has_the_published_layout(name: str, tmp_path: Path) -> None:
    about = reference(name)
    folder = save(open_as(FIXTURES / name, about), tmp_path / "copy")
    before, after = load_file(FIXTURES / name / "model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key].float(), after[key]) for key in before)
    assert torch.equal(
        load(folder).module.lm_head.weight, open_as(FIXTURES / name, about).module.lm_head.weight
    )


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("llada", {"rms_norm_eps": 1e-6}),
        ("llada", {"rope_theta": 10000.0}),
        ("llada", ("blocks.1.ff_proj", "blocks.1.up_proj")),
        ("llada", ("blocks.1.q_proj", "blocks.1.k_proj")),
        ("sdar-moe", {"norm_topk_prob": False}),
        ("sdar-moe", {"num_experts_per_tok": 3}),
        ("sdar-moe", ("experts.0.gate_proj", "experts.0.up_proj")),
        ("a2d-llama", {"rope_scaling": None}),
        ("stable-diffcoder", {"block_size": 8}),
        ("fast-dllm-v2", {"block_size": 4}),
        ("a2d-qwen3-bd3lm", {"block_size": 0}),
    ],
)
def test_a_porting_mistake_is_detected(name: str, mistake: Any, tmp_path: Path) -> None:
    """The tolerance is worth something: each of these loads without complaint and is far outside it."""
    about = reference(name)
    config = json.loads((FIXTURES / name / "config.json").read_text())
    weights = load_file(FIXTURES / name / "model.safetensors")
    if isinstance(mistake, tuple):
        one, other = ([key for key in weights if part in key] for part in mistake)
        for a, b in zip(sorted(one), sorted(other)):
            weights[a], weights[b] = weights[b], weights[a]
    elif "block_size" in mistake:
        about["options"] |= mistake
    else:
        config |= mistake
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors")
    assert error(open_as(tmp_path, about), about, padded=False) > 10 * TOLERANCE


# The larger ones.


class Reference:
    """A larger fixture: its inputs, and the reference's logits on a batch it left-padded itself."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "fixture.json").read_text())
        self.model = load(
            folder,
            mask_id=about["mask_token_id"],
            eos_ids=(about["pad_token_id"],),
            block_size=about.get("block_size"),
        )
        self.shift = about["logits_shift"]
        inputs = load_file(folder / "inputs.safetensors")
        self.ids, self.real = inputs["input_ids"], inputs["attention_mask"].bool()
        self.logits = load_file(folder / "logits.safetensors")
        self.generated = load_file(folder / "generate.safetensors")

    def batch_error(self) -> float:
        """The largest difference on the left-padded batch, where there is anything to predict."""
        want = self.real.clone()
        first = self.real.long().argmax(1)
        if self.shift:  # the first token of a row has no row that predicts it
            want[torch.arange(len(first)), first] = False
        expected = self.logits["logits"].roll(self.shift, dims=1)[want]
        with torch.no_grad():
            return float((self.model.logits(self.ids, self.real, want) - expected).abs().max())

    def cache_error(self) -> float:
        """The largest difference on the last block, once the blocks before it are in the cache."""
        ids = self.ids[:1]
        length, block = ids.shape[1], self.model.block_size
        cache = self.model.new_cache(1, length)
        positions = torch.arange(length)[None]
        visible = torch.ones(1, length, dtype=torch.bool)
        for window in (slice(0, length - block), slice(length - block, length)):
            want = torch.ones_like(ids[:, window], dtype=torch.bool)
            logits = self.model.window_logits(ids[:, window], positions[:, window], visible, cache, want)
        return float((logits - self.logits["cached_last_block_logits"][0]).abs().max())

    def answers(self, prompt_included: bool) -> tuple[list[list[int]], list[list[int]]]:
        """The official sampler's prompts, without the padding it put before them, and its tokens."""
        ids, real = self.generated["input_ids"], self.generated["attention_mask"].bool()
        found = self.generated["sequences"][:, ids.shape[1] if prompt_included else 0 :]
        return [row[keep].tolist() for row, keep in zip(ids, real)], found.tolist()


LARGER = {
    "llada": (policy("lc", t_token=0.0, k=2), 8),
    "dream": (policy("dream", t_token=0.0, steps=8, top_p=1.0), 16),
    "sdar": (policy("ar", t_token=0.0), None),
    "llada2": (policy("llada2", t_token=0.0, threshold=0.95, k=2), None),
}


@pytest.mark.parametrize("family", LARGER)
def test_larger_models_match_the_reference(family: str, data_file: DataFile) -> None:
    """A left-padded batch's logits, SDAR's block cache, and the official sampler's greedy tokens in one batch."""
    reference = Reference(data_file("fixtures") / family / "a")
    assert reference.batch_error() < TOLERANCE
    if family == "sdar":
        assert reference.cache_error() < TOLERANCE
    prompts, expected = reference.answers(prompt_included=family != "llada2")
    chosen, block = LARGER[family]
    found = sample(reference.model, prompts, chosen, length=len(expected[0]), block=block)
    assert [list(s.tokens) for s in found] == expected


# What the published indices say.

DREAM_7B = {
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}
LLADA2_MINI = {
    "vocab_size": 157_184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 20,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "partial_rotary_factor": 0.5,
    "rope_theta": 600_000,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "score_function": "sigmoid",
    "tie_word_embeddings": False,
}
SDAR_30B_A3B = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rope_theta": 1e6,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("family", "config", "keys", "size"),
    [
        (LLaDA, LLADA_8B, 291, 16_031_162_368),
        (Dream, DREAM_7B, 339, 15_231_233_024),
        (FastDLLM, DREAM_7B, 339, 15_231_233_024),
        (FAMILIES["llada2_moe"], LLADA2_MINI, 14_813, 32_511_286_784),
        (FAMILIES["sdar_moe"], SDAR_30B_A3B, 18_867, 61_064_245_248),
    ],
)
def test_published_sizes_are_reproduced(
    family: type[Transformer], config: dict[str, Any], keys: int, size: int
) -> None:
    """Number of keys and bytes (two a weight) in the published index of these checkpoints."""
    native = family.native_config(config)
    with torch.device("meta"):
        weights = family.layout(family.native(native).state_dict(), native)
    assert len(weights) == keys
    assert 2 * sum(part.numel() for parts in weights.values() for part in parts) == size
    if "num_experts" in config:  # of these, only the index was seen
        page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
        assert re.search(rf"has {keys:,}( tensors)? of {size:,} bytes", page)
