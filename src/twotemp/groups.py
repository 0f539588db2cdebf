"""Samples that repel each other (`Policy.repel`) are drawn as one group: complete, in order, at the same time.

Sample k is pushed away from samples 0 to k - 1 of its question. So it is the same for every n > k, but only where
these are drawn beside it. Whoever cuts, sorts or splits requests does it by whole groups, with the functions here.
"""

from __future__ import annotations

from collections.abc import Sequence

from twotemp.errors import UserError
from twotemp.records import Policy, Request


def gather(requests: Sequence[Request]) -> list[list[Request]]:
    """Whole groups, each by index, where its first one stood; requests that repel nobody are groups of one."""
    groups: dict[object, list[Request]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(number if request.group is None else request.group, []).append(request)
    return [sorted(group, key=lambda r: r.index) if len(group) > 1 else group for group in groups.values()]


def check_whole(group: Sequence[Request], slots: int) -> None:
    """Refuse a group in which a sample lacks one that it is pushed away from, or that no batch can hold."""
    first, size = group[0], len(group)
    if first.group is None:
        return
    if [request.index for request in group] != list(range(size)):
        has = ", ".join(str(request.index) for request in group)
        raise UserError(
            f"request {first.id!r}: with repel={first.policy.repel:g} a sample depends on those before it, so that "
            f"they are drawn together, each once and from 0 on; these are samples {has}"
        )
    if size > slots:
        raise UserError(
            f"request {first.id!r}: {size} samples that repel each other are decoded together, and a batch has "
            f"{slots} rows; set batch_size to {size} or more, draw fewer samples, or set repel=0"
        )


def refuse(policy: Policy, where: str) -> None:
    """For whoever draws rows one by one."""
    if policy.repel:
        raise UserError(
            f"policy {policy.name} has repel={policy.repel:g}: its samples are drawn in whole groups, which {where} "
            "cannot do; use `twotemp sample` or `twotemp eval`, or set repel=0"
        )
