"""The estimators against the exact likelihood of a table, and against the engine's own trace."""

from __future__ import annotations

from itertools import combinations, product
from math import comb

import pytest
import torch

from tests.helpers import rl_toys
from theory.table import TableModel
from twotemp import rng
from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.likelihood import estimators
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.likelihood.queries import (
    BuildQueries,
    Completion,
    CompletionBatch,
    MaskedQueries,
    empty_query,
    estimate,
    log_q,
)
from twotemp.policies import policy
from twotemp.records import Request, Sample
from twotemp.rl.objective import Clip, grpo

MASK, EOS = 4, 3
PROMPT, LENGTH = 2, 3


@pytest.fixture(scope="module")
def table() -> TableModel:
    """All strings of 5 letters, with weights that tie the positions together."""
    generator = torch.Generator().manual_seed(0)
    strings = list(product(range(3), repeat=PROMPT + LENGTH))
    weights = torch.randn(len(strings), generator=generator).mul(1.5).exp().tolist()
    return TableModel([(s, w) for s, w in zip(strings, weights)], vocab_size=5, mask_id=MASK, eos_ids=(EOS,))


def draw(table: TableModel, name: str, n: int = 8, **numbers) -> list[Sample]:
    requests = [
        Request(str(i), (i % 3, 1), policy(name, t_token=1.0, **numbers), length=LENGTH, trace=True)
        for i in range(n)
    ]
    return sorted(run(table, requests), key=lambda s: int(s.request))


def exact(table: TableModel, samples: list[Sample]) -> torch.Tensor:
    """log p(completion | prompt), by summing the table."""
    values = []
    for sample in samples:
        row = torch.tensor(sample.prompt + sample.tokens)
        agrees = (table.sequences == row).all(1)
        given = (table.sequences[:, : len(sample.prompt)] == row[: len(sample.prompt)]).all(1)
        values.append((table.weights[agrees].sum() / table.weights[given].sum()).log())
    return torch.stack(values).float()


def completions(samples: list[Sample]) -> list[Completion]:
    return [Completion.from_sample(sample) for sample in samples]


def values(model, samples: list[Sample], build: str | BuildQueries, draws: int = 1) -> torch.Tensor:
    """[draws, samples], in single precision."""
    method = ESTIMATORS[build] if isinstance(build, str) else build
    return estimate(model, completions(samples), method, draws=range(draws), batch_size=1024).float()


def log_p(model, samples: list[Sample], build: str | BuildQueries) -> torch.Tensor:
    return values(model, samples, build)[0]


def test_left_to_right_is_exact(table):
    samples = draw(table, "random")
    torch.testing.assert_close(log_p(table, samples, "ar"), exact(table, samples), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["ar", "random", "lc"])
def test_trajectory_of_single_commits_is_exact(table, name):
    samples = draw(table, name)
    torch.testing.assert_close(log_p(table, samples, "trajectory"), exact(table, samples), atol=1e-5, rtol=0)


def test_parallel_trajectory_is_the_product_of_the_recorded_confidences(table):
    samples = draw(table, "tct", threshold=0.3, t_pos=0.3)
    assert any(max(s.trace.steps) < LENGTH - 1 for s in samples), "some step must commit several positions"
    recorded = torch.tensor([torch.tensor(s.trace.confidence).log().sum() for s in samples])
    torch.testing.assert_close(log_p(table, samples, "trajectory"), recorded, atol=1e-5, rtol=0)


def test_trajectory_agrees_with_the_engine_and_does_not_depend_on_padding():
    model = rl_toys.micro_model()
    tct = policy("tct", threshold=0.3)
    requests = [
        Request(str(n), tuple(range(5, 7 + n)), tct, length=6, block=3, seed=1, trace=True) for n in range(5)
    ]
    samples = list(run(model, requests))
    logs = [torch.tensor(s.trace.confidence).log() for s in samples]
    ended = [next((n + 1 for n, t in enumerate(s.tokens) if t in model.eos_ids), 6) for s in samples]
    recorded = torch.stack([log[:end].sum() for log, end in zip(logs, ended)])
    together = log_p(model, samples, "trajectory")
    alone = torch.cat([log_p(model, [sample], "trajectory") for sample in samples])
    torch.testing.assert_close(together, recorded, atol=2e-4, rtol=0)
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


def test_elbo_is_unbiased_for_a_consistent_model(table):
    """Its expectation by enumeration: every size l and every set S, each with its probability."""
    samples = draw(table, "random", n=3)
    expected = torch.zeros(len(samples))
    for size in range(1, LENGTH + 1):
        for chosen in combinations(range(PROMPT, PROMPT + LENGTH), size):

            def build(batch: CompletionBatch, draws: range, chosen=chosen, size=size) -> MaskedQueries:
                hidden = torch.zeros_like(batch.generated)
                hidden[:, list(chosen)] = True
                return batch.mask(hidden, hidden, weight=LENGTH / size)

            expected += log_p(table, samples, build) / LENGTH / comb(LENGTH, size)
    torch.testing.assert_close(expected, exact(table, samples), atol=1e-5, rtol=0)


def test_elbo_draws_sizes_and_sets_uniformly(table):
    counts: dict[tuple[int, ...], int] = {}
    total = 1200
    queries = build_queries("elbo", draw(table, "random", n=1), range(total))
    for queried, weight in zip(queries.queried, queries.weight):
        chosen = tuple(queried.nonzero()[:, 0].tolist())
        counts[chosen] = counts.get(chosen, 0) + 1
        assert weight.item() == pytest.approx(LENGTH / len(chosen) / total)
    for chosen, count in counts.items():
        p = 1 / LENGTH / comb(LENGTH, len(chosen))
        assert abs(count - total * p) < 5 * (total * p * (1 - p)) ** 0.5
    assert len(counts) == 2**LENGTH - 1


def test_elbo_averages_to_the_likelihood(table):
    samples = draw(table, "random", n=2)
    estimates = values(table, samples, "elbo", draws=600)
    error = estimates.std(0) / len(estimates) ** 0.5
    assert ((estimates.mean(0) - exact(table, samples)).abs() < 4.5 * error).all()


def test_d1_is_the_mean_over_prompt_masks_of_independent_tokens(table):
    """E[d1] by enumerating the prompt masks; the sum of marginals, hence biased."""
    samples = draw(table, "random", n=2)
    p = estimators.PROMPT_MASKING
    expected = torch.zeros(len(samples))
    for masks in product([False, True], repeat=PROMPT):

        def build(batch: CompletionBatch, draws: range, masks=masks) -> MaskedQueries:
            hidden = batch.generated.clone()
            hidden[:, :PROMPT] = torch.tensor(masks)
            return batch.mask(hidden, batch.scored)

        probability = p ** sum(masks) * (1 - p) ** (PROMPT - sum(masks))
        expected += probability * log_p(table, samples, build)
    estimates = values(table, samples, "d1", draws=600)
    error = estimates.std(0) / len(estimates) ** 0.5
    assert ((estimates.mean(0) - expected).abs() < 4.5 * error).all()
    assert ((expected - exact(table, samples)).abs() > 0.01).any(), "a biased estimator must show its bias"


def test_pll_masks_each_scored_token_alone(table):
    samples = draw(table, "random", n=4)
    columns = torch.arange(PROMPT + LENGTH)
    expected = torch.zeros(len(samples))
    rows = torch.tensor([sample.prompt + sample.tokens for sample in samples])
    for k in range(PROMPT, PROMPT + LENGTH):
        alone = (columns == k).expand_as(rows)
        expected += table.logits(rows.masked_fill(alone, MASK), None, alone).gather(1, rows[:, k : k + 1])[
            :, 0
        ]
    torch.testing.assert_close(log_p(table, samples, "pll"), expected, atol=1e-5, rtol=0)


def test_thirds_are_the_mean_of_one_view_of_all_tokens_and_three_of_a_third(table):
    (sample,) = draw(table, "random", n=1)
    queries = build_queries("thirds", [sample])
    hidden = [[2, 3, 4], [2], [3], [4]]
    assert [(row == MASK).nonzero()[:, 0].tolist() for row in queries.ids] == hidden
    assert [row.nonzero()[:, 0].tolist() for row in queries.queried] == hidden
    assert queries.weight.tolist() == [0.5] * 4
    independent = log_p(table, [sample], lambda batch, draws: batch.mask(batch.generated, batch.scored))
    both = (independent + log_p(table, [sample], "pll")) / 2  # three tokens: every third is one token
    torch.testing.assert_close(log_p(table, [sample], "thirds"), both, atol=1e-5, rtol=0)


def build_queries(name: str, samples: list[Sample], draws: range = range(1)) -> MaskedQueries:
    batch = CompletionBatch.pad(completions(samples), eos_ids=(EOS,), mask_id=MASK)
    return ESTIMATORS[name](batch, draws)


def test_d1_never_hides_padding_and_never_reads_after_eos():
    short = Sample("a", 0, 0, policy("ar"), (0,), (1, 2, 3), (1, EOS, 2), 3, 3, 9, 0.0, "eos")
    long = Sample("b", 0, 0, policy("ar"), (0,) * 40, (40, 41, 42), (1, 1, 1), 3, 3, 9, 0.0, "length")
    queries = build_queries("d1", [short, long])
    assert queries.present.sum(1).tolist() == [4, 43]
    assert (queries.ids[0, 4:] == 0).all()
    assert queries.ids[0, 1:4].tolist() == [MASK] * 3
    assert queries.queried.sum(1).tolist() == [2, 3]  # the EOS counts, what follows it does not


def test_d1_hides_other_prompt_tokens_in_every_draw_at_its_rate():
    row = Sample("a", 0, 0, policy("ar"), (0,) * 2000, (2000,), (1,), 1, 1, 9, 0.0, "length")
    first, second = (build_queries("d1", [row], range(draw, draw + 1)) for draw in (0, 1))
    for queries in (first, second):
        share = (queries.ids[0, :2000] == MASK).float().mean()
        assert abs(share - 0.15) < 4 * (0.15 * 0.85 / 2000) ** 0.5
    assert not torch.equal(first.ids, second.ids)
    torch.testing.assert_close(first.ids, build_queries("d1", [row]).ids)


@pytest.mark.parametrize("name", ["d1", "elbo"])
def test_masks_depend_on_the_row_alone_and_not_on_the_global_generator(name):
    """d1's reference code reseeds the sampler's generator and gives every micro-batch the same masks."""
    samples = [
        Sample(
            str(n),
            0,
            0,
            policy("ar"),
            (0,) * 30,
            tuple(range(30, end)),
            (1,) * (end - 30),
            1,
            1,
            9,
            0.0,
            "eos",
        )
        for n, end in enumerate((50, 47, 33))
    ]
    before = torch.random.get_rng_state()
    together = build_queries(name, samples)
    assert torch.equal(before, torch.random.get_rng_state())
    for n, sample in enumerate(samples):
        alone = build_queries(name, [sample])
        torch.testing.assert_close(alone.ids[0], together.ids[n, : alone.ids.shape[1]])
        torch.testing.assert_close(alone.weight[0], together.weight[n])
    assert not torch.equal(together.ids[0], together.ids[1])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_micro_batches_keep_every_term(table, name):
    queries = build_queries(name, draw(table, "tct", threshold=0.3), range(2))
    forbidden = torch.tensor([MASK])
    parts = queries.split(3)
    terms = log_q(table.logits, queries, forbidden)
    torch.testing.assert_close(terms, torch.cat([log_q(table.logits, part, forbidden) for part in parts]))
    assert torch.equal(queries.terms()[0], torch.cat([part.terms()[0] for part in parts]))


@pytest.mark.parametrize("name", [name for name, method in ESTIMATORS.items() if method.random])
def test_draws_in_one_call_are_those_of_several(table, name):
    samples = draw(table, "random", n=3)
    together = values(table, samples, name, draws=4)
    apart = [
        estimate(table, completions(samples), ESTIMATORS[name], draws=range(i, i + 1))[0] for i in range(4)
    ]
    if name in ("stratified", "quadrature"):  # spread the levels over the draws of a call
        assert not torch.allclose(together, torch.stack(apart).float(), atol=1e-5)
    else:
        torch.testing.assert_close(together, torch.stack(apart).float(), atol=1e-5, rtol=0)


def test_trajectory_without_trace_is_refused():
    bare = Sample("a", 0, 0, policy("ar"), (0,), (1,), (1,), 1, 1, 9, 0.0, "length")
    with pytest.raises(UserError, match="trace=True"):
        build_queries("trajectory", [bare])


def test_empty_query_gives_every_weight_a_zero_gradient():
    """The mask id is 0 in many vocabularies, so nothing can be assumed of an id that any model may write."""
    model = rl_toys.micro_model()
    ids = torch.arange(model.vocab_size)
    for forbidden in (torch.tensor([0]), ids[:-1], ids):
        new = log_q(model.logits, empty_query(0, "cpu"), forbidden)
        _, weight = empty_query(0, "cpu").terms()
        loss = grpo(rl_toys.terms_of(new, new.detach(), new.detach(), weight, weight), Clip(0.5, 0.5, 0.1))
        assert (loss.total, loss.kl, loss.clipped) == (0, 0, 0)
        loss.total.backward()
        grads = {name: p.grad for name, p in model.module.named_parameters()}
        assert all(grad is not None and (grad == 0).all() for grad in grads.values()), "DDP waits for each"
        model.module.zero_grad()


def test_unknown_estimator_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'trajectory'"):
        estimators.get("trajectori")


def test_training_noise_is_not_the_sampling_noise():
    assert rng.Stream.TRAIN not in (rng.Stream.TOKEN, rng.Stream.POSITION)
