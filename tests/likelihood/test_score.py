"""Public likelihoods against the exact values of a table."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import twotemp
from tests.helpers.tiny_checkpoints import random_model
from tests.helpers.toy import string_table
from theory.table import TableModel
from twotemp.errors import UserError
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.likelihood.queries import Completion, CompletionBatch
from twotemp.likelihood.score import Likelihood

MASK, EOS = 4, 3
PROMPTS = [[0, 1], [2, 2], [1, 0]]
COMPLETIONS = [[1, 2, 0, 1], [0, 0, 2, 2], [2, 1, 1, 0]]


@pytest.fixture(scope="module")
def table() -> TableModel:
    return string_table(MASK, EOS)


def exact(table: TableModel, prompt: list[int], completion: list[int]) -> float:
    agrees = (table.sequences == torch.tensor(prompt + completion)).all(1)
    given = (table.sequences[:, : len(prompt)] == torch.tensor(prompt)).all(1)
    return float((table.weights[agrees].sum() / table.weights[given].sum()).log())


def test_left_to_right_is_the_exact_value(table):
    for likelihood, prompt, completion in zip(
        twotemp.score(table, PROMPTS, COMPLETIONS, "ar"), PROMPTS, COMPLETIONS, strict=True
    ):
        assert likelihood.log_p == pytest.approx(exact(table, prompt, completion), abs=1e-5)
        assert (likelihood.error, likelihood.tokens) == (0.0, 4)


@pytest.mark.parametrize("estimator", ["elbo", "stratified"])
def test_random_estimates_are_right_within_their_standard_error(table, estimator):
    """A table is consistent, so the bound is tight. 120 estimates: their z-scores have mean 0 and variance 1."""
    prompts, completions = PROMPTS * 40, COMPLETIONS * 40
    likelihoods = twotemp.score(table, prompts, completions, estimator, draws=32, batch_size=1024)
    scores = [
        (likelihood.log_p - exact(table, prompt, completion)) / likelihood.error
        for likelihood, prompt, completion in zip(likelihoods, prompts, completions)
    ]
    assert abs(np.mean(scores)) < 4 / np.sqrt(len(scores))
    assert 0.75 < np.std(scores) < 1.3


def test_strata_lower_the_noise(table):
    spread = {}
    for estimator in ("elbo", "stratified"):
        likelihoods = twotemp.score(
            table, PROMPTS * 60, COMPLETIONS * 60, estimator, draws=16, batch_size=1024
        )
        log_p = np.reshape([likelihood.log_p for likelihood in likelihoods], (60, 3))
        spread[estimator] = np.var(log_p, axis=0).mean()
    assert spread["stratified"] < 0.9 * spread["elbo"]


@pytest.mark.parametrize("draws", [1, 3, 8])
def test_the_number_of_masks_is_uniform(draws, table):
    """Over many rows l is uniform on 1..n: this is what makes the estimate unbiased."""
    samples = twotemp.sample(table, [[0, 1]], "random", n=400, length=4)
    completions = [Completion.from_sample(sample) for sample in samples]
    batch = CompletionBatch.pad(completions, eos_ids=(), mask_id=MASK)
    for name in ("elbo", "stratified"):
        sizes = ESTIMATORS[name](batch, range(draws)).queried.sum(1)
        share = torch.bincount(sizes, minlength=5)[1:] / len(sizes)
        assert (share - 0.25).abs().max() < 4 * (0.25 * 0.75 / len(sizes)) ** 0.5


def test_a_score_does_not_depend_on_the_other_rows():
    model = random_model("llada")
    together = twotemp.score(model, [[1, 2], [3, 4, 5, 6]], [[7, 8, 9], [10]], draws=4, batch_size=3)
    alone = twotemp.score(model, [[3, 4, 5, 6]], [[10]], draws=4)
    assert together[1].log_p == pytest.approx(alone[0].log_p, abs=1e-4)
    assert twotemp.score(model, [1, 2], [7, 8, 9], draws=4)[0].log_p == pytest.approx(
        together[0].log_p, abs=1e-4
    )


def test_samples_are_scored_by_their_trajectory(table):
    samples = twotemp.sample(table, PROMPTS, "ar:t_token=1", length=4, trace=True)
    expected = [exact(table, list(s.prompt), list(s.tokens)) for s in samples]
    likelihoods = twotemp.score(table, samples, estimator="trajectory")
    assert [likelihood.log_p for likelihood in likelihoods] == pytest.approx(expected, abs=1e-5)
    assert isinstance(likelihoods[0], Likelihood)


def test_tokens_after_the_end_of_text_do_not_count(table):
    (likelihood,) = twotemp.score(random_model("llada"), [1, 2], [7, 38, 9, 9], "ar")
    assert likelihood.tokens == 2


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([0, 1], [[1], [2]]), {}, "1 prompts and 2 completions"),
        (([0, 1], [[]]), {}, "a completion is empty"),
        (([0, 1],), {}, "no completions given"),
        (([0, 1], [1.5]), {}, "token id must be an integer"),
        (([0, 1], [1]), {"draws": 3}, "draws must be even"),
        (([0, 1], [1]), {"draws": 1}, "draws must be an integer >= 2"),
        (([0, 1], [1]), {"estimator": "elb"}, "did you mean 'elbo'"),
        (([0, 1], [1]), {"seed": None}, "seed must be an integer"),
        (([0, 1], [1]), {"estimator": "trajectory"}, "trace=True"),
        (([99], [1]), {}, "token id 99 is outside the vocabulary"),
        (([0, 1], [99]), {}, "token id 99 is outside the vocabulary"),
        (([0, 1], [1, MASK]), {}, "contains the mask token"),
        (([0, 1], [1] * 99), {}, "does not fit"),
    ],
)
def test_bad_input_is_refused(table, arguments, options, message):
    with pytest.raises(UserError, match=message):
        twotemp.score(table, *arguments, **options)
