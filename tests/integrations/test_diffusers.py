"""The scheduler in diffusers' pipeline draws the engine's samples.

`TWOTEMP_DIFFUSERS=DIR` runs these tests with another version, installed with `pip install --target DIR --no-deps`.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch

import twotemp
from tests.helpers.canvases import save_checkpoint
from tests.helpers.fixture_models import fixture_model
from twotemp.errors import UserError
from twotemp.policies import PRESETS, spell

if other := os.environ.get("TWOTEMP_DIFFUSERS"):
    sys.path.insert(0, other)
pytest.importorskip("diffusers", minversion="0.39", reason="needs pip install 'twotemp[diffusers]'")

from diffusers import DiffusionGemmaPipeline, LLaDA2Pipeline
from diffusers.schedulers import scheduling_block_refinement

from twotemp.integrations import diffusers as plug

POLICIES = [name for name in PRESETS if not twotemp.policy(name).repel]
PROMPT = list(range(3, 14))


@pytest.fixture(scope="module")
def model():
    return fixture_model("llada2")


def pipeline(model, policy, **options):
    scheduler = plug.TwoTempScheduler.for_model(model, policy, **options)
    pipe = LLaDA2Pipeline(model=plug.PipelineModel(model), scheduler=scheduler)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def run(pipe, input_ids, length, **options):
    mask_id = pipe.model.model.mask_id
    options = {"mask_token_id": mask_id, "eos_early_stop": False, "output_type": "seq", **options}
    return pipe(input_ids=input_ids, gen_length=length, **options).sequences.tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_draws_the_samples_of_the_engine(model, policy):
    length = model.block_size + 5  # several blocks, the first and the last in part
    prompts = [PROMPT, PROMPT[::-1]]
    pipe = pipeline(model, policy, seed=3)
    drawn = run(pipe, pipe.scheduler.input_ids(prompts, n=2), length)
    expected = twotemp.sample(model, prompts, policy, n=2, length=length, seed=3)
    assert drawn == [list(sample.tokens) for sample in expected]


@pytest.mark.parametrize("policy", ["tct:t_pos=0.5", "llada2.1"])
def test_an_early_stop_leaves_the_text_as_it_is(model, policy):
    expected = [s.tokens for s in twotemp.sample(model, PROMPT, policy, n=4, length=40)]
    eos = expected[0][7]  # any token that occurs can play the end of text
    pipe = pipeline(model, policy)
    drawn = run(pipe, pipe.scheduler.input_ids([PROMPT], n=4), 40, eos_early_stop=True, eos_token_id=eos)

    def text(tokens):
        return list(tokens[: tokens.index(eos)]) if eos in tokens else list(tokens)

    assert [text(row) for row in drawn] == [text(row) for row in expected]


def test_a_row_does_not_depend_on_its_batch_and_calls_differ(model):
    ids = torch.tensor([PROMPT])
    pipe, again = (pipeline(model, "tlc:t_pos=1") for _ in range(2))
    many = run(pipe, ids.repeat(3, 1), 20)
    assert run(again, ids, 20) == many[:1]
    assert len({tuple(row) for row in many}) == 3
    assert run(again, ids.repeat(3, 1), 20) != many
    seeded = run(pipe, pipe.scheduler.input_ids([PROMPT]), 20, generator=torch.Generator().manual_seed(9))
    assert seeded == [list(s.tokens) for s in twotemp.sample(model, PROMPT, "tlc:t_pos=1", length=20, seed=9)]


def test_the_scheduler_is_saved_and_loaded_with_its_pipeline(model, tmp_path):
    policy = twotemp.policy("tct", t_pos=0.25, threshold=0.5)
    pipe = pipeline(model, policy, seed=4)
    pipe.save_pretrained(tmp_path)
    loaded = LLaDA2Pipeline.from_pretrained(tmp_path, model=pipe.model, tokenizer=None)
    assert isinstance(loaded.scheduler, plug.TwoTempScheduler)
    assert loaded.scheduler.config.items() >= {"policy": spell(policy), "seed": 4}.items()
    ids = torch.tensor([PROMPT])
    loaded.set_progress_bar_config(disable=True)
    assert run(loaded, ids, 12) == run(pipe, ids, 12)


def test_options_that_belong_to_the_policy_are_refused(model):
    ids = torch.tensor([PROMPT])
    with pytest.raises(UserError, match=r"temperature=0.8: the policy decides.*t_token"):
        run(pipeline(model, "tct"), ids, 8, temperature=0.8)
    with pytest.raises(UserError, match=r"threshold=0.5: the policy decides"):
        run(pipeline(model, "tct"), ids, 8, threshold=0.5)
    with pytest.raises(UserError, match="repel"):
        pipeline(model, "odd")
    with pytest.raises(UserError, match="no blocks"):
        pipeline(twotemp.load("tiny"), "tct")
    with pytest.raises(UserError, match="of one length"):
        pipeline(model, "tct").scheduler.input_ids([PROMPT, PROMPT[1:]])
    with pytest.raises(UserError, match="these prompts are padded"):
        run(pipeline(model, "tct"), ids, 8, attention_mask=torch.tensor([[0] + [1] * (len(PROMPT) - 1)]))


def test_another_interface_of_diffusers_is_named(monkeypatch):
    def step(self, model_output, timestep, sample, *, noise_level, return_dict=True):
        """Like a later version of diffusers."""

    monkeypatch.setattr(scheduling_block_refinement.BlockRefinementScheduler, "step", step)
    with pytest.raises(UserError, match=r"another interface of schedulers \(.*noise_level.*pip install"):
        plug.TwoTempScheduler("tct")


# DiffusionGemmaPipeline, whose canvases have no masks.


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return twotemp.load(save_checkpoint(tmp_path_factory.mktemp("gemma"), canvas=8, sharpness=1.0))


def gemma_pipeline(model, policy, **options):
    scheduler = plug.TwoTempScheduler.for_model(model, policy, **options)
    pipe = DiffusionGemmaPipeline(plug.CanvasModel(model, scheduler), scheduler, model.tokenizer)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def texts(rows, eos_ids):
    return [list(row[: twotemp.records.first_eos(row, eos_ids)]) for row in rows]


CANVAS_POLICIES = [
    "diffusion-gemma:steps=12",
    "diffusion-gemma:steps=12,t_pos=0.5",
    "tlc:k=2,t_pos=1",
    "tct:t_pos=0.5,threshold=0.2,steps=9",
]


@pytest.mark.parametrize("policy", CANVAS_POLICIES)
@pytest.mark.parametrize("stop", [None, 0.005])
def test_canvases_are_those_of_the_engine(gemma, policy, stop):
    """Whether the pipeline ends canvases that are settled, or leaves all of it to the policy."""
    pipe = gemma_pipeline(gemma, policy, seed=3)
    prompt = "w5 w9 w12"
    pipe.scheduler.input_ids([gemma.encode(prompt)], n=3)
    sequences = pipe([prompt] * 3, gen_length=24, output_type="seq", confidence_threshold=stop).sequences
    expected = twotemp.sample(gemma, prompt, policy, n=3, length=24, seed=3)
    assert texts(sequences.tolist(), gemma.eos_ids) == texts([s.tokens for s in expected], gemma.eos_ids)


def test_a_canvas_does_not_depend_on_its_batch(gemma):
    policy = "diffusion-gemma:steps=12,t_pos=0.5"
    many, one = (
        gemma_pipeline(gemma, policy)(["w5 w9"] * n, gen_length=16, output_type="seq").sequences.tolist()
        for n in (3, 1)
    )
    assert texts(many[:1], gemma.eos_ids) == texts(one, gemma.eos_ids)
    assert len({tuple(row) for row in many}) > 1


def test_the_gemma_pipeline_refuses_policies_and_steps_it_cannot_use(gemma, model):
    def drawn(policy, **options):
        return gemma_pipeline(gemma, policy)("w5", gen_length=8, output_type="seq", **options)

    with pytest.raises(UserError, match="edits, which needs masks"):
        drawn("llada2.1")
    with pytest.raises(UserError, match="num_inference_steps=60"):
        drawn("diffusion-gemma:steps=60")
    with pytest.raises(UserError, match="generator"):
        drawn("diffusion-gemma:steps=12", generator=torch.Generator())
    with pytest.raises(UserError, match=r"temperature=0.5: the policy decides"):
        drawn("diffusion-gemma:steps=12", temperature=0.5)
    with pytest.raises(UserError, match="no canvases"):
        plug.CanvasModel(model, plug.TwoTempScheduler.for_model(model))
    pipe = gemma_pipeline(gemma, "diffusion-gemma:steps=48,stop_steps=40")
    with pytest.raises(UserError, match="ended a canvas before the policy did"):
        pipe("w5 w9", gen_length=64, output_type="seq", confidence_threshold=100.0)
