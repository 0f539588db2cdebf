"""Closed forms of the two temperatures: what the samplers must do, in law, is known exactly."""

from __future__ import annotations

import math
import re
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.helpers.policy_steps import DRAWS, chi_square, decide, keys_of, logits_with_confidence, noise, step
from twotemp import rng
from twotemp.errors import UserError
from twotemp.policies import PRESETS, parse, policy
from twotemp.policies import positions as where
from twotemp.policies.step import PolicyBatch
from twotemp.policies.tokens import draw, keep_top_k, keep_top_p
from twotemp.records import Policy
from twotemp.rng import Noise

# --- where: TLC


@pytest.mark.parametrize("t_pos", [0.3, 1.0, 2.5])
def test_tlc_first_pick_follows_tempered_confidence(t_pos):
    c = [0.9, 0.7, 0.5, 0.35]
    found = decide(policy("tlc", t_token=0.0, t_pos=t_pos), logits_with_confidence(c), DRAWS)
    weight = [x ** (1 / t_pos) for x in c]
    expected = [w / sum(weight) for w in weight]
    assert chi_square(found.commit.sum(0).tolist(), expected) > 1e-3
    assert (found.commit.sum(1) == 1).all()


@pytest.mark.parametrize("t_pos", [0.5, 1.0])
def test_tlc_ordered_pairs_follow_plackett_luce(t_pos):
    """Gumbel top-2, in order, is two draws without replacement from Cat(c^(1/T_pos))."""
    c = torch.tensor([0.9, 0.6, 0.4, 0.3], dtype=torch.float64)
    u = noise(DRAWS, 4).uniform(rng.Stream.POSITION)
    t = torch.full((DRAWS,), t_pos, dtype=torch.float64)
    score = where.perturb(c.log().expand(DRAWS, -1), t, rng.gumbel(u))
    first, second = score.topk(2, dim=1).indices.T.tolist()
    w = (c ** (1 / t_pos)).tolist()
    pairs = list(permutations(range(4), 2))
    expected = [w[i] / sum(w) * w[j] / (sum(w) - w[i]) for i, j in pairs]
    counts = [0] * len(pairs)
    for pair in zip(first, second):
        counts[pairs.index(pair)] += 1
    assert chi_square(counts, expected) > 1e-3
    k2 = decide(policy("tlc", t_token=0.0, t_pos=t_pos, k=2), logits_with_confidence(c.tolist()), DRAWS)
    assert torch.equal(k2.commit, torch.zeros_like(k2.commit).scatter(1, score.topk(2, 1).indices, True))


def test_t_pos_zero_is_lc_and_ct_and_inf_is_uniform():
    c = [0.9, 0.2, 0.61, 0.5]
    table = logits_with_confidence(c)
    for tempered, plain in (("tlc", "lc"), ("tct", "ct")):
        a = decide(policy(tempered, t_token=0.8, t_pos=0.0), table, 500)
        b = decide(policy(plain, t_token=0.8), table, 500)
        assert torch.equal(a.tokens, b.tokens)
        assert torch.equal(a.commit, b.commit)
    uniform = decide(policy("tlc", t_token=0.0, t_pos=math.inf), table, DRAWS)
    assert chi_square(uniform.commit.sum(0).tolist(), [0.25] * 4) > 1e-3
    assert torch.equal(uniform.commit, decide(policy("random", t_token=0.0), table, DRAWS).commit)


def test_random_order_ignores_confidence_even_at_extremes():
    table = logits_with_confidence([1 - 1e-6, 0.2001, 0.9, 0.21])
    found = decide(policy("random", t_token=0.0), table, DRAWS)
    assert chi_square(found.commit.sum(0).tolist(), [0.25] * 4) > 1e-3


# --- where: TCT


@pytest.mark.parametrize(("lam", "t_pos"), [(0.6, 0.1), (0.6, 0.5), (0.3, 1.0)])
def test_tct_inclusion_is_a_sigmoid(lam, t_pos):
    c = [0.95, 0.62, 0.58, 0.25, 0.4, 0.99]
    found = decide(policy("tct", t_token=0.0, t_pos=t_pos, threshold=lam), logits_with_confidence(c), DRAWS)
    u = noise(DRAWS, len(c)).uniform(rng.Stream.POSITION)
    score = torch.tensor(c, dtype=torch.float64) - lam + t_pos * rng.logistic(u)
    some = (score > 0).any(1)
    assert torch.equal(found.commit[some], (score > 0)[some].bool())
    for i, x in enumerate(c):  # the Bernoulli law itself, before the rule for the empty set
        p = 1 / (1 + math.exp(-(x - lam) / t_pos))
        assert stats.binomtest(int((score[:, i] > 0).sum()), DRAWS, p).pvalue > 1e-4
    assert (found.commit.sum(1) >= 1).all()


def test_ct_empty_set_commits_the_highest():
    found = decide(policy("ct", t_token=0.0, threshold=0.95), logits_with_confidence([0.3, 0.6, 0.5]), 4)
    assert found.commit.tolist() == [[False, True, False]] * 4


def test_tct_empty_set_commits_the_highest_perturbed():
    c = [0.3, 0.32, 0.28]
    found = decide(policy("tct", t_token=0.0, threshold=1.0, t_pos=0.05), logits_with_confidence(c), 2000)
    u = noise(2000, 3).uniform(rng.Stream.POSITION)
    score = torch.tensor(c, dtype=torch.float64) - 1.0 + 0.05 * rng.logistic(u)
    empty = (score <= 0).all(1)
    assert int(empty.sum()) > 1900
    assert torch.equal(found.commit[empty].int().argmax(1), score[empty].argmax(1))
    assert (found.commit[empty].sum(1) == 1).all()


def test_tct_at_infinity_flips_coins():
    found = decide(
        policy("tct", t_token=0.0, t_pos=math.inf), logits_with_confidence([0.99, 0.21, 0.5]), DRAWS
    )
    # Fair coins, but the all-tails eighth commits one of three: (1/2 + 1/24) each.
    for count in found.commit.sum(0).tolist():
        assert stats.binomtest(count, DRAWS, 0.5 + 1 / 24).pvalue > 1e-4


def test_threshold_is_strict_and_fast_dllm_is_not():
    table = logits_with_confidence([0.5, 0.75, 0.9], vocab=2)
    strict = decide(policy("ct", t_token=0.0, threshold=0.75), table, 1).confidence
    lam = float(strict[0, 1])  # the confidence as computed, so that equality is equality
    assert decide(policy("ct", t_token=0.0, threshold=lam), table, 1).commit.tolist() == [
        [False, False, True]
    ]
    loose = decide(policy("fast-dllm", threshold=lam), table, 1)
    assert loose.commit.tolist() == [[False, True, True]]


# --- where: the others


def test_ar_takes_the_leftmost_and_soft_ar_loosens_it():
    table = logits_with_confidence([0.3, 0.9, 0.5, 0.99])
    assert decide(policy("ar", k=2, t_token=0.0), table, 1).commit.tolist() == [[True, True, False, False]]
    soft = decide(policy("soft-ar", t_pos=0.7, t_token=0.0), table, DRAWS)
    w = [math.exp(-i / 0.7) for i in range(4)]
    assert chi_square(soft.commit.sum(0).tolist(), [x / sum(w) for x in w]) > 1e-3


def test_margin_and_entropy_rank_by_their_scores():
    p = torch.tensor([[0.5, 0.45, 0.05], [0.45, 0.28, 0.27], [0.5, 0.25, 0.25]])
    margin = decide(policy("margin", t_token=0.0), p.log(), 1)
    entropy = decide(policy("entropy", t_token=0.0), p.log(), 1)
    assert margin.commit.tolist() == [[False, False, True]]  # margins 0.05, 0.17, 0.25
    assert entropy.commit.tolist() == [[True, False, False]]  # entropies 0.86, 1.07, 1.04: lowest first
    h = -(p * p.log()).sum(1)
    assert torch.allclose(entropy.entropy[0], h, atol=1e-6)


def test_entropy_bound_takes_the_longest_prefix():
    """Brute force: the largest m with sum of the m smallest H minus the largest of them <= gamma."""
    torch.manual_seed(0)
    for trial in range(50):
        table = torch.randn(7, 6) * 2
        gamma = 0.3 * trial / 10
        found = decide(policy("eb", t_token=0.0, entropy_bound=gamma), table, 1)
        h = sorted(found.entropy[0].tolist())
        best = max(m for m in range(1, 8) if m == 1 or sum(h[:m]) - max(h[:m]) <= gamma)
        assert int(found.commit.sum()) == best
        assert max(found.entropy[0][found.commit[0]]) <= h[best - 1] + 1e-7


def test_klass_waits_for_stable_predictions():
    chosen = policy("klass", t_token=0.0, threshold=0.6, kl_bound=0.01, kl_steps=2)
    batch, masked = PolicyBatch([chosen]), torch.ones(1, 3, dtype=torch.bool)
    table = logits_with_confidence([0.9, 0.95, 0.3])
    memory, seen = None, []
    for number in range(4):
        moving = table.clone()
        moving[1] = logits_with_confidence([0.7 + 0.25 * (number % 2)])[0]  # confident but restless
        decision, memory = step(batch, noise(1, 3, number), moving, masked, memory=memory)
        seen.append(decision.commit[0].tolist())
    assert seen[0] == [True, False, False] or sum(seen[0]) == 1  # nothing is stable yet: the highest alone
    assert seen[2] == [True, False, False]  # position 0 was stable twice; 1 keeps moving; 2 is unsure
    fresh = Noise(noise(1, 3).keys, torch.tensor([9]), torch.arange(3, 6)[None])  # the next block
    _, after = step(batch, fresh, table, masked, memory=memory)
    assert int(after.stable.sum()) == 0


def test_dream_schedule():
    """k(step) = int(n (1 - s/t)) with t from 1 to 0.001; at least one; the last step takes all."""
    chosen = policy("dream", steps=8, t_token=0.0)
    left, taken = 16, []
    for number in range(8):
        batch = PolicyBatch([chosen])
        masked = torch.zeros(1, 16, dtype=torch.bool)
        masked[0, :left] = True
        found, _ = step(batch, noise(1, 16, number), torch.randn(left, 5), masked)
        t, s = (1 - 0.999 * number / 8), (1 - 0.999 * (number + 1) / 8)
        k = left if number == 7 else max(1, int(left * (1 - s / t)))
        assert int(found.commit.sum()) == k
        taken.append(k)
        left -= k
    assert sum(taken) == 16


def test_uneven_steps_round_up_and_the_page_about_models_tells_it_from_dllms_rounding():
    ours, dllms, left = [], [], [8, 8]
    for taken in range(3):
        ours.append(int(where.even(torch.tensor([left[0]]), torch.tensor([3]), torch.tensor([taken]))))
        dllms.append(int(torch.tensor(left[1] / (3 - taken)).round()))
        left = [left[0] - ours[-1], left[1] - dllms[-1]]
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    rule = r"\(8 positions over\s+3 steps: ([\d, ]+)\); `lc:steps` rounds up, as LLaDA does \(([\d, ]+)\)"
    documented = [[int(n) for n in numbers.split(",")] for numbers in re.search(rule, page).groups()]
    assert documented == [dllms, ours]
    assert dllms != ours


def test_dream_exact_schedule_is_upstreams_arithmetic():
    """int(n (1 - s/t)) of float32 tensors, for every step; it wastes steps where ours commits a position."""
    wasted = 0
    for steps in (1, 2, 3, 7, 8, 64, 100, 256, 512, 777):
        time = torch.linspace(1, 1e-3, steps + 1)
        left, step = torch.tensor(512), torch.arange(steps)
        shares = where.dream_exact(left.expand(steps), torch.full((steps,), steps), step)
        upstream = [int(left * (1 - time[i + 1] / time[i])) for i in range(steps - 1)] + [512]
        assert shares.tolist() == upstream
        wasted += upstream.count(0)
    assert wasted > 0
    assert where.dream_exact(torch.tensor([512]), torch.tensor([512]), torch.tensor([0])).tolist() == [0]
    assert where.dream(torch.tensor([512]), torch.tensor([512]), torch.tensor([0])).tolist() == [1]


def test_alg_temp_tempers_c_not_log_c():
    c = [0.9, 0.6, 0.3]
    found = decide(policy("alg-temp", t_pos=0.4, t_token=0.0), logits_with_confidence(c), DRAWS)
    w = [math.exp(x / 0.4) for x in c]
    assert chi_square(found.commit.sum(0).tolist(), [x / sum(w) for x in w]) > 1e-3


# --- what


@pytest.mark.parametrize("t_token", [0.5, 0.8, 1.0, 1.7])
def test_tokens_follow_the_tempered_softmax(t_token):
    z = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]])
    found = decide(policy("lc", t_token=t_token), z, DRAWS)
    expected = torch.softmax(z[0].double() / t_token, 0).tolist()
    assert chi_square(torch.bincount(found.tokens[:, 0], minlength=5).tolist(), expected) > 1e-3
    raw = torch.softmax(z[0], 0)
    assert torch.allclose(found.confidence[:, 0], raw[found.tokens[:, 0]], atol=1e-6)


def test_tail_tokens_keep_their_probability_at_full_vocabulary():
    """At V = 126,464: a token of probability 1e-6 owns exactly its share of the unit interval."""
    vocab, tail = 126_464, torch.tensor([3, 63_000, 126_463])
    weights = torch.rand(1, vocab, generator=torch.Generator().manual_seed(0)) * 0.1 + 1.0
    weights[0, tail] = 0
    weights[0, tail] = (weights.double().sum() * 1e-6 / (1 - 3e-6)).float()
    p = (weights[0].double() / weights[0].double().sum()).cumsum(0)
    for token in tail.tolist():
        low, high = (float(p[token - 1]), float(p[token]))
        inside = torch.linspace(low, high, 1002, dtype=torch.float64)[1:-1]
        hits = draw(weights.expand(1000, -1), inside) == token
        assert int(hits.sum()) >= 995  # all but rounding at the two edges
        edge = 1e-9
        outside = torch.tensor([low - edge, high + edge], dtype=torch.float64).clamp(1e-16, 1 - 1e-16)
        others = draw(weights.expand(2, -1), outside)
        assert int(others[0]) < token or token == 0
        assert int(others[1]) > token or token == vocab - 1


def test_rare_tokens_are_drawn_at_their_rate():
    """400,000 draws at p = 1e-4: 40 expected (Poisson). A row's key is drawn from once per step, as in the engine."""
    z = torch.zeros(1000)
    p_rare = 1e-4
    z[7] = math.log(p_rare * 999 / (1 - p_rare))
    keys, hits = keys_of(DRAWS), 0
    weights = z.exp().expand(DRAWS, -1)
    for number in range(400_000 // DRAWS):
        u = rng.uniform(
            keys, torch.full_like(keys, number), torch.zeros(DRAWS, 1, dtype=torch.int64), rng.Stream.TOKEN
        )
        hits += int((draw(weights, u[:, 0]) == 7).sum())
    assert stats.poisson.sf(hits - 1, 40) > 1e-3
    assert stats.poisson.cdf(hits, 40) > 1e-3


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2000), st.integers(0, 2**31 - 1))
def test_draw_never_picks_an_impossible_token(vocab, seed):
    noise_source = torch.Generator().manual_seed(seed)
    weights = torch.rand(8, vocab, generator=noise_source)
    weights[torch.rand(8, vocab, generator=noise_source) < 0.7] = 0
    weights[:, seed % vocab] = 1e-30  # at least one is possible
    edges = torch.tensor([2.0**-53, 1 - 2.0**-53, 0.5, 0.25], dtype=torch.float64).repeat(2)
    picked = draw(weights, edges)
    assert (weights.gather(1, picked[:, None]) > 0).all()


def test_top_k_and_top_p():
    w = torch.tensor([[5.0, 1.0, 3.0, 1.0]] * 3)
    assert keep_top_k(w, torch.tensor([1, 2, 0]), 2).tolist() == [[5, 0, 0, 0], [5, 0, 3, 0], [5, 1, 3, 1]]
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 4)
    kept = keep_top_p(p, torch.tensor([0.4, 0.5001, 0.9, 1.0])) > 0
    assert kept.sum(1).tolist() == [1, 2, 3, 4]
    drawn = decide(policy("lc", t_token=1.5, top_k=2), torch.tensor([[2.0, 1.0, 0.0, -1.0]]), 2000).tokens
    assert set(drawn[:, 0].tolist()) == {0, 1}


def test_greedy_and_drawn_rows_share_a_batch():
    z = torch.randn(1, 50)
    chosen = [policy("lc", t_token=0.0), policy("lc", t_token=3.0)] * 500
    batch = PolicyBatch(chosen)
    masked = torch.ones(1000, 1, dtype=torch.bool)
    found, _ = step(batch, noise(1000, 1), z.repeat(1000, 1), masked)
    assert (found.tokens[::2] == z.argmax()).all()
    assert len(set(found.tokens[1::2, 0].tolist())) > 10


def test_eos_last_works_at_every_temperature():
    """The defect: EOS confidence suppression that does nothing at T_token > 0."""
    table = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 0.5]])  # token 0 is EOS, and very sure
    eos = (0,)
    for t_token in (0.0, 0.3, 1.0):
        for name, extra in (("lc", {}), ("tlc", {"t_pos": 0.1}), ("ct", {}), ("random", {})):
            chosen = policy(name, t_token=t_token, eos="last", **extra)
            found = decide(chosen, table, 300, eos=eos)
            first = found.commit & (found.tokens == 0)
            some_other = (found.tokens != 0).any(1)
            assert not bool(first[some_other].any()), (name, t_token)
    never = decide(policy("lc", t_token=1.0, eos="never"), table, 300, eos=eos)
    assert not bool((never.tokens == 0).any())


def test_confidence_of_the_drawn_distribution():
    """Upstream-faithful presets take c after temperature and filters; ours takes it before."""
    z = torch.tensor([[2.0, 1.0, 0.0]])
    drawn = decide(policy("llada2", t_token=0.5, top_k=2), z, 200)
    p = torch.softmax(z[0, :2] / 0.5, 0)
    assert torch.allclose(drawn.confidence[:, 0], p[drawn.tokens[:, 0]], atol=1e-6)


def test_negative_entropy_is_negative():
    """The defect: 'neg_entropy' that was +entropy, so the least certain position went first."""
    table = logits_with_confidence([0.99, 0.3])
    assert decide(policy("entropy", t_token=0.0), table, 1).commit.tolist() == [[True, False]]


# --- names and bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: policy("tcl"), "did you mean 'tlc'"),
        (lambda: policy("tct", thresold=0.5), "did you mean 'threshold'"),
        (lambda: policy("lc", t_pos=0.5), "unknown parameter"),
        (lambda: policy("tlc", t_pos=-1), "t_pos must be in"),
        (lambda: policy("tlc", t_pos=math.nan), "t_pos must be in"),
        (lambda: policy("lc", t_token=-0.1), "t_token must be in"),
        (lambda: policy("lc", t_token=math.inf), r"t_token must be in \[0, inf\), not inf"),
        (lambda: policy("lc", k=0), "k must be an integer >= 1"),
        (lambda: policy("lc", k=1.5), "k must be an integer >= 1"),
        (lambda: policy("ct", threshold=1.2), "threshold must be in"),
        (lambda: policy("ct", threshold=-0.1), "threshold must be in"),
        (lambda: policy("lc", top_p=0.0), r"top_p must be in \(0, 1\], not 0.0"),
        (lambda: policy("lc", eos="late"), "unknown value of eos 'late'; did you mean 'last'"),
        (lambda: parse("tct:t_pos"), "name=value"),
        (lambda: parse("tct:t_pos=warm"), "not a number"),
    ],
)
def test_bad_policies_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_numpy_numbers_become_python_numbers():
    given = policy("tct", t_pos=np.float32(0.5), top_k=np.int64(2), threshold=np.float64(0.25))
    assert given == policy("tct", t_pos=0.5, top_k=2, threshold=0.25)
    assert [type(value) for value in (given.t_pos, given.top_k, given.threshold)] == [float, int, float]


def test_parse_round_trip():
    assert parse("tct:t_pos=0.2,threshold=0.7") == policy("tct", t_pos=0.2, threshold=0.7)
    assert parse("tlc:t_pos=inf").t_pos == math.inf
    for name in PRESETS:
        assert Policy.from_dict(parse(name).to_dict()) == parse(name)
    with pytest.raises(UserError, match="unknown key in the policy"):
        Policy.from_dict({**policy("lc").to_dict(), "temperature": 1})
