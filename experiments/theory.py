"""Compute the exact numbers of docs/forks.md and docs/theory.md, by enumeration."""

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
    """Return the outcomes of the planted fork, and the two tables of docs/theory.md as Markdown."""
    return {
        "planted": [{"policy": spec, **outcomes(spec)} for spec in PLANTED],
        "sweep": beyond.sweep_table(beyond.example()),
        "monotonicity": beyond.study_table(beyond.study()),
    }


def outcomes(spec: str) -> dict[str, float]:
    """Return the entropies and outcomes of the planted fork under a policy."""
    law = planted.exact(parse(spec))
    return {
        "fork_entropy": law.fork_entropy,
        "token_entropy": law.token_entropy,
        "semantic_entropy": law.semantic_entropy,
        "pass@1": law.pass_at(1),
        "pass@16": law.pass_at(16),
        "broken": law.outcomes.get("ImportError", 0.0),
        "statistics": law.libraries.get("statistics", 0.0),
    }


def render_fork(result: dict[str, Any]) -> str:
    """Return the table of the planted fork, a row per policy, and what it shows."""
    columns = ("fork_entropy", "token_entropy", "semantic_entropy", "pass@1", "pass@16", "broken")
    heads = ["policy", "H̄ of the fork", "H of its token", "semantic entropy", "pass@1", "pass@16", "broken"]
    by_policy = {row["policy"]: row for row in result["planted"]}
    rows = [[f"`{spec}`", *(f"{row[name]:.3f}" for name in columns)] for spec, row in by_policy.items()]

    def percent(spec: str, name: str) -> str:
        return f"{100 * by_policy[spec][name]:.1f} %"

    lost = (
        f"- **LC loses an outcome.** Decoded left to right, {percent('ar', 'statistics')} of the programs use "
        f"`statistics`; with LC only {percent('lc', 'statistics')} do, and 16 LC samples contain the wanted program "
        f"with probability {percent('lc', 'pass@16')}. T_pos = 1 raises this to {percent('tlc:t_pos=1', 'pass@16')}."
    )
    broken = (
        "- **Parallel commits break programs** (`from numpy import stdev`). With a budget of two or a soft "
        "threshold, both halves of a choice can be committed in the same step, independently of each other: "
        f"{percent('tlc:t_pos=1,k=2', 'broken')} of the programs of TLC at K = 2 and "
        f"{percent('tct:t_pos=0.3', 'broken')} of those of TCT at T_pos = 0.3 are broken in this way. They "
        "account for part of the entropy in those rows."
    )
    return f"{table(heads, rows)}\n\nEntropies are in nats. The table shows:\n\n{lost}\n{broken}"


def sweep(result: dict[str, Any]) -> str:
    """Return the table of H-bar over budgets, thresholds and T_pos."""
    return str(result["sweep"])


def monotonicity(result: dict[str, Any]) -> str:
    """Return the table of monotonicity claims on random models."""
    return str(result["monotonicity"])
