"""DiffusionGemma: the same canvases as `generate` of transformers at every step, and everything around it."""

from __future__ import annotations

import pytest
import torch

import twotemp
from tests.helpers.canvases import EOS, Injected, random_module, record, save_checkpoint
from tests.helpers.engine_requests import by_key, same
from twotemp import rng
from twotemp.engine import StepCallback, run
from twotemp.errors import UserError
from twotemp.models.checkpoint import save
from twotemp.models.quantization import quantized_layers
from twotemp.policies import parse, policy
from twotemp.records import Request

# Layers, heads, experts, windows and canvases: windows shorter and longer than a canvas and the prompt.
CONFIGS = {
    "plain": {"canvas": 8},
    "short window": {"canvas": 5, "sliding_window": 3, "seed": 1},
    "long window": {"canvas": 12, "sliding_window": 64, "seed": 2},
    "full layers": {"canvas": 6, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "seed": 3},
    "experts": {"canvas": 8, "num_experts": 6, "top_k_experts": 1, "num_key_value_heads": 4, "seed": 4},
    "vision": {"canvas": 7, "use_bidirectional_attention": "vision", "num_hidden_layers": 4, "seed": 5,
               "layer_types": ["sliding_attention", "full_attention"] * 2},
}  # fmt: skip
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [7, 30], [20, 21, 22, 23, 24]]
STEPS = 6
POLICY = policy("diffusion-gemma", steps=STEPS, entropy_bound=0.6, stop_entropy=0.1)
REFERENCE = {
    "max_denoising_steps": STEPS, "t_min": 0.4, "t_max": 0.8, "stability_threshold": 1, "confidence_threshold": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of each configuration, written by transformers."""
    return {
        name: save_checkpoint(tmp_path_factory.mktemp("gemma") / name, **options)
        for name, options in CONFIGS.items()
    }


@pytest.fixture(scope="module")
def model(folders):
    return twotemp.load(folders["plain"])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("canvases", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_step_is_that_of_transformers(folders, name, canvases, count, monkeypatch):
    """With the same random numbers: accepted positions, canvases, drawn and likeliest tokens; logits to 1e-4."""
    from transformers import EntropyBoundSamplerConfig

    module, model = random_module(**CONFIGS[name]), twotemp.load(folders[name], eos_ids=())
    width, prompts = CONFIGS[name]["canvas"], PROMPTS[-count:]
    expected = record(
        module, prompts, seed=count, max_new_tokens=canvases * width,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.6), **REFERENCE,
    )  # fmt: skip
    requests = [Request(f"q{n}", tuple(p), POLICY, canvases * width) for n, p in enumerate(prompts)]
    monkeypatch.setattr(rng, "uniforms", Injected(expected, requests, width))
    compared = []

    def compare(view):
        logits = view.logits.view(len(view.requests), width, -1)
        for slot, request in enumerate(view.requests):
            number = (int(view.window.start[slot]) - len(request.prompt)) // width
            row, step = requests.index(request), int(view.block_step[slot])
            known = {key: tensor[row] for key, tensor in expected.steps[number][step].items()}
            decision, canvas = view.decision, view.decision.canvas
            assert known["running"]
            assert bool(canvas.ends[slot]) == (bool(known["ends"]) or step == STEPS - 1)
            assert torch.equal(decision.commit[slot], known["accepted"])
            assert torch.equal(decision.tokens[slot], known["tokens"])
            assert torch.equal(canvas.likeliest[slot], known["likeliest"])
            after = known["likeliest"] if canvas.ends[slot] else known["canvas"]
            assert torch.equal(canvas.tokens[slot], after)
            assert float((logits[slot] - known["logits"]).abs().max()) < 1e-4
            compared.append((row, number, step))

    samples = {sample.request: sample for sample in run(model, requests, observer=StepCallback(compare))}
    for row, request in enumerate(requests):
        assert list(samples[request.id].tokens) == expected.sequences[row].tolist()
    # Every step that the reference took was compared.
    taken = [
        (row, number, step)
        for number, steps in enumerate(expected.steps)
        for step, event in enumerate(steps)
        for row in range(count)
        if event["running"][row]
    ]
    assert sorted(compared) == sorted(taken)


def test_the_comparison_covers_early_ends_and_full_lengths(folders):
    """Else the tests above would not compare when a canvas ends."""
    lengths = set()
    for name, options in CONFIGS.items():
        model = twotemp.load(folders[name], eos_ids=())
        requests = [Request(f"q{n}", tuple(p), POLICY, options["canvas"]) for n, p in enumerate(PROMPTS)]
        lengths |= {sample.nfe for sample in run(model, requests)}
    assert min(lengths) < STEPS == max(lengths)


def test_logits_of_a_row_are_those_of_the_native_module(model):
    module = random_module(**CONFIGS["plain"])
    row = torch.tensor([[5, 6, 7, 8, 9, 10, 11, *range(20, 28)]])
    with torch.no_grad():
        expected = module(input_ids=row[:, :7], decoder_input_ids=row[:, 7:]).logits[0]
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.int64), row, torch.zeros(1, 2, dtype=torch.int64)], 1)
    real = torch.tensor([[False] * 3 + [True] * 15 + [False] * 2])
    want = real & (torch.arange(20) >= 10)
    assert float((model.logits(padded, real, want) - expected).abs().max()) < 1e-4


# --- equivalence


SPECS = (
    *("diffusion-gemma:steps=6", "tct:steps=5,t_pos=0.2", "tlc:k=3", "ar:k=4", "klass:steps=6"),
    "eb:t_pos=1,steps=4",
)


@pytest.mark.parametrize("spec", SPECS)
def test_alone_batched_refilled_and_shared_prompts(model, spec):
    chosen = parse(spec)
    prompts = [PROMPTS[n % 3] if n < 5 else PROMPTS[0] for n in range(8)]
    wanted = [
        Request(f"q{n % 3}", tuple(p), chosen, (8, 20, 13)[n % 3], seed=2, index=n, trace=True)
        for n, p in enumerate(prompts)
    ]
    batched, refilled = by_key(run(model, wanted)), by_key(run(model, wanted[::-1], batch_size=3))
    for request in wanted:
        (alone,) = run(model, [request])
        assert same(alone, batched[request.id, request.index])
        assert same(alone, refilled[request.id, request.index])
        assert len(alone.tokens) == request.length


def test_costs_and_ends(model):
    request = Request("q", tuple(PROMPTS[0]), parse("diffusion-gemma:steps=3,stop_entropy=0"), 20)
    (sample,) = run(model, [request])
    if sample.finish == "length":
        # Three canvases of three steps; the encoder reads the prompt and two canvases.
        assert (sample.nfe, sample.forwards) == (9, 12)
        assert sample.processed == 9 * 8 + 9 + 8 + 8
    ended = twotemp.load(model.name, eos_ids=range(40))  # nearly every token ends the text
    (sample,) = run(ended, [request])
    assert (sample.nfe, sample.forwards, sample.finish) == (3, 4, "eos")
    first = next(n for n, token in enumerate(sample.tokens) if token < 40)
    assert set(sample.tokens[8:]) == {sample.tokens[first]}


# --- what it refuses


def test_refusals(folders, tmp_path):
    model, folder = twotemp.load(folders["plain"]), folders["plain"]
    for options, message in (
        ({"mask_id": 3}, "no mask token"),
        ({"compile": True}, "cannot be compiled"),
    ):
        with pytest.raises(UserError, match=message):
            twotemp.load(folder, **options)
    with pytest.raises(UserError, match="mixture of experts"):
        quantized_layers(model.module, "int8")
    with pytest.raises(UserError, match="needs a mask token"):
        twotemp.score(model, "w5", "w6 w7")
    with pytest.raises(UserError, match="text only"):
        model.encode("w5 <|image|> w6")
    with pytest.raises(UserError, match="cannot fill gaps"):
        twotemp.infill(model, [5, -1, -1, 6], "eb")
    with pytest.raises(UserError, match="one shape already"):
        twotemp.sample(model, [5, 6], "eb", length=8, columns=32, batch_size=2)


def test_saved_and_loaded_again(model, tmp_path):
    saved = twotemp.load(save(model, tmp_path / "copy"))
    assert saved.fingerprint == model.fingerprint
    assert (saved.block_size, saved.eos_ids) == (model.block_size, model.eos_ids) == (8, (EOS, 2))
    texts = [twotemp.sample(m, "w5 w6 w7", "diffusion-gemma:steps=4", n=2, length=16) for m in (model, saved)]
    assert [s.tokens for s in texts[0]] == [s.tokens for s in texts[1]]
    assert model.decode(model.encode("w5", chat=None), cut=False).split() == ["w5"]
