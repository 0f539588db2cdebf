"""The newer points of the frame: a score that precedes the draw, a fallback, a separate first step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

import twotemp
from tests.helpers.policy_steps import DRAWS, chi_square, decide, logits_with_confidence, noise, step
from tests.helpers.toy import FixedModel, ToyModel
from theory.exact import commit_sets
from twotemp import rng
from twotemp.errors import UserError
from twotemp.policies import PRESETS, policy
from twotemp.policies.step import PolicyBatch


def close(found: torch.Tensor, p: float) -> bool:
    """Return whether the number of True flags is plausible if each has probability p."""
    return stats.binomtest(int(found.sum()), found.numel(), p).pvalue > 1e-3


def committed(found) -> torch.Tensor:
    """The one token each row wrote."""
    assert (found.commit.sum(1) == 1).all()
    return found.tokens[found.commit]


# --- TPP: chosen before the draw


@pytest.mark.parametrize("t_pos", [0.3, 1.0, math.inf])
@pytest.mark.parametrize("t_token", [0.0, 1.0])
def test_tpp_first_pick_follows_the_tempered_top_probability_whatever_is_drawn(t_token, t_pos):
    top = [0.9, 0.7, 0.5, 0.35]
    found = decide(policy("tpp", t_token=t_token, t_pos=t_pos), logits_with_confidence(top), DRAWS)
    weight = [x ** (1 / t_pos) for x in top]
    assert chi_square(found.commit.sum(0).tolist(), [w / sum(weight) for w in weight]) > 1e-3


@pytest.mark.parametrize("t_token", [0.5, 1.0, 1.7])
def test_tpp_writes_what_the_token_temperature_says(t_token):
    """The order does not look at the draw, so the token committed has the tempered law itself; LC's has not."""
    table = torch.tensor([[2.0, 1.0, 0.0, -1.0]] * 3)
    expected = torch.softmax(table[0].double() / t_token, 0).tolist()

    def counts(name):
        return torch.bincount(committed(decide(policy(name, t_token=t_token), table, DRAWS)), minlength=4)

    assert chi_square(counts("tpp").tolist(), expected) > 1e-3
    assert chi_square(counts("lc").tolist(), expected) < 1e-9


def test_greedy_tpp_is_lc_and_its_score_is_of_the_distribution_that_is_drawn_from():
    table = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    a, b = (decide(policy(name, t_token=0.0), table, 2) for name in ("tpp", "lc"))
    assert torch.equal(a.commit, b.commit)
    # Two even tokens and a third one, against a top of 0.55: cut to one token, the first position is sure.
    p = torch.tensor([[0.5, 0.4, 0.1], [0.55, 0.25, 0.2]])
    plain = decide(policy("tpp", top_p=0.5), p.log(), 1)
    judged = decide(replace(policy("tpp", top_p=0.45, t_token=1.0), confidence="drawn"), p.log(), 1)
    assert plain.commit.tolist() == [[False, True]]
    assert judged.commit.tolist() == [[True, False]]


# --- how often LC truncates (docs/theory.md, section 5)


@pytest.mark.parametrize("t_token", [1.0, 1.6])
@pytest.mark.parametrize("m", [1, 2, 4])
def test_lc_writes_an_unlikely_token_with_probability_one_minus_c_to_the_m_and_tpp_with_one_minus_c(
    m, t_token
):
    table = logits_with_confidence([0.6] * m)
    c = float(torch.softmax(table[0] / t_token, 0)[0])
    for name, law in (("lc", (1 - c) ** m), ("tpp", 1 - c), ("random", 1 - c)):
        found = decide(policy(name, t_token=t_token), table, DRAWS)
        assert close(committed(found) != 0, law), name


def test_masks_that_differ_multiply():
    c = [0.6, 0.55, 0.7]
    lc, tpp = (decide(policy(name, t_token=1.0), logits_with_confidence(c), DRAWS) for name in ("lc", "tpp"))
    assert close(committed(lc) != 0, math.prod(1 - x for x in c))
    assert close(committed(tpp) != 0, 1 - 0.7)


@pytest.mark.parametrize("t_pos", [0.2, 0.7, 3.0])
def test_t_pos_spans_truncation_and_none(t_pos):
    m, c, vocab = 4, 0.6, 5
    r = ((1 - c) / (vocab - 1) / c) ** (1 / t_pos)
    law = sum(stats.binom.pmf(n, m, c) * (m - n) * r / (n + (m - n) * r) for n in range(m + 1))
    assert (1 - c) ** m < law < 1 - c
    found = decide(policy("tlc", t_token=1.0, t_pos=t_pos), logits_with_confidence([c] * m, vocab), DRAWS)
    assert close(committed(found) != 0, law)


def test_a_row_of_lc_has_few_unlikely_tokens_however_long_it_is():
    c, length = 0.6, 12
    table = logits_with_confidence([c] * (length + 2), vocab=6)
    table[:, 5] = -math.inf  # the mask
    c = float(torch.softmax(table[0], 0)[0])
    model = FixedModel(table, 5)
    for name, law in (("lc", sum((1 - c) ** m for m in range(1, length + 1))), ("tpp", length * (1 - c))):
        found = twotemp.sample(model, [1, 2], policy(name, t_token=1.0), n=2000, length=length, block=length)
        unlikely = torch.tensor([[token != 0 for token in sample.tokens] for sample in found]).sum(1).double()
        error = float(unlikely.std()) / math.sqrt(len(unlikely))
        assert abs(float(unlikely.mean()) - law) < 4 * error, name


# --- Fork: the leftmost mask where nothing passes


def test_fork_takes_what_passes_and_else_the_leftmost():
    table = logits_with_confidence([0.3, 0.95, 0.5, 0.9])
    assert decide(policy("fork", t_token=0.0), table, 1).commit.tolist() == [[False, True, False, True]]
    alone = decide(policy("fork", t_token=0.0, threshold=0.99), table, 1)
    assert alone.commit.tolist() == [[True, False, False, False]]


@pytest.mark.parametrize("t_pos", [0.0, 0.1, 0.5])
def test_fork_commits_each_by_its_sigmoid_and_the_leftmost_if_none(t_pos):
    """P(j) = p_j, and for the leftmost p_1 + prod_j (1 - p_j), at T_token > 0 averaged over the draw."""
    c, lam, vocab = [0.6, 0.85, 0.7], 0.65, 3
    found = decide(
        policy("fork", t_token=1.0, threshold=lam, t_pos=t_pos), logits_with_confidence(c, vocab), DRAWS
    )

    def passes(x: float) -> float:
        return float(x > lam) if t_pos == 0 else 1 / (1 + math.exp((lam - x) / t_pos))

    p = [x * passes(x) + (1 - x) * passes((1 - x) / (vocab - 1)) for x in c]
    law = [p[0] + math.prod(1 - x for x in p), *p[1:]]
    for place, expected in enumerate(law):
        assert close(found.commit[:, place], expected)
    # What tells it from CT: where none passes, CT takes the highest score.
    u = noise(DRAWS, 3).uniform(rng.Stream.POSITION)
    score = found.confidence.double() + t_pos * rng.logistic(u)
    none = (score <= lam).all(1)
    assert bool(none.any())
    assert (found.commit[none].int().argmax(1) == 0).all()


def test_no_exact_law_is_claimed_for_other_fallbacks_and_first_steps():
    for chosen in (policy("fork"), replace(policy("lc"), first_score="entropy")):
        with pytest.raises(UserError, match="no exact law"):
            commit_sets(chosen, {0: 0.5, 1: 0.6})


# --- EGI: a first step of its own


def of_step(chosen, table, number, rows=DRAWS):
    width = len(table)
    masked = torch.ones(rows, width, dtype=torch.bool)
    return step(PolicyBatch([chosen] * rows), noise(rows, width, number), table.repeat(rows, 1), masked)[0]


@pytest.mark.parametrize("t_pos", [0.0, 0.7])
def test_egi_starts_with_the_highest_entropy_and_continues_as_tpp(t_pos):
    chosen = policy("egi", t_pos=t_pos)
    table = logits_with_confidence([0.9, 0.5, 0.7])
    q = table.double().softmax(-1)
    score = {0: -(q * q.log()).sum(-1), 3: q.amax(-1).log()}
    temperature = {0: chosen.first_t_token, 3: chosen.t_token}
    for number in (0, 3):
        found = of_step(chosen, table, number)
        if t_pos == 0:
            assert (found.commit.int().argmax(1) == int(score[number].argmax())).all()
        else:
            law = (score[number] / t_pos).softmax(0).tolist()
            assert chi_square(found.commit.sum(0).tolist(), law) > 1e-3
        drawn = torch.softmax(table[1].double() / temperature[number], 0).tolist()
        assert chi_square(torch.bincount(found.tokens[:, 1], minlength=5).tolist(), drawn) > 1e-3


def test_rows_at_their_first_step_share_a_batch_with_others_and_greedy_ones():
    """Row by row: the first greedy at its first step, the second at its later ones."""
    chosen = [policy("egi", first_t_token=0.0, t_token=3.0), policy("egi", first_t_token=3.0, t_token=0.0)]
    batch = PolicyBatch(chosen * 500)
    table = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    masked = torch.ones(1000, 2, dtype=torch.bool)
    for number, greedy in ((0, 0), (1, 1)):
        found, _ = step(batch, noise(1000, 2, number), table.repeat(1000, 1), masked)
        assert (found.tokens[greedy::2] == table.argmax(-1)).all()
        assert len(set(found.tokens[1 - greedy :: 2, 0].tolist())) > 10


def test_a_separate_first_step_is_not_left_to_right():
    """An AR row with a first commit elsewhere needs predictions of all masks, and pays for every step."""
    chosen = replace(policy("ar", t_token=0.0), first_score="entropy", first_t_token=0.0)
    assert policy("ar").left_to_right
    assert not chosen.left_to_right
    (found,) = twotemp.sample(ToyModel(seed=2), [2, 3, 4], chosen, length=8, block=8, trace=True)
    first = found.trace.steps.index(0)
    assert first > 0
    assert [s for place, s in enumerate(found.trace.steps) if place != first] == list(range(1, 8))
    assert found.nfe == found.forwards == 8


# --- presets that are another one at a fixed T_pos


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lc", "lc is tlc at T_pos = 0, so use tlc:t_pos=1.5"),
        ("random", "random is tlc at T_pos = inf, so use tlc"),
        ("ct", "ct is tct at T_pos = 0, so use tct"),
        ("ar", "ar is soft-ar at T_pos = 0, so use soft-ar"),
    ],
)
def test_a_plain_preset_names_its_tempered_family(name, said):
    assert "t_pos" not in PRESETS[name].parameters
    with pytest.raises(UserError, match=said):
        policy(name, t_pos=1.5)
