"""The likelihood `order` against the law of every step by enumeration, on tables of 3 letters and 5 positions."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations, product

import numpy as np
import pytest
import torch

import twotemp
from tests.helpers import path_laws as tables
from tests.helpers import rl_toys
from theory.anchor_fork import has
from theory.exact import commit_sets
from theory.strings import entropy, temper
from theory.table import TableModel
from twotemp.errors import UserError
from twotemp.likelihood import orders
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.likelihood.orders import OrderQueries
from twotemp.likelihood.queries import Completion, CompletionBatch, log_q
from twotemp.policies import policy
from twotemp.policies.positions import SCORES
from twotemp.policies.step import PolicyBatch
from twotemp.records import Policy, Sample, Trace
from twotemp.rng import Noise

LETTERS, LENGTH = 3, 5
START, MASK = LETTERS, LETTERS + 1
INF = math.inf

RULES = [
    policy("tlc", t_token=0.8),
    policy("tlc", t_token=1.0, t_pos=0.3, k=2),
    policy("tlc", t_token=1.3, t_pos=0.05, k=3),
    policy("tlc", t_token=1.0, t_pos=5.0, k=4),
    policy("random", t_token=1.0, k=2),
    policy("lc", t_token=1.0, k=1),
    policy("lc", t_token=0.7, k=2),
    policy("alg-temp", t_token=1.0, k=2),
    policy("alg-temp", t_token=1.0, t_pos=0.01),
    policy("margin", t_token=1.0, t_pos=0.5, k=2),
    policy("entropy", t_token=1.0, t_pos=0.3),
    policy("entropy", t_token=1.0, k=2),
    policy("tpp", t_token=0.5, t_pos=0.4, k=3),
    policy("soft-ar", t_token=1.0, k=2),
    policy("ct", t_token=1.0, threshold=0.5),
    policy("tct", t_token=0.8, threshold=0.6, t_pos=0.1),
    policy("tct", t_token=1.0, threshold=0.9, t_pos=0.02),
    policy("tct", t_token=1.0, threshold=0.3, t_pos=2.0),
    policy("tct", t_token=1.0, threshold=0.6, t_pos=INF),
]
ids = [f"{rule.name}-k{rule.k}-T{rule.t_pos:g}" for rule in RULES]


@cache
def table() -> TableModel:
    """All strings, with weights that tie the positions together."""
    generator = torch.Generator().manual_seed(0)
    strings = list(product(range(LETTERS), repeat=LENGTH))
    weights = (1.5 * torch.randn(len(strings), generator=generator)).exp().tolist()
    return TableModel([((START, *s), w) for s, w in zip(strings, weights)], LETTERS + 2, MASK)


def predictions(row: tuple[int, ...]) -> dict[int, np.ndarray]:
    found = torch.tensor([row])
    masked = found == MASK
    q = table().logits(found, None, masked).double().exp().numpy()[:, :LETTERS]
    return dict(zip(masked[0].nonzero()[:, 0].tolist(), q))


def scores(rule: Policy, q: dict[int, np.ndarray], x: dict[int, int]) -> dict[int, float]:
    """From the definitions; exp of what is ranked, so that a Plackett-Luce weight is its 1 / T_pos-th power."""
    of = {
        "log_confidence": lambda k: q[k][x[k]],
        "confidence": lambda k: q[k][x[k]] if rule.rule == "threshold" else math.exp(q[k][x[k]]),
        "log_top": lambda k: q[k].max(),
        "log_margin": lambda k: np.sort(q[k])[-1] - np.sort(q[k])[-2],
        "neg_entropy": lambda k: math.exp(-entropy(q[k])),
        "position": lambda k: math.exp(-k),
    }[rule.score]
    return {k: float(of(k)) for k in q}


def step_law(rule: Policy, q: dict[int, np.ndarray]) -> dict[tuple[tuple[int, int], ...], float]:
    """P(positions and tokens), by every draw at all masked positions and every set committed given it."""
    plain = rule if rule.rule == "threshold" else policy("tlc", k=rule.k, t_pos=rule.t_pos)
    drawn = {k: temper(q[k], rule.t_token) for k in q}
    law: dict[tuple[tuple[int, int], ...], float] = {}
    for tokens in product(range(LETTERS), repeat=len(q)):
        x = dict(zip(q, tokens))
        probability = math.prod(drawn[k][x[k]] for k in q)
        for chosen, share in commit_sets(plain, scores(rule, q, x)).items():
            step = tuple((k, x[k]) for k in q if has(chosen, k))
            law[step] = law.get(step, 0.0) + probability * share
    return {step: p for step, p in law.items() if p > 0}


def queries_of(rule: Policy, row: tuple[int, ...], steps: list[tuple[tuple[int, int], ...]]) -> OrderQueries:
    """One query for every step from this row: what is masked and not committed is written later."""
    q, completions = predictions(row), []
    for step in steps:
        tokens, when, confidence = [], [], []
        for k in range(1, LENGTH + 1):
            committed = dict(step).get(k)
            tokens.append(row[k] if row[k] != MASK else committed if committed is not None else 0)
            when.append(0 if row[k] != MASK else 1 if committed is not None else 2)
            confidence.append(float(np.float32(q[k][committed])) if committed is not None else 0.0)
        trace = Trace(tuple(when), tuple(confidence), (0.0,) * LENGTH)
        after = Completion.after((START,), tokens)
        completions.append(replace(after, policy=rule, trace=trace))
    queries = ESTIMATORS["order"](CompletionBatch.pad(completions, eos_ids=(), mask_id=MASK))
    assert isinstance(queries, OrderQueries)
    return queries[(queries.ids == torch.tensor(row)).all(1) & queries.committed.any(1)]


def rows(n: int) -> list[tuple[int, ...]]:
    """The fully masked row and some others, reached or not."""
    choice = random.Random(0)
    some = {tuple(choice.choice([0, 1, 2, MASK, MASK]) for _ in range(LENGTH)) for _ in range(10 * n)}
    masked = [row for row in sorted(some) if MASK in row]
    return [(START, *(MASK,) * LENGTH), *((START, *row) for row in choice.sample(masked, n))]


@pytest.mark.parametrize("rule", RULES, ids=ids)
def test_order_is_the_law_of_every_step(rule):
    for row in rows(3):
        law = step_law(rule, predictions(row))
        queries = queries_of(rule, row, list(law))
        assert len(queries) == len(law)
        found = queries.totals(log_q(table().logits, queries, torch.tensor([MASK])).double())
        torch.testing.assert_close(
            found.exp(), torch.tensor(list(law.values())).double(), atol=1e-6, rtol=1e-5
        )
        assert found.exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_likelihoods_given_the_order_sum_to_the_number_of_orders():
    """Over all steps from one row the tokens alone, given the order, sum to the number of orders or so."""
    rule, row = policy("tlc", t_token=1.0, k=2), rows(1)[0]
    queries = queries_of(rule, row, list(step_law(rule, predictions(row))))
    tokens = log_q(table().logits, queries, torch.tensor([MASK])) * queries.committed[queries.queried]
    assert queries.totals(tokens).exp().sum().item() == pytest.approx(math.comb(5, 2), rel=1e-5)


def ended_early(rule: Policy, block: int) -> list[Sample]:
    """Samples of the table with EOS, that stop at it, after prompts of several lengths."""
    strings = list(product(range(LETTERS), repeat=LENGTH + 1))
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(len(strings), generator=generator).exp().tolist()
    model = TableModel(
        [((START, *s), w) for s, w in zip(strings, weights)], LETTERS + 2, MASK, eos_ids=(LETTERS - 1,)
    )
    prompts = [[START], [START, 0], [START, 1]] * 4
    samples = twotemp.sample(
        model,
        prompts,
        rule,
        length=LENGTH,
        block=block,
        ids=[str(n) for n in range(12)],
        trace=True,
        eos_stop=True,
    )
    return model, samples


@pytest.mark.parametrize(
    "rule",
    [
        policy("tlc", t_token=1.0),
        policy("tlc", t_token=1.0, k=2),
        policy("tct", t_token=1.0, threshold=0.5),
    ],
)
@pytest.mark.parametrize("block", [3, 5])
def test_order_of_whole_samples_that_end_early_after_ragged_prompts(rule, block):
    model, samples = ended_early(rule, block)
    assert any(-1 in sample.trace.steps for sample in samples), "some rows must end early"
    assert len({len(sample.prompt) for sample in samples}) > 1
    found = [likelihood.log_p for likelihood in twotemp.score(model, samples, estimator="order")]
    for sample, log_p in zip(samples, found):
        start, total = len(sample.prompt), 0.0
        for number in range(max(sample.trace.steps) + 1):
            written = {k: t for k, t, s in zip(sample.positions, sample.tokens, sample.trace.steps)}
            when = dict(zip(sample.positions, sample.trace.steps))
            row = [*sample.prompt] + [written[k] if 0 <= when[k] < number else MASK for k in sample.positions]
            ids = torch.tensor([row])
            q = model.logits(ids, None, ids == MASK).double().exp().numpy()[:, :LETTERS]
            masked = [k for k in sample.positions if row[k] == MASK]
            active = (masked[0] - start) // block
            inside = {k: q[n] for n, k in enumerate(masked) if (k - start) // block == active}
            step = tuple((k, written[k]) for k in inside if when[k] == number)
            total += math.log(step_law(rule, inside)[step])
        assert log_p == pytest.approx(total, abs=1e-5)


# Gradients.


def one_step(rule: Policy, committed: tuple[int, ...]) -> tuple[OrderQueries, torch.Tensor]:
    """A query from the fully masked row, and logits of its five positions in float64."""
    row = rows(1)[0]
    step = tuple((k, k % LETTERS) for k in committed)
    (queries,) = queries_of(rule, row, [step]).split(10)
    generator = torch.Generator().manual_seed(1)
    return queries, torch.randn(LENGTH, LETTERS, generator=generator, dtype=torch.float64).requires_grad_()


def plackett_luce(weights: torch.Tensor, chosen: tuple[int, ...]) -> torch.Tensor:
    """The sum over the orders in which the chosen ones can be drawn."""
    total = weights.new_zeros(())
    for path in permutations(chosen):
        left, p = weights.sum(), weights.new_ones(())
        for k in path:
            p, left = p * weights[k] / left, left - weights[k]
        total = total + p
    return total


@pytest.mark.parametrize("chosen", [(2,), (1, 4), (1, 2, 5)])
@pytest.mark.parametrize("t_pos", [0.3, 1.0])
def test_gradients_are_those_of_the_enumeration(chosen, t_pos):
    rule = policy("tlc", t_token=0.8, t_pos=t_pos, k=len(chosen))
    queries, z = one_step(rule, chosen)
    heat, token_heat = (torch.tensor([t], dtype=torch.float64, requires_grad=True) for t in (t_pos, 0.8))
    found = replace(queries, t_pos=heat, t_token=token_heat).read(z).sum()
    ours = torch.autograd.grad(found, (z, heat, token_heat))

    target = {k - 1: k % LETTERS for k in chosen}
    drawn, c = (z / token_heat).log_softmax(-1), z.softmax(-1)
    total = z.new_zeros(())
    for tokens in product(range(LETTERS), repeat=LENGTH):
        if all(tokens[k] == t for k, t in target.items()):
            at = torch.tensor(tokens)[:, None]
            weights = c.gather(1, at)[:, 0] ** (1 / heat)
            total = total + drawn.gather(1, at).sum().exp() * plackett_luce(weights, tuple(target))
    assert found.item() == pytest.approx(total.log().item(), abs=1e-9)
    for gradient, expected in zip(ours, torch.autograd.grad(total.log(), (z, heat, token_heat))):
        torch.testing.assert_close(gradient, expected, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("chosen", [(2,), (1, 4)])
def test_gradients_of_thresholds_are_those_of_the_law(chosen):
    """Against differences of the enumerated law, also in lambda and T_pos, with forced commits."""
    queries, z = one_step(policy("tct", t_token=0.8, threshold=0.6, t_pos=0.2), chosen)
    step = tuple((k, k % LETTERS) for k in chosen)
    numbers = {
        name: torch.tensor([value], dtype=torch.float64, requires_grad=True)
        for name, value in (("threshold", 0.6), ("t_pos", 0.2))
    }
    replace(queries, **numbers).read(z).sum().backward()

    def log_p(threshold: float, t_pos: float, logits: torch.Tensor) -> float:
        q = dict(zip(range(1, LENGTH + 1), logits.softmax(-1).numpy()))
        return math.log(step_law(policy("tct", t_token=0.8, threshold=threshold, t_pos=t_pos), q)[step])

    h, fixed = 1e-5, z.detach()
    by_threshold = (log_p(0.6 + h, 0.2, fixed) - log_p(0.6 - h, 0.2, fixed)) / (2 * h)
    by_t_pos = (log_p(0.6, 0.2 + h, fixed) - log_p(0.6, 0.2 - h, fixed)) / (2 * h)
    assert numbers["threshold"].grad.item() == pytest.approx(by_threshold, abs=1e-6)
    assert numbers["t_pos"].grad.item() == pytest.approx(by_t_pos, abs=1e-6)
    for k, v in ((0, 1), (3, 2)):
        moved = torch.zeros_like(fixed)
        moved[k, v] = h
        difference = (log_p(0.6, 0.2, fixed + moved) - log_p(0.6, 0.2, fixed - moved)) / (2 * h)
        assert z.grad[k, v].item() == pytest.approx(difference, abs=1e-6)


def test_the_integral_holds_for_wide_blocks_and_extreme_scores():
    """Sets of 8 of 64 positions by inclusion and exclusion, and scores that differ by hundreds of T_pos."""
    generator = torch.Generator().manual_seed(0)
    scaled = 3 * torch.randn(64, 1, generator=generator, dtype=torch.float64)
    committed = torch.zeros(64, dtype=torch.bool)
    committed[:8] = True
    step, drawn = torch.zeros(64, dtype=torch.long), torch.zeros(64, 1, dtype=torch.float64)
    infinite = torch.tensor([INF], dtype=torch.float64)
    # P(max over U of the arrival times < min over the rest) = sum over S within U of (-1)^|S| R / (R + W_S).
    weights = scaled[:, 0].exp()
    rest, total = weights[8:].sum(), 0.0
    for size in range(9):
        for some in combinations(range(8), size):
            total += (-1) ** size * float(rest / (rest + weights[list(some)].sum()))
    found = orders._log_order(step, committed, drawn, scaled, scaled, infinite, orders.GUMBEL)
    assert found.exp().item() == pytest.approx(total, rel=1e-6)
    for gap in (50.0, 700.0):  # the unlikely one of two, at a small T_pos
        pair = torch.tensor([[-gap], [0.0]], dtype=torch.float64)
        chosen = torch.tensor([True, False])
        log_p = orders._log_order(step[:2], chosen, drawn[:2], pair, pair, infinite, orders.GUMBEL)
        assert log_p.item() == pytest.approx(-gap - math.log1p(math.exp(-gap)), rel=1e-9)


def test_gradients_are_finite_where_tokens_are_forbidden():
    model = rl_toys.micro_model()
    for rule in (
        policy("tlc", k=2),
        policy("tlc", t_pos=0.02),
        policy("tct", threshold=0.4),
        policy("lc", t_token=1.0),
    ):
        samples = twotemp.sample(model, [[5], [5, 6]], rule, length=6, block=3, ids=["a", "b"], trace=True)
        queries = ESTIMATORS["order"](
            CompletionBatch.pad(
                [Completion.from_sample(s) for s in samples], eos_ids=(), mask_id=model.mask_id
            )
        )
        log_q(model.logits, queries, torch.tensor(model.forbidden_ids)).sum().backward()
        grads = [p.grad for p in model.module.parameters() if p.grad is not None]
        assert all(torch.isfinite(grad).all() for grad in grads)
        assert any(grad.abs().max() > 0 for grad in grads)
        model.module.zero_grad()


@pytest.mark.parametrize("name", [name for name in SCORES if name not in ("position",)])
def test_scores_are_those_of_the_sampler(name):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4, 7, generator=generator)
    rule = replace(policy("tlc", t_token=1.0), score=name)
    at = torch.arange(4)[None]
    masked = torch.ones(1, 4, dtype=torch.bool)
    drawn = PolicyBatch([rule]).draw(
        Noise(torch.zeros(1).long(), torch.zeros(1).long(), at), logits, masked, at[0]
    )
    law = orders.SCORES[name]
    ours = law.compute(logits.double().log_softmax(-1), at[0])
    ours = ours.gather(1, drawn.tokens[0][:, None]) if law.by_token else ours
    torch.testing.assert_close(ours[:, 0], SCORES[name].compute(drawn)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "rule",
    [
        policy("tlc", t_token=0.0),
        policy("tlc", top_p=0.9),
        policy("sdar", k=2),
        *map(policy, ("eb", "egi", "dream")),
    ],
)
def test_order_refuses_other_policies(rule):
    trace = Trace((0,), (0.5,), (0.1,))
    sample = Sample("a", 0, 0, rule, (0,), (1,), (1,), 1, 1, 9, 0.0, "length", trace=trace)
    with pytest.raises(UserError, match="--likelihood trajectory"):
        ESTIMATORS["order"](CompletionBatch.pad([Completion.from_sample(sample)], eos_ids=(), mask_id=9))


# What the order adds to the gradient of the expected reward, over all trajectories of a table.


def expected_gradient(rule: Policy, name: str) -> torch.Tensor:
    """sum_paths P (R - mean) d log p / d(all logits of all states), log p by this estimator."""
    model = tables.table()
    law = tables.law(model, rule)
    good = {string for n, string in enumerate(product((0, 1), repeat=3)) if n % 3 == 0}
    written = [dict(pair for step in path for pair in step) for path in law]
    reward = torch.tensor([tuple(w[k] for k in sorted(w)) in good for w in written]).double()
    p = torch.tensor(list(law.values())).double()
    queries = tables.build_queries(name, [tables.as_sample(model, rule, path) for path in law])
    z = model.logits(queries.ids, None, queries.queried).double().requires_grad_()
    log_p = torch.zeros(len(law)).double().index_add(0, queries.row, queries.totals(queries.read(z).double()))
    (gradient,) = torch.autograd.grad((p * (reward - (p * reward).sum()) * log_p).sum(), z)
    states: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
    for (query, column), part in zip(queries.queried.nonzero().tolist(), gradient[:, :2]):
        key = tuple(queries.ids[query].tolist()), column
        states[key] = states.get(key, 0) + part
    everything = product(product((0, 1, tables.MASK), repeat=3), range(1, 4))
    nothing = torch.zeros(2).double()
    return torch.cat([states.get(((tables.START, *row), column), nothing) for row, column in everything])


@pytest.mark.parametrize(
    ("rule", "cosine", "share"),
    [
        (policy("random", t_token=1.0), 1.0, 1.0),  # the order ignores the tokens
        (policy("tlc", t_token=1.0, t_pos=1.0), 0.98, 0.64),
        (policy("tlc", t_token=1.0, t_pos=0.2), 0.86, 0.36),
        (policy("tct", t_token=1.0, threshold=0.6, t_pos=0.1), 0.97, 0.36),
    ],
)
def test_tokens_alone_give_another_gradient_than_the_policys(rule, cosine, share):
    """The numbers of docs/grpo.md."""
    whole, tokens = expected_gradient(rule, "order"), expected_gradient(rule, "trajectory")
    assert torch.cosine_similarity(whole, tokens, dim=0).item() == pytest.approx(cosine, abs=0.006)
    assert (tokens.norm() / whole.norm()).item() == pytest.approx(share, abs=0.006)
