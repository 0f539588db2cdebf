"""The exact numbers of the pages about forks and theory: enumerated, not sampled."""

from __future__ import annotations

from typing import Any

from experiments.blocks import table
from theory import beyond, planted
from twotemp.policies import parse

PLANTED = (
    "ar",
    "lc",
    "tlc:t_pos=0.5",
    "tlc:t_pos=1",
    "random",
    "lc:k=2",
    "tlc:t_pos=1,k=2",
    "ct",
    "tct:t_pos=0.1",
    "tct:t_pos=0.3",
)


def measure() -> dict[str, Any]:
    return {
        "planted": [{"policy": spec, **outcomes(spec)} for spec in PLANTED],
        "sweep": beyond.sweep_table(beyond.example()),
        "monotonicity": beyond.study_table(beyond.study()),
    }


def outcomes(spec: str) -> dict[str, float]:
    """What becomes of the planted fork under a policy."""
    found = planted.exact(parse(spec))
    return {
        "fork_entropy": found.fork_entropy,
        "token_entropy": found.token_entropy,
        "semantic_entropy": found.semantic_entropy,
        "pass@1": found.pass_at(1),
        "pass@16": found.pass_at(16),
        "broken": found.outcomes.get("ImportError", 0.0),
        "statistics": found.libraries.get("statistics", 0.0),
    }


def of_the_fork(found: dict[str, Any]) -> str:
    """The planted fork, policy by policy, and what it shows."""
    shown = ("fork_entropy", "token_entropy", "semantic_entropy", "pass@1", "pass@16", "broken")
    heads = ["policy", "H̄ of the fork", "H of its token", "semantic entropy", "pass@1", "pass@16", "broken"]
    by_policy = {one["policy"]: one for one in found["planted"]}
    rows = [[f"`{spec}`", *(f"{one[name]:.3f}" for name in shown)] for spec, one in by_policy.items()]

    def percent(spec: str, name: str) -> str:
        return f"{100 * by_policy[spec][name]:.1f} %"

    lost = (
        f"- **LC loses an outcome.** Left to right, {percent('ar', 'statistics')} of the programs use `statistics`; "
        f"LC's, {percent('lc', 'statistics')}, and sixteen of them hold the wanted program with "
        f"{percent('lc', 'pass@16')} probability. T_pos = 1 brings that to {percent('tlc:t_pos=1', 'pass@16')}."
    )
    broken = (
        "- **Parallel commits break programs** (`from numpy import stdev`). A budget of two or a soft threshold can "
        f"commit both halves of a choice in one step: {percent('tlc:t_pos=1,k=2', 'broken')} for TLC at K = 2, "
        f"{percent('tct:t_pos=0.3', 'broken')} for TCT at T_pos = 0.3. Part of the entropy in those rows is that."
    )
    return f"{table(heads, rows)}\n\n(nats) What it shows:\n\n{lost}\n{broken}"


def sweep(found: dict[str, Any]) -> str:
    return str(found["sweep"])


def monotonicity(found: dict[str, Any]) -> str:
    return str(found["monotonicity"])
