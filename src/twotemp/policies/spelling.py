"""Parse and spell policies as users write them: a preset's name with parameters, or a portfolio of such policies.

A portfolio says which policy draws which sample of a prompt. Sample i is exactly the one that policy `at(i)` draws at
index i, so stored samples of the components are those of the portfolio. They are ordered, not exchangeable: the first
k are the same portfolio, a random subset is another one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any

from twotemp.errors import UserError, unknown
from twotemp.policies.presets import PRESETS, Preset
from twotemp.records import PARAMETERS, Policy, integer

_NEXT = re.compile(r"\+(?=\s*(?:\d+\s*\*\s*)?[A-Za-z])")  # not the plus of 1e+06
_ENTRY = re.compile(r"\s*(?:(\d{1,18})\s*\*)?(.*)", re.DOTALL)


def policy(name: str, **parameters: Any) -> Policy:
    """Return the policy of that name (`twotemp policies` lists them) with some parameters set.

    >>> import twotemp
    >>> twotemp.policy("tct", t_pos=0.2).t_pos
    0.2
    """
    if name not in PRESETS:
        raise unknown("policy", name, PRESETS)
    preset = PRESETS[name]
    for key in parameters:
        if key not in preset.settable:
            raise _refused(preset, key, parameters[key])
    return replace(preset.policy, **parameters)


def _refused(preset: Preset, key: str, value: Any) -> UserError:
    """Return the error for a parameter that a preset does not have; it names the tempered family of a fixed T_pos."""
    name, fixed = preset.policy.name, preset.policy.t_pos
    for other in PRESETS.values() if key == "t_pos" else ():
        if "t_pos" in other.parameters and replace(other.policy, name=name, t_pos=fixed) == preset.policy:
            family = other.policy.name
            return UserError(
                f"unknown parameter of policy {name!r}: t_pos; {name} is {family} at T_pos = {_text(fixed)}, so "
                f"use {family}:t_pos={value}"
            )
    return unknown(f"parameter of policy {name!r}:", key, preset.settable)


def parse(spec: str) -> Policy:
    """Return the policy of a spelling such as `tct:t_pos=0.1,threshold=0.6`."""
    name, _, rest = spec.partition(":")
    parameters: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"policy {spec!r}: write parameters as name=value, not {part!r}")
        key = key.strip()
        if key in parameters:
            raise UserError(f"policy {spec!r}: {key} is given twice; leave one out")
        # An unknown name is `policy`'s to report, which knows the nearest one.
        parameters[key] = PARAMETERS[key].read(key, value.strip()) if key in PARAMETERS else value
    return policy(name.strip(), **parameters)


@dataclass(frozen=True)
class Portfolio:
    """Policies with the number of samples that each draws, in the order of the sample index.

    `parse_portfolio` makes one, in canonical form: neighbors differ.
    """

    entries: tuple[tuple[int, Policy], ...]
    cycle: bool = False  # start again after the last entry; otherwise its policy draws all further samples

    def __post_init__(self) -> None:
        for count, policy in self.entries:
            integer("the count of a portfolio's policy", count, least=1)
            if policy.repel:
                raise UserError(
                    f"policy {spell(policy)} cannot be part of a portfolio: its samples depend on those "
                    "before them; set repel=0"
                )

    @property
    def name(self) -> str:
        """Its spelling."""
        return spell(self)

    @property
    def components(self) -> tuple[Policy, ...]:
        """The policies that draw samples, in the order of their first one."""
        return tuple(dict.fromkeys(policy for _, policy in self.entries))

    def for_sample(self, index: int) -> Policy:
        """Return the policy that draws the sample with this index."""
        left = index % sum(count for count, _ in self.entries) if self.cycle else index
        for count, policy in self.entries:
            if left < count:
                return policy
            left -= count
        return self.entries[-1][1]

    def map(self, change: Callable[[Policy], Policy]) -> Policy | Portfolio:
        """Return the portfolio of the changed policies."""
        return _canonical([(count, change(policy)) for count, policy in self.entries], self.cycle)

    def join_names(self, name: Callable[[Policy], str]) -> str:
        """Return it as a sum of names with their counts, as in `3*ct + tct`."""
        last = len(self.entries) - 1
        return " + ".join(
            name(policy) if count == 1 and not (self.cycle and number == last) else f"{count}*{name(policy)}"
            for number, (count, policy) in enumerate(self.entries)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {"cycle": self.cycle, "entries": [[count, policy.to_dict()] for count, policy in self.entries]}


AnyPolicy = Policy | Portfolio


def policy_from_dict(data: Mapping[str, Any]) -> AnyPolicy:
    """Return the policy or portfolio whose `to_dict` this is."""
    if "entries" not in data:
        return Policy.from_dict(data)
    entries = [(count, Policy.from_dict(policy)) for count, policy in data["entries"]]
    return _canonical(entries, data["cycle"])


def parse_portfolio(spec: str) -> AnyPolicy:
    """Return the portfolio of a spelling, or the policy if it names a single one.

    `lc + tlc:t_pos=0.5`: the first sample by LC, all others by TLC. An entry without a count draws one sample, the
    last entry all that follow. In `3*ct + 5*tct` the last entry has a count, so the pattern of eight samples repeats.

    >>> portfolio = parse_portfolio("lc + 2*tlc:t_pos=0.5 + ar")
    >>> [portfolio.for_sample(index).name for index in range(5)]
    ['lc', 'tlc', 'tlc', 'ar', 'ar']
    """
    parts = [_ENTRY.fullmatch(part) for part in _NEXT.split(spec)]
    counts, specs = zip(*(part.groups() for part in parts if part))
    entries = [(int(count or 1), parse(policy)) for count, policy in zip(counts, specs)]
    return _canonical(entries, cycle=counts[-1] is not None)


def from_order(policies: Sequence[Policy]) -> AnyPolicy:
    """Return the portfolio whose sample i `policies[i]` draws; the last policy draws all further samples."""
    return _canonical([(1, policy) for policy in policies], cycle=False)


def spell(given: AnyPolicy) -> str:
    """Return the shortest spelling that `parse_portfolio` reads as this policy or portfolio.

    A policy that no preset can spell gets its name and a hash of all of its fields.
    """
    return _spell_policy(given) if isinstance(given, Policy) else given.join_names(_spell_policy)


def _canonical(entries: list[tuple[int, Policy]], cycle: bool) -> AnyPolicy:
    """Return the portfolio with equal neighbors merged, or the policy if only one is left."""
    runs: list[tuple[int, Policy]] = [
        (sum(count for count, _ in run), policy) for policy, run in groupby(entries, lambda entry: entry[1])
    ]
    if len(runs) == 1:
        return runs[0][1]
    return Portfolio(tuple(runs if cycle else [*runs[:-1], (1, runs[-1][1])]), cycle)


def _spell_policy(given: Policy) -> str:
    """Return the shortest spelling that `parse` reads as this policy; see `spell`."""
    if given.name in PRESETS:
        preset = PRESETS[given.name]
        changed = [key for key in preset.settable if getattr(given, key) != getattr(preset.policy, key)]
        numbers = ",".join(f"{key}={_text(getattr(given, key))}" for key in changed)
        spec = f"{given.name}:{numbers}" if changed else given.name
        if parse(spec) == given:
            return spec
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", given.name).strip("-.") or "policy"
    # Only what differs from the defaults, so that new fields of later versions do not change the hash.
    changes = [(f.name, getattr(given, f.name)) for f in fields(given) if getattr(given, f.name) != f.default]
    return f"{readable}+{hashlib.sha256(repr(changes).encode()).hexdigest()[:8]}"


def _text(value: Any) -> str:
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
