"""Limits of a run: wall-clock time, NFE or steps, whichever comes first."""

from __future__ import annotations

import re
from dataclasses import dataclass

from twotemp.errors import UserError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(steps?|nfe|[smhd])", re.IGNORECASE)
_EXAMPLES = "write for example 10m, 1h30m, 200steps, 1000000nfe, or several with commas: 2h,500steps"


@dataclass(frozen=True)
class Budget:
    """No step starts once one of the limits is reached; None is no limit."""

    seconds: float | None = None  # of training; evaluations do not count
    nfe: int | None = None  # of rollouts, in the paper's accounting, summed over rows
    steps: int | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.seconds, self.nfe, self.steps) if limit is not None]
        if not limits:
            raise UserError(f"a budget needs at least one limit; {_EXAMPLES}")
        if any(limit <= 0 for limit in limits):
            raise UserError(f"an empty budget allows no step; {_EXAMPLES}")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget of a text such as `10m`, `1h30m` or `2h,500steps`."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            added: dict[str, float] = {}
            pieces = _PART.findall(part)
            if not pieces or _PART.sub("", part).strip():
                raise UserError(f"cannot read the budget {text!r}: {_EXAMPLES}")
            for number, unit in pieces:
                unit = unit.lower()
                kind = "steps" if unit.startswith("step") else "nfe" if unit == "nfe" else "seconds"
                if kind != "seconds" and "." in number:
                    raise UserError(f"the budget {text!r}: {kind} must be a whole number")
                if kind in limits or (kind in added and kind != "seconds"):
                    raise UserError(f"the budget {text!r} limits {kind} twice; {_EXAMPLES}")
                added[kind] = added.get(kind, 0.0) + float(number) * _SECONDS.get(unit, 1)
            limits |= added
        return cls(
            seconds=limits.get("seconds"),
            nfe=int(limits["nfe"]) if "nfe" in limits else None,
            steps=int(limits["steps"]) if "steps" in limits else None,
        )

    def check(self, rows_per_step: int) -> None:
        """Raise an error if the first step must exceed the budget."""
        if self.nfe is not None and self.nfe < rows_per_step:
            raise UserError(
                f"a budget of {self.nfe} NFE is impossible: a step draws {rows_per_step} samples, each of at "
                f"least 1 NFE; raise it or lower the number or size of the groups"
            )

    def used(self, seconds: float, nfe: int, steps: int) -> float:
        """Return the share of the budget that is used up: 1 or more means stop."""
        pairs = ((seconds, self.seconds), (nfe, self.nfe), (steps, self.steps))
        return max(spent / limit for spent, limit in pairs if limit is not None)

    def __str__(self) -> str:
        named = ((self.seconds, "s"), (self.nfe, "nfe"), (self.steps, "steps"))
        return ",".join(f"{limit:g}{unit}" for limit, unit in named if limit is not None)
