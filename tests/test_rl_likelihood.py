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
from twotemp.policies import policy
from twotemp.records import Request, Sample
from twotemp.rl import likelihood
from twotemp.rl.likelihood import ESTIMATORS, Completions, Questions, log_likelihood
from twotemp.rl.objective import grpo_loss

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


def estimate(model, samples: list[Sample], name: str, draw: int = 0, draws: int = 1) -> torch.Tensor:
    rows = Completions.of(samples, model.eos_ids)
    asked = ESTIMATORS[name](rows, model.mask_id, draw, draws)
    return log_likelihood(model.logits, rows, asked, torch.tensor(model.forbidden_ids))


def test_left_to_right_is_exact(table):
    samples = draw(table, "random")
    torch.testing.assert_close(estimate(table, samples, "ar"), exact(table, samples), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["ar", "random", "lc"])
def test_a_trajectory_of_single_commits_is_exact(table, name):
    samples = draw(table, name)
    found = estimate(table, samples, "trajectory")
    torch.testing.assert_close(found, exact(table, samples), atol=1e-5, rtol=0)


def test_a_parallel_trajectory_is_the_product_of_the_recorded_confidences(table):
    samples = draw(table, "tct", threshold=0.3, t_pos=0.3)
    assert any(max(s.trace.steps) < LENGTH - 1 for s in samples), "some step must commit several positions"
    recorded = torch.tensor([torch.tensor(s.trace.confidence).log().sum() for s in samples])
    torch.testing.assert_close(estimate(table, samples, "trajectory"), recorded, atol=1e-5, rtol=0)


def test_trajectory_agrees_with_the_engine_on_a_network_and_padding_changes_nothing():
    model = rl_toys.micro_model()
    tct = policy("tct", threshold=0.3)
    requests = [
        Request(str(n), tuple(range(5, 7 + n)), tct, length=6, block=3, seed=1, trace=True) for n in range(5)
    ]
    samples = list(run(model, requests))
    logs = [torch.tensor(s.trace.confidence).log() for s in samples]
    ended = [next((n + 1 for n, t in enumerate(s.tokens) if t in model.eos_ids), 6) for s in samples]
    recorded = torch.stack([log[:end].sum() for log, end in zip(logs, ended)])
    with torch.no_grad():
        together = estimate(model, samples, "trajectory")
        alone = torch.cat([estimate(model, [sample], "trajectory") for sample in samples])
    torch.testing.assert_close(together, recorded, atol=2e-4, rtol=0)
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


def test_elbo_is_unbiased_for_a_consistent_model(table):
    """Its expectation by enumeration: every size l and every set S, each with its probability."""
    samples = draw(table, "random", n=3)
    rows = Completions.of(samples, table.eos_ids)
    expected = torch.zeros(len(samples))
    for size in range(1, LENGTH + 1):
        for chosen in combinations(range(PROMPT, PROMPT + LENGTH), size):
            hidden = torch.zeros_like(rows.generated)
            hidden[:, list(chosen)] = True
            asked = likelihood._whole_rows(rows, hidden, hidden, MASK, LENGTH / size)
            value = log_likelihood(table.logits, rows, asked, torch.tensor([MASK]))
            expected += value / LENGTH / comb(LENGTH, size)
    torch.testing.assert_close(expected, exact(table, samples), atol=1e-5, rtol=0)


def test_elbo_draws_sizes_and_sets_uniformly(table):
    (sample,) = draw(table, "random", n=1)
    many = Completions.of([sample] * 1, table.eos_ids)
    counts: dict[tuple[int, ...], int] = {}
    total = 1200
    asked = likelihood.elbo(many, MASK, 0, total)
    for want, weight in zip(asked.want, asked.weight):
        chosen = tuple(want.nonzero()[:, 0].tolist())
        counts[chosen] = counts.get(chosen, 0) + 1
        assert weight.item() == pytest.approx(LENGTH / len(chosen) / total)
    for chosen, count in counts.items():
        p = 1 / LENGTH / comb(LENGTH, len(chosen))
        assert abs(count - total * p) < 5 * (total * p * (1 - p)) ** 0.5
    assert len(counts) == 2**LENGTH - 1


def test_elbo_averages_to_the_likelihood(table):
    samples = draw(table, "random", n=2)
    values = torch.stack([estimate(table, samples, "elbo", draw=i) for i in range(600)])
    error = values.std(0) / len(values) ** 0.5
    assert ((values.mean(0) - exact(table, samples)).abs() < 4.5 * error).all()


def test_d1_is_the_mean_over_prompt_masks_of_independent_tokens(table):
    """E[d1] by enumerating the prompt masks; the sum of marginals, hence biased."""
    samples = draw(table, "random", n=2)
    rows = Completions.of(samples, table.eos_ids)
    p = likelihood.PROMPT_MASKING
    expected = torch.zeros(len(samples))
    for masks in product([False, True], repeat=PROMPT):
        hidden = rows.generated.clone()
        hidden[:, :PROMPT] = torch.tensor(masks)
        asked = likelihood._whole_rows(rows, hidden, rows.scored, MASK, 1.0)
        chance = p ** sum(masks) * (1 - p) ** (PROMPT - sum(masks))
        expected += chance * log_likelihood(table.logits, rows, asked, torch.tensor([MASK]))
    values = torch.stack([estimate(table, samples, "d1", draw=i) for i in range(600)])
    error = values.std(0) / len(values) ** 0.5
    assert ((values.mean(0) - expected).abs() < 4.5 * error).all()
    assert ((expected - exact(table, samples)).abs() > 0.01).any(), "a biased estimator must show its bias"


def questions(name: str, samples: list[Sample], draw: int = 0) -> Questions:
    return ESTIMATORS[name](Completions.of(samples, (EOS,)), MASK, draw, 1)


def test_d1_never_hides_padding_and_never_reads_after_eos():
    short = Sample("a", 0, 0, policy("ar"), (0,), (1, 2, 3), (1, EOS, 2), 3, 3, 9, 0.0, "eos")
    long = Sample("b", 0, 0, policy("ar"), (0,) * 40, (40, 41, 42), (1, 1, 1), 3, 3, 9, 0.0, "length")
    asked = questions("d1", [short, long])
    assert asked.present.sum(1).tolist() == [4, 43]
    assert (asked.ids[0, 4:] == 0).all()
    assert asked.ids[0, 1:4].tolist() == [MASK] * 3
    assert asked.want.sum(1).tolist() == [2, 3]  # the EOS counts, what follows it does not


def test_d1_hides_prompt_tokens_at_its_rate_and_anew_with_every_draw():
    row = Sample("a", 0, 0, policy("ar"), (0,) * 2000, (2000,), (1,), 1, 1, 9, 0.0, "length")
    first, second = questions("d1", [row], 0), questions("d1", [row], 1)
    for asked in (first, second):
        share = (asked.ids[0, :2000] == MASK).float().mean()
        assert abs(share - 0.15) < 4 * (0.15 * 0.85 / 2000) ** 0.5
    assert not torch.equal(first.ids, second.ids)
    torch.testing.assert_close(first.ids, questions("d1", [row], 0).ids)


@pytest.mark.parametrize("name", ["d1", "elbo"])
def test_mask_noise_is_a_rows_own_and_no_global_generator_moves(name):
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
    together = questions(name, samples)
    assert torch.equal(before, torch.random.get_rng_state())
    for n, sample in enumerate(samples):
        alone = questions(name, [sample])
        torch.testing.assert_close(alone.ids[0], together.ids[n, : alone.ids.shape[1]])
        torch.testing.assert_close(alone.weight[0], together.weight[n])
    assert not torch.equal(together.ids[0], together.ids[1])


def test_cutting_between_questions_keeps_every_term(table):
    samples = draw(table, "tct", threshold=0.3)
    rows = Completions.of(samples, table.eos_ids)
    for build in ESTIMATORS.values():
        asked = build(rows, MASK, 0, 2)
        forbidden = torch.tensor([MASK])
        parts = [asked[start : start + 3] for start in range(0, len(asked), 3)]
        whole = likelihood.log_probs(table.logits, asked, forbidden)
        cut = torch.cat([likelihood.log_probs(table.logits, part, forbidden) for part in parts])
        torch.testing.assert_close(whole, cut)
        assert torch.equal(asked.terms()[0], torch.cat([part.terms()[0] for part in parts]))


def test_trajectory_without_a_trace_is_refused():
    bare = Sample("a", 0, 0, policy("ar"), (0,), (1,), (1,), 1, 1, 9, 0.0, "length")
    with pytest.raises(UserError, match="trace=True"):
        questions("trajectory", [bare])


def test_an_idle_pass_reaches_every_weight_and_adds_nothing_whatever_may_not_be_written():
    """The mask id is 0 in many vocabularies, so nothing can be assumed of an id that any model may write."""
    model = rl_toys.micro_model()
    every = torch.arange(model.vocab_size)
    for forbidden in (torch.tensor([0]), every[:-1], every):
        new = likelihood.log_probs(model.logits, likelihood.idle(0, "cpu"), forbidden)
        _, weight = likelihood.idle(0, "cpu").terms()
        loss = grpo_loss(new, new.detach(), new.detach(), weight, weight, epsilon=0.5, beta=0.1)
        assert (loss.total, loss.kl, loss.clipped) == (0, 0, 0)
        loss.total.backward()
        grads = {name: p.grad for name, p in model.module.named_parameters()}
        assert all(grad is not None and (grad == 0).all() for grad in grads.values()), "DDP waits for each"
        model.module.zero_grad()


def test_unknown_estimator_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'trajectory'"):
        likelihood.estimator("trajectori")


def test_train_noise_is_not_the_samplers():
    assert rng.Stream.TRAIN not in (rng.Stream.TOKEN, rng.Stream.POSITION)
