"""Measure bias and spread of the likelihood estimators on a table model whose likelihoods are known exactly.

    python -m experiments.likelihood_estimators

The table holds all strings of 2 + 6 letters over {a, b, c} with weights exp(s * normal); the larger s, the more the
positions depend on each other. Samples are drawn with several policies, and each random estimator is drawn 200
times per sample. The bias is the mean of estimate - exact, the std that of an estimate over its own randomness.

The second table is about trajectories instead of strings: by how much `trajectory` exceeds the log-probability of the
decoding order that CT (hard thresholds) took. `deferral` computes that log-probability exactly.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from experiments.blocks import signed
from experiments.blocks import table as markdown
from theory.table import TableModel
from twotemp.engine import run
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.likelihood.queries import Completion, CompletionBatch, estimate
from twotemp.policies import parse
from twotemp.records import Request, Sample

PROMPT, LENGTH, LETTERS, MASK = 2, 6, 3, 3
POLICIES = ("ar:t_token=1", "tct:t_token=1,threshold=0.6,t_pos=0.1", "tct:t_token=1,threshold=0.3,t_pos=0.1")
HARD = ("ct:t_token=1,threshold=0.3", "ct:t_token=1,threshold=0.6", "ct:t_token=1,threshold=0.9")
STRINGS = ("d1", "trajectory", "ar", "elbo")  # those that estimate the likelihood of the string
SAMPLES, DRAWS = 64, 200


def table(scale: float) -> TableModel:
    """Return the table model with weights exp(scale * normal)."""
    generator = torch.Generator().manual_seed(0)
    strings = list(product(range(LETTERS), repeat=PROMPT + LENGTH))
    weights = torch.randn(len(strings), generator=generator).mul(scale).exp().tolist()
    return TableModel(list(zip(strings, weights)), vocab_size=LETTERS + 1, mask_id=MASK)


def exact(model: TableModel, samples: list[Sample]) -> torch.Tensor:
    """Return the log-probability of each sample's tokens given its prompt."""
    rows = torch.tensor([s.prompt + s.tokens for s in samples])
    joint = (model.sequences[None] == rows[:, None]).all(2).double() @ model.weights
    prompt = (model.sequences[None, :, :PROMPT] == rows[:, None, :PROMPT]).all(2).double() @ model.weights
    return (joint / prompt).log().float()


def draw(model: TableModel, spec: str) -> list[Sample]:
    """Return traced samples of a policy, in the order of their requests."""
    prompts = [(i % LETTERS, i // LETTERS % LETTERS) for i in range(SAMPLES)]
    requests = [
        Request(str(i), prompt, parse(spec), length=LENGTH, trace=True) for i, prompt in enumerate(prompts)
    ]
    return sorted(run(model, requests), key=lambda s: int(s.request))


def log_p(model: TableModel, samples: list[Sample], name: str, draws: int = 1) -> torch.Tensor:
    """Estimates [draws, samples]."""
    completions = [Completion.from_sample(sample) for sample in samples]
    return estimate(model, completions, ESTIMATORS[name], draws=range(draws), batch_size=64)


def measure() -> dict[str, Any]:
    """Return the rows of both tables as JSON."""
    torch.set_num_threads(1)
    strings: list[dict[str, Any]] = []
    trajectories: list[dict[str, Any]] = []
    for scale in (0.5, 2.0):
        model = table(scale)
        for spec in POLICIES:
            samples = draw(model, spec)
            completions = [Completion.from_sample(sample) for sample in samples]
            batch = CompletionBatch.pad(completions, eos_ids=model.eos_ids, mask_id=MASK)
            truth = exact(model, samples)
            for name in STRINGS:
                random = ESTIMATORS[name].random
                error = log_p(model, samples, name, DRAWS if random else 1) - truth
                std = error.std(0).mean().item() if random else None
                passes = len(ESTIMATORS[name](batch)) / len(samples)
                found = {"bias": error.mean().item(), "std": std, "passes": passes}
                strings.append({"scale": scale, "rollouts": spec, "estimator": name, **rounded(found)})
        for spec in HARD:
            samples = draw(model, spec)
            given_order, decided = (log_p(model, samples, name)[0] for name in ("trajectory", "deferral"))
            excess = given_order - decided
            row = {"law": decided.mean().item(), "mean": excess.mean().item(), "std": excess.std().item()}
            trajectories.append({"scale": scale, "rollouts": spec, **rounded(row)})
    return {"strings": strings, "trajectories": trajectories}


def rounded(row: dict[str, float | None]) -> dict[str, float | None]:
    """Return the row with three digits after the point, without negative zeros."""
    return {name: None if value is None else round(value, 3) + 0.0 for name, value in row.items()}


def render_strings(result: dict[str, Any]) -> str:
    """Return the table of bias ± std in nats, and for `trajectory` the number of passes."""
    lines: dict[tuple[float, str], dict[str, str]] = {}
    for row in result["strings"]:
        bias = signed(row["bias"], 3)
        more = f" ± {row['std']:.3f}" if row["std"] is not None else ""
        if row["estimator"] == "trajectory":
            more = f" ({row['passes']:.1f} passes)"
        lines.setdefault((row["scale"], row["rollouts"]), {})[row["estimator"]] = bias + more
    heads = ["dependence", "rollouts", *(f"`{name}`" for name in STRINGS)]
    rows = [
        [f"{scale:g}", f"`{spec}`", *(line[name] for name in STRINGS)]
        for (scale, spec), line in lines.items()
    ]
    return markdown(heads, rows, len(STRINGS))


def render_trajectories(result: dict[str, Any]) -> str:
    """Return the table of how much `trajectory` exceeds the log-probability of a trajectory."""
    heads = ["dependence", "rollouts", "log-probability of the trajectory", "`trajectory` exceeds it by"]
    rows = [
        [
            f"{row['scale']:g}",
            f"`{row['rollouts']}`",
            signed(row["law"], 2),
            f"{row['mean']:.2f} ± {row['std']:.2f}",
        ]
        for row in result["trajectories"]
    ]
    return markdown(heads, rows, 2)


if __name__ == "__main__":
    result = measure()
    print(f"{render_strings(result)}\n\n{render_trajectories(result)}")
