"""Bias and spread of the likelihood estimators on a table whose exact likelihood is known.

    python -m experiments.likelihood_estimators

A table of all strings of 2 + 6 letters over {a, b, c}, with weights exp(s * normal) of a few values of s (the
larger, the more the positions depend on each other); samples of several policies; each random estimator drawn
200 times a sample. bias: mean of estimate - exact. std: of an estimate over its own randomness.

The second table is about trajectories, not strings: by how much `trajectory` exceeds the log-probability that hard
thresholds (CT) decode as they did. That is `deferral`, which is exact there.
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


def log_p(model: TableModel, samples: list[Sample], name: str, draws: int = 1) -> torch.Tensor:
    """Estimates [draws, samples]."""
    completions = [Completion.from_sample(sample) for sample in samples]
    return estimate(model, completions, ESTIMATORS[name], draws=range(draws), batch_size=64)


def measure() -> dict[str, Any]:
    """Bias and spread of the estimators of strings; what `trajectory` exceeds the law of a trajectory by."""
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
            found = {"law": decided.mean().item(), "mean": excess.mean().item(), "std": excess.std().item()}
            trajectories.append({"scale": scale, "rollouts": spec, **rounded(found)})
    return {"strings": strings, "trajectories": trajectories}


def rounded(found: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 3) + 0.0 for name, value in found.items()}


def of_strings(found: dict[str, Any]) -> str:
    """Bias ± std, in nats; for `trajectory` the passes that it takes."""
    lines: dict[tuple[float, str], dict[str, str]] = {}
    for one in found["strings"]:
        bias = signed(one["bias"], 3)
        more = f" ± {one['std']:.3f}" if one["std"] is not None else ""
        if one["estimator"] == "trajectory":
            more = f" ({one['passes']:.1f} passes)"
        lines.setdefault((one["scale"], one["rollouts"]), {})[one["estimator"]] = bias + more
    heads = ["dependence", "rollouts", *(f"`{name}`" for name in STRINGS)]
    rows = [
        [f"{scale:g}", f"`{spec}`", *(line[name] for name in STRINGS)]
        for (scale, spec), line in lines.items()
    ]
    return markdown(heads, rows, len(STRINGS))


def of_trajectories(found: dict[str, Any]) -> str:
    heads = ["dependence", "rollouts", "log-probability of the trajectory", "`trajectory` exceeds it by"]
    rows = [
        [
            f"{one['scale']:g}",
            f"`{one['rollouts']}`",
            signed(one["law"], 2),
            f"{one['mean']:.2f} ± {one['std']:.2f}",
        ]
        for one in found["trajectories"]
    ]
    return markdown(heads, rows, 2)


if __name__ == "__main__":
    result = measure()
    print(f"{of_strings(result)}\n\n{of_trajectories(result)}")
