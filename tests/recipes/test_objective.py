"""The training objectives against brute force."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from recipes import tokenizer
from recipes.objective import diffusion_loss, next_token_loss, stratified_times, uniform_loss

torch.set_num_threads(1)
WORDS = tokenizer.build()


@pytest.mark.parametrize("least", [0.0, 0.02, 0.5])
def test_times_are_uniform_and_evenly_spaced(least: float) -> None:
    times = torch.stack([stratified_times(8, least, torch.Generator().manual_seed(s)) for s in range(500)])
    shares = (times - least) / (1 - least) * 8
    assert torch.equal(shares.floor(), torch.arange(8.0).double().expand(500, 8))
    assert torch.allclose(shares % 1, (shares % 1)[:, :1].expand(500, 8))
    assert float((shares % 1).mean()) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("options", "times", "weight"),
    [
        ({}, (0.0, 1.0), lambda t: 1 / t),
        ({"least_time": 0.1, "largest_weight": 2.5}, (0.1, 1.0), lambda t: min(1 / t, 2.5)),
    ],
    ids=["equation 3", "bounded"],
)
def test_diffusion_loss_is_the_papers_objective(options, times, weight) -> None:
    """A set M of m of the L positions is masked with probability t^m (1-t)^(L-m), so the loss is a finite sum over M
    of int w(t) t^m (1-t)^(L-m) dt times the loss of the state; for w = 1/t over [0, 1] that is B(m, L-m+1)."""
    length, prompt, vocabulary, mask = 3, 2, 5, 4
    ids = torch.tensor([[0, 1, 2, 0, 3]])
    table = torch.randn(5, vocabulary**length, vocabulary, generator=torch.Generator().manual_seed(0))

    def logits(x: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        """Return random logits for every position and state, as a function of the visible tokens."""
        state = (x[:, prompt:] * vocabulary ** torch.arange(length)).sum(1)
        rows, columns = want.nonzero(as_tuple=True)
        return table[columns, state[rows]]

    low, high = times
    middles = [low + (high - low) * (i + 0.5) / 20_000 for i in range(20_000)]
    exact = 0.0
    for masked in product((False, True), repeat=length):
        m = sum(masked)
        if m == 0:
            continue
        where = torch.tensor([[False] * prompt + list(masked)])
        nll = -logits(ids.masked_fill(where, mask), where).log_softmax(-1)
        total = float(nll.gather(1, ids[where][:, None]).sum())
        share = sum(weight(t) * t**m * (1 - t) ** (length - m) for t in middles) / 20_000
        if not options:
            beta = math.gamma(m) * math.gamma(length - m + 1) / math.gamma(length + 1)
            assert share == pytest.approx(beta, rel=1e-4)
        exact += share * total
    rows = 4000
    losses = [
        float(
            diffusion_loss(
                logits, ids.expand(rows, -1), prompt, mask, torch.Generator().manual_seed(s), **options
            )
        )
        for s in range(5)
    ]
    assert sum(losses) / 5 == pytest.approx(exact / length, rel=0.02)


def test_diffusion_loss_never_masks_the_prompt_and_asks_only_for_masked_positions() -> None:
    seen = []

    def logits(x: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        seen.append((x, want))
        return torch.zeros(int(want.sum()), 9)

    ids = torch.randint(0, 8, (50, 7), generator=torch.Generator().manual_seed(0))
    diffusion_loss(logits, ids, 3, 8, torch.Generator().manual_seed(1))
    (x, want) = seen[0]
    assert torch.equal(x == 8, want)
    assert torch.equal(x[~want], ids[~want])
    assert not want[:, :3].any()
    assert want[:, 3:].any(0).all()


def test_uniform_loss_is_the_mean_over_all_states() -> None:
    """A token is the right one with probability 1 - t + t / V, else each other one with t / V."""
    length, prompt, vocabulary, least = 2, 1, 3, 0.2
    ids = torch.tensor([[2, 0, 1]])
    table = torch.randn(length, vocabulary**length, vocabulary, generator=torch.Generator().manual_seed(0))

    def logits(x: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        assert want.tolist() == [[False, True, True]] * len(x)
        assert bool((x[:, 0] == 2).all())
        state = x[:, 1] * vocabulary + x[:, 2]
        return table[:, state].transpose(0, 1).flatten(0, 1)

    exact = 0.0
    for state in product(range(vocabulary), repeat=length):
        at = state[0] * vocabulary + state[1]
        nll = -table[:, at].log_softmax(-1)
        loss = sum(float(nll[k, ids[0, prompt + k]]) for k in range(length)) / length
        wrong = sum(state[k] != int(ids[0, prompt + k]) for k in range(length))
        for i in range(2000):
            t = least + (1 - least) * (i + 0.5) / 2000
            exact += (t / 3) ** wrong * (1 - t + t / 3) ** (length - wrong) * loss / 2000
    losses = [
        float(
            uniform_loss(
                *(logits, ids.expand(20_000, -1), prompt, vocabulary, torch.Generator().manual_seed(s)),
                least_time=least,
            )
        )
        for s in range(3)
    ]
    assert sum(losses) / 3 == pytest.approx(exact, rel=0.01)


def test_next_token_loss_predicts_each_answer_token_from_the_previous_position() -> None:
    ids = torch.tensor([[5, 3, 1, 2], [5, 3, 4, 0]])

    def logits(x: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        assert want.tolist() == [[False, True, True, False]] * 2
        scores = torch.zeros(4, 6)
        scores[torch.arange(4), torch.tensor([1, 2, 4, 0])] = 2.0
        return scores

    expected = math.log(math.exp(2) + 5) - 2
    assert float(next_token_loss(logits, ids, 2)) == pytest.approx(expected)
