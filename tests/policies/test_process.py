"""Models without a mask: random tokens in its place, every policy, and the laws of what is accepted and renoised."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import exp, log

import pytest
import torch

import twotemp
from tests.helpers.engine_requests import by_key, requests_of, same
from tests.helpers.policy_steps import chi_square
from tests.helpers.toy import FixedModel, UniformModel
from twotemp import rng
from twotemp.engine import LiveBatches, StepCallback, run
from twotemp.engine.scheduler import check_request
from twotemp.errors import UserError
from twotemp.policies import PRESETS, parse, policy
from twotemp.records import NO_MASK, Policy, Request

# Every preset that needs no masks.
NAMES = [n for n, p in PRESETS.items() if p.policy.edit == "never" and not p.policy.repel]
WIDTH, VOCABULARY = 4, 40


def by_hand(model, request: Request, rule) -> tuple[list[int], int, list[int]]:
    """Return a row's answer, its steps, and when its tokens last changed, in plain Python.

    Args:
        model: A model without a mask.
        request: What to sample; its policy's entropy is of the tempered distribution.
        rule: From (numbers by position, uniforms by position, positions accepted before) to the accepted ones.
    """
    chosen, start = request.policy, len(request.prompt)
    key = torch.tensor([rng.row_key(request.seed, request.id, request.index)])

    def uniforms(step: int, at: list[int], stream: rng.Stream) -> dict[int, float]:
        return dict(zip(at, rng.uniform(key, torch.tensor([step]), torch.tensor([at]), stream)[0].tolist()))

    answer = list(range(start, start + request.length))
    noise = uniforms(-1, answer, rng.Stream.CANVAS)
    row = [*request.prompt, *(int(noise[i] * model.vocab_size) for i in answer)]
    step, changed = 0, dict.fromkeys(answer, -1)
    for first in range(start, len(row), request.block):
        canvas = [i for i in answer if first <= i < first + request.block]
        most = chosen.steps or -(-len(canvas) // chosen.k)
        best, unchanged, accepted = dict.fromkeys(canvas), dict.fromkeys(canvas, 0), []
        for n in range(most):
            temperature = chosen.t_token * (1 - chosen.cooling * n / max(chosen.steps, 1))
            z = model.logits(torch.tensor([row]), None, torch.tensor(canvas)).double() / temperature
            q = dict(zip(canvas, z.softmax(-1)))
            u, v, fresh = (uniforms(step, canvas, rng.Stream(s)) for s in (1, 2, 4))
            drawn = {i: int(torch.searchsorted(q[i].cumsum(0), u[i])) for i in canvas}
            entropy = {i: float(torch.special.entr(q[i]).sum()) for i in canvas}
            c = {i: float(q[i][drawn[i]]) for i in canvas}
            accepted = rule({"c": c, "entropy": entropy}, v, accepted)
            for i in canvas:
                unchanged[i] = unchanged[i] + 1 if best[i] == int(q[i].argmax()) else 0
                best[i] = int(q[i].argmax())
                changed[i] = changed[i] if unchanged[i] else step
                row[i] = drawn[i] if i in accepted else int(fresh[i] * model.vocab_size)
            step += 1
            calm = sum(entropy.values()) / len(canvas) < chosen.stop_entropy
            if calm and min(unchanged.values()) >= chosen.stop_steps:
                break
        for i in canvas:
            row[i] = best[i]
    return row[start:], step, [changed[i] for i in answer]


def growing(numbers, v, accepted, k=2):
    """Accept k more than before, those with the highest c."""
    return sorted(numbers["c"], key=lambda i: -numbers["c"][i])[: len(accepted) + k]


def above(numbers, v, accepted, t_pos=0.3, threshold=0.6):
    """Accept every c + T_pos Logistic > lambda, or the highest."""
    score = {i: c + t_pos * (log(v[i]) - log(1 - v[i])) for i, c in numbers["c"].items()}
    return [i for i in score if score[i] > threshold] or [max(score, key=score.get)]


def bounded(numbers, v, accepted, t_pos=0.7, bound=1.5):
    """Accept the longest prefix by -H + T_pos Gumbel whose entropies, the largest left out, sum to the bound."""
    h = numbers["entropy"]
    order = sorted(h, key=lambda i: h[i] + t_pos * log(-log(v[i])))
    found = [
        n for n in range(1, len(h) + 1) if sum(map(h.get, order[:n])) - max(map(h.get, order[:n])) <= bound
    ]
    return order[: max(n for n in found if found[:n] == list(range(1, n + 1)))]


CASES = {
    "lc:k=2": growing,
    "tct:t_pos=0.3,threshold=0.6,steps=9": above,
    "diffusion-gemma:t_pos=0.7,entropy_bound=1.5,stop_entropy=2,steps=7": bounded,
}


@pytest.mark.parametrize("spec", CASES)
def test_the_engine_equals_a_plain_loop(spec):
    model = UniformModel(sharpness=1.5)
    chosen = replace(parse(spec), confidence="drawn")
    wanted = [
        Request(f"q{i}", (2, 3, 4)[: i % 3 + 1], chosen, length=6, block=WIDTH, seed=1, trace=True)
        for i in range(12)
    ]
    ended_early = 0
    for sample in run(model, wanted):
        request = next(r for r in wanted if r.id == sample.request)
        tokens, steps, changed = by_hand(model, request, CASES[spec])
        assert (list(sample.tokens), sample.nfe, list(sample.trace.steps)) == (tokens, steps, changed)
        ended_early += steps < 2 * (chosen.steps or 2)
    assert ended_early or not chosen.cooling  # else no canvas ended by its entropy


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_draws_the_same_alone_batched_and_refilled(name):
    model = UniformModel(sharpness=1.5)
    wanted = requests_of(model, policy(name), count=5, trace=True)
    batched, refilled = (
        by_key(run(model, wanted, batch_size=8)),
        by_key(run(model, wanted[::-1], batch_size=3)),
    )
    for request in wanted:
        (alone,) = run(model, [request])
        assert same(alone, batched[request.id, 0 if request.policy.repel else request.index])
        assert same(alone, refilled[request.id, request.index])
        assert len(alone.trace.accepted) == len(alone.tokens)
        assert alone.nfe == alone.forwards
        limit = request.policy.steps or -(-request.block // request.policy.k)
        assert max(alone.trace.steps) < alone.nfe <= 3 * limit


def test_rows_that_join_a_running_batch_draw_the_same():
    model = UniformModel(sharpness=1.5)
    wanted = requests_of(model, policy("klass"), count=4, trace=True)
    live, found = LiveBatches(model, 4), []
    for request in wanted:
        live.submit(request)
        found += live.turn()
    while not live.idle:
        found += live.turn()
    joined = by_key(sample for _, sample in found)
    assert all(same(sample, joined[sample.request, sample.index]) for sample in run(model, wanted))


def test_given_tokens_inside_a_canvas_are_clamped():
    model = UniformModel(sharpness=1.5)
    prompt = (2, NO_MASK, NO_MASK, 5, NO_MASK, 6)
    seen = []

    def look(view):
        seen.append([view.canvas[0, i].item() for i in (0, 3, 5)])

    (sample,) = run(model, [Request("q", prompt, policy("eb"), 0, block=8)], observer=StepCallback(look))
    assert sample.positions == (1, 2, 4)
    assert seen == [[2, 5, 6]] * len(seen)
    assert len(seen) > 1


# --- laws


def first_steps(chosen: Policy, table: torch.Tensor, rows: int = 6000):
    """Return the accepted sets of a first step, [rows, W] bool, and the canvases after it."""
    views = []
    model = FixedModel(torch.cat([torch.zeros(1, table.shape[1]), table]), NO_MASK)
    wanted = [Request(f"q{i}", (0,), chosen, len(table), len(table)) for i in range(rows)]
    live = LiveBatches(
        model, rows, observer=StepCallback(lambda view: views.append((view.decision, view.canvas.clone())))
    )
    for request in wanted:
        live.submit(request)
    live.turn()
    return views[0][0].commit, views[0][1][:, 1:]


@pytest.mark.parametrize("t_pos", [0.4, 2.0])
def test_accepted_sets_follow_the_entropy_bound(t_pos):
    """The order is Plackett-Luce in exp(-H / T_pos), and a prefix of it is accepted: all by enumeration."""
    table = torch.tensor([[3.0, 0, 0], [2.0, 0, 0], [1.2, 0, 0], [0.3, 0, 0]])
    chosen = policy("diffusion-gemma", t_pos=t_pos, entropy_bound=1.2, stop_entropy=0.0)
    q = (table / chosen.t_token).double().softmax(-1)
    h = torch.special.entr(q).sum(-1).tolist()
    law: dict[tuple[int, ...], float] = {}
    for order in permutations(range(4)):
        probability, rest = 1.0, set(order)
        for i in order:
            probability *= exp(-h[i] / t_pos) / sum(exp(-h[j] / t_pos) for j in rest)
            rest -= {i}
        prefix: list[int] = []
        while len(prefix) < 4:
            longer = [h[i] for i in order[: len(prefix) + 1]]
            if sum(longer) - max(longer) > chosen.entropy_bound:
                break
            prefix.append(order[len(prefix)])
        accepted = tuple(sorted(prefix))
        law[accepted] = law.get(accepted, 0.0) + probability
    assert len(law) > 2
    commit, _ = first_steps(chosen, table)
    found = [tuple(row.nonzero()[:, 0].tolist()) for row in commit]
    counts = [found.count(accepted) for accepted in law]
    assert sum(counts) == len(found)
    assert chi_square(counts, list(law.values())) > 1e-3


def test_what_is_not_accepted_is_uniform_noise_and_the_rest_is_drawn():
    table = torch.tensor([[2.0, 0, 0, 0, 1.0]] * 3)
    commit, canvas = first_steps(policy("tlc", t_token=1.0, t_pos=1.0), table)
    assert bool((commit.sum(1) == 1).all())
    renoised, drawn = canvas[~commit], canvas[commit]
    assert chi_square(renoised.bincount(minlength=5).tolist(), [0.2] * 5) > 1e-3
    # TLC accepts one of three draws with probability proportional to c.
    q = table[0].double().softmax(-1)
    grid = torch.cartesian_prod(*[torch.arange(5)] * 3)
    weight = q[grid].prod(1)[:, None] * q[grid] / q[grid].sum(1, keepdim=True)
    law = torch.zeros(5, dtype=torch.float64).index_add_(0, grid.flatten(), weight.flatten())
    assert chi_square(drawn.bincount(minlength=5).tolist(), law.tolist()) > 1e-3


# --- refusals


@pytest.mark.parametrize("name", sorted(set(PRESETS) - set(NAMES)))
def test_policies_that_need_masks_are_refused(name):
    with pytest.raises(UserError, match="needs masks"):
        check_request(Request("q", (2, 3), policy(name), 4), UniformModel())


def test_a_temperature_falls_over_a_number_of_steps():
    with pytest.raises(UserError, match="set steps"):
        twotemp.policy("tct", cooling=0.3)
