"""The engine against the plain reference: the same tokens for every algorithm of the paper, seed and block."""

from __future__ import annotations

from dataclasses import replace

import pytest

import twotemp
from tests.helpers.toy import ToyModel
from twotemp.policies import PRESETS, parse, reference
from twotemp.records import Request

SPECS = (
    *("ar", "ar:k=3", "random", "random:k=2", "lc", "lc:k=4", "lc:t_token=0", "tlc", "tlc:k=2,t_pos=0.3"),
    *("ct", "ct:threshold=0.9", "ct:threshold=0", "tct", "tct:threshold=0.9,t_pos=0.02", "tct:t_pos=inf"),
    *("tct:t_token=0", "tlc:t_token=1.4,t_pos=5"),
)
PROMPTS = {"toy": (2, 3, 4), "tiny": tuple(range(5, 12))}


@pytest.fixture(scope="module")
def models():
    return {"toy": ToyModel(sharpness=1.5), "tiny": twotemp.load("tiny")}


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("spec", SPECS)
def test_the_engine_equals_the_reference(models, name, spec):
    model, prompt = models[name], PROMPTS[name]
    for seed, block in ((0, 4), (1, 12), (2, 5)):
        samples = twotemp.sample(model, [*prompt], spec, n=2, length=12, block=block, seed=seed)
        for sample in samples:
            request = Request(sample.request, prompt, parse(spec), 12, block, seed, sample.index)
            assert reference.sample(model, request) == list(sample.tokens)


def test_the_comparison_can_fail(models):
    """Another seed, another policy: other tokens, so that equality above says something."""
    model = models["toy"]
    request = Request("q", PROMPTS["toy"], parse("tlc"), 12, 12)
    expected = reference.sample(model, request)
    assert reference.sample(model, request) == expected
    for other in (replace(request, seed=1), replace(request, index=1), replace(request, policy=parse("lc"))):
        assert reference.sample(model, other) != expected


def test_policies_beyond_the_paper_are_refused(models):
    covered = {spec.partition(":")[0] for spec in SPECS}
    for name in PRESETS.keys() - covered:
        with pytest.raises(NotImplementedError, match=name):
            reference.sample(models["toy"], Request("q", (2, 3), parse(name), 4))
