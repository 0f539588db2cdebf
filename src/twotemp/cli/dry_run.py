"""`twotemp eval --dry-run`: forward passes, arithmetic and memory of a plan, before any weights are read."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from twotemp import tasks
from twotemp.cli.options import LoadingOptions
from twotemp.engine.scheduler import block_of, row_bytes
from twotemp.evaluation import Plan
from twotemp.models.load import load_text, usable_device, usable_dtype
from twotemp.models.summary import summarize
from twotemp.models.weight_loading import gigabytes, weight_bytes
from twotemp.policies import spell
from twotemp.records import Policy, Request
from twotemp.sampling.requests import encode_problem


def estimates(plan: Plan, name: str, loading: LoadingOptions) -> Iterator[dict[str, Any]]:
    """Yield what each task and policy of a plan costs. Samples that a run already has are not subtracted.

    Args:
        plan: What to draw.
        name: The model's name, folder or hub id.
        loading: How it would be loaded.

    Returns:
        An iterator over rows with the samples, the least and the most forward passes, their FLOPs, and the memory of
        the weights and of one row in bytes.
    """
    model: Any = load_text(name, **loading.text_options())
    device = usable_device(loading.device)
    model.module.to(usable_dtype(loading.dtype, device) or summarize(name).dtype)
    weights = weight_bytes(model.module, loading.quantize)
    for choice in plan.tasks:
        length = plan.length or tasks.get(choice.name).length
        problems = choice.problems().problems[: choice.questions or plan.questions]
        prompts = [tuple(encode_problem(model, problem, plan.chat)) for problem in problems]
        longest = max(prompts, key=len)
        for policy in plan.policies:
            components = policy.components
            parts = [Request("row", longest, part, length, plan.block) for part in components]
            block = block_of(parts[0], model)
            least, most = zip(*(passes(part, length, block) for part in components))
            columns = sum(map(len, prompts)) / len(prompts) + length
            samples = plan.n * len(prompts)
            flops = [
                samples * row_flops(model, columns, block, count, ceil(length / block), plan.cache)
                for count in (min(least), max(most))
            ]
            yield {
                "task": choice.name,
                "policy": spell(policy),
                "samples": samples,
                "passes": [samples * min(least), samples * max(most)],
                "flops": flops,
                "weights": weights,
                "row": row_bytes(model, parts, plan.cache),
            }


def passes(policy: Policy, length: int, block: int) -> tuple[int, int]:
    """Return the least and the most forward passes of a row: equal where the policy fixes them."""
    widths = [min(block, length - start) for start in range(0, length, block)]
    if policy.rule == "budget" and policy.edit == "never":
        count = sum(min(width, policy.steps) if policy.steps else ceil(width / policy.k) for width in widths)
        return count, count
    return len(widths), length


def row_flops(model: Any, columns: float, block: int, count: int, blocks: int, cache: str | None) -> float:
    """Return the FLOPs of a row: 2 for each weight and position, and those of attention.

    Args:
        model: The model, with or without its weights.
        columns: Positions of the row.
        block: Positions of a block, at which the head is computed.
        count: Forward passes.
        blocks: Blocks of the row; with a cache, the first pass of each computes the whole row.
        cache: Which positions the other passes compute.
    """
    config, module = model.module.config, model.module
    share = (getattr(config, "num_experts_per_tok", None) or 1) / (getattr(config, "num_experts", None) or 1)
    body = sum(w.numel() * (share if w.dim() == 3 else 1) for w in module.model.layers.parameters())
    attention = 4 * config.num_hidden_layers * config.hidden_size * columns
    head = 2 * config.hidden_size * config.vocab_size * block
    narrow = {"dual": block, "prefix": (columns + block) / 2}.get(cache or "", columns)
    if model.block_size is not None:
        narrow = block
    whole = min(count, blocks)
    positions = whole * columns + (count - whole) * narrow
    return float(positions * (2 * body + attention) + count * head)


def describe(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    least, most = row["passes"]
    count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    low, high = (f"{flops / 1e15:.3g}" for flops in row["flops"])
    arithmetic = high if low == high else f"{low} to {high}"
    return (
        f"{row['task']} {row['policy']}: {row['samples']:,} samples, {count} forward passes, {arithmetic} PFLOP; "
        f"weights {gigabytes(row['weights'])}, {gigabytes(row['row'])} more for each row of a batch"
    )
