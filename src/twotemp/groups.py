"""Which requests must stay together: a group is what schedulers and workers handle, usually of one request.

Samples that repel each other (`Policy.repel`) form a larger group, drawn completely, in order and at the same time:
sample k is pushed away from samples 0 to k - 1 of its prompt. So it is the same for every n > k, but only if these
are drawn with it. Code that sorts or splits requests does it by whole groups, with the functions here.
"""

from __future__ import annotations

from collections.abc import Sequence

from twotemp.errors import UserError
from twotemp.records import Policy, Request


def gather(requests: Sequence[Request]) -> list[list[Request]]:
    """Return whole groups in the order of their first requests, each sorted by index; most are groups of one."""
    groups: dict[object, list[Request]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(number if request.group is None else request.group, []).append(request)
    return [sorted(group, key=lambda r: r.index) if len(group) > 1 else group for group in groups.values()]


def check_whole(group: Sequence[Request], slots: int) -> None:
    """Raise a UserError for a group that lacks a sample which others depend on, or that no batch can hold."""
    first, size = group[0], len(group)
    if first.group is None:
        return
    if [request.index for request in group] != list(range(size)):
        indices = ", ".join(str(request.index) for request in group)
        raise UserError(
            f"request {first.id!r}: with repel={first.policy.repel:g} a sample depends on those before it, so "
            f"request samples 0, 1, 2, ... together, each once; these are samples {indices}"
        )
    if size > slots:
        raise UserError(
            f"request {first.id!r}: {size} samples that repel each other are decoded together, and a batch has "
            f"{slots} rows; set batch_size to {size} or more, draw fewer samples, or set repel=0"
        )


def refuse(policy: Policy, where: str) -> None:
    """Raise a UserError if the policy needs groups, which `where` (drawing rows one by one) cannot provide."""
    if policy.repel:
        raise UserError(
            f"policy {policy.name} has repel={policy.repel:g}: its samples are drawn in whole groups, which {where} "
            "cannot do; use `twotemp sample` or `twotemp eval`, or set repel=0"
        )
