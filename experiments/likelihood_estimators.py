"""Bias and spread of the likelihood estimators on a table whose exact likelihood is known.

    python experiments/likelihood_estimators.py

A table of all strings of 2 + 6 letters over {a, b, c}, with weights exp(s * normal) of a few values of s (the
larger, the more the positions depend on each other); samples of several policies; each random estimator drawn
200 times a sample. bias: mean of estimate - exact. std: of an estimate over its own randomness.

The second table is about trajectories, not strings: by how much `trajectory` exceeds the log-probability that hard
thresholds (CT) decode as they did. That is `deferral`, which is exact there.
"""

from __future__ import annotations

from itertools import product

import torch

from twotemp.engine import run
from twotemp.models.table import TableModel
from twotemp.policies import parse
from twotemp.records import Request, Sample
from twotemp.rl.likelihood import ESTIMATORS, RANDOM, Completions, log_likelihood

PROMPT, LENGTH, LETTERS, MASK = 2, 6, 3, 3
POLICIES = ("ar:t_token=1", "tct:t_token=1,threshold=0.6,t_pos=0.1", "tct:t_token=1,threshold=0.3,t_pos=0.1")
HARD = ("ct:t_token=1,threshold=0.3", "ct:t_token=1,threshold=0.6", "ct:t_token=1,threshold=0.9")
STRINGS = ("d1", "trajectory", "ar", "elbo")  # those that estimate the likelihood of the string
SAMPLES, DRAWS = 64, 200


def table(scale: float) -> TableModel:
    generator = torch.Generator().manual_seed(0)
    strings = list(product(range(LETTERS), repeat=PROMPT + LENGTH))
    weights = torch.randn(len(strings), generator=generator).mul(scale).exp().tolist()
    return TableModel(list(zip(strings, weights)), vocab_size=LETTERS + 1, mask_id=MASK)


def exact(model: TableModel, samples: list[Sample]) -> torch.Tensor:
    rows = torch.tensor([s.prompt + s.tokens for s in samples])
    agrees = (model.sequences[None] == rows[:, None]).all(2).double() @ model.weights
    given = (model.sequences[None, :, :PROMPT] == rows[:, None, :PROMPT]).all(2).double() @ model.weights
    return (agrees / given).log().float()


def draw(model: TableModel, spec: str) -> list[Sample]:
    prompts = [(i % LETTERS, i // LETTERS % LETTERS) for i in range(SAMPLES)]
    requests = [
        Request(str(i), prompt, parse(spec), length=LENGTH, trace=True) for i, prompt in enumerate(prompts)
    ]
    return sorted(run(model, requests), key=lambda s: int(s.request))


def main() -> None:
    print("| dependence | rollouts | estimator | passes per row | bias (nats) | std (nats) |")
    print("|---|---|---|---|---|---|")
    for scale in (0.5, 2.0):
        model = table(scale)
        for spec in POLICIES:
            samples = draw(model, spec)
            rows = Completions.of(samples, model.eos_ids)
            truth = exact(model, samples)
            for name in STRINGS:
                estimates = []
                for number in range(DRAWS if name in RANDOM else 1):
                    asked = ESTIMATORS[name](rows, MASK, number, 1)
                    estimates.append(log_likelihood(model.logits, rows, asked, torch.tensor([MASK])))
                error = torch.stack(estimates) - truth
                std = error.std(0).mean() if name in RANDOM else torch.zeros(())
                passes = len(asked) / len(samples)
                print(f"| {scale:g} | {spec} | {name} | {passes:.1f} | {error.mean():+.3f} | {std:.3f} |")
    print("\n| dependence | rollouts | log-probability of a trajectory | trajectory exceeds it by |")
    print("|---|---|---|---|")
    for scale in (0.5, 2.0):
        model = table(scale)
        for spec in HARD:
            rows = Completions.of(draw(model, spec), model.eos_ids)
            given_order, decided = (
                log_likelihood(model.logits, rows, ESTIMATORS[name](rows, MASK, 0, 1), torch.tensor([MASK]))
                for name in ("trajectory", "deferral")
            )
            excess = given_order - decided
            print(f"| {scale:g} | {spec} | {decided.mean():.2f} | {excess.mean():.2f} ± {excess.std():.2f} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
