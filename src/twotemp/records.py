"""The plain data that flows between the rooms: frozen, self-validating, without torch.

Problem -> Request -> (engine) -> Sample -> (grader) -> Grade
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from twotemp.errors import UserError, unknown
from twotemp.plain import from_json, record, to_json

Score = Literal["log_confidence", "confidence", "log_margin", "neg_entropy", "position"]
Rule = Literal["budget", "threshold", "entropy_bound", "stable"]
Outcome = Literal["passed", "failed", "timeout", "ungraded"]


@dataclass(frozen=True)
class Policy:
    """One decoding policy, as data: *what* to write (tokens) and *where* (positions).

    The positions committed at a step are the plain `rule` applied to the `score` perturbed by
    T_pos-scaled noise; `twotemp.policies` holds the functions, `presets` the named points.
    """

    name: str
    # Structure: rows of one batch share these three.
    score: Score
    rule: Rule
    confidence: Literal["model", "drawn"] = "model"  # of q itself, or of the tempered and filtered q
    # Numbers: may differ from row to row of a batch.
    t_token: float = 0.8
    t_pos: float = 0.0
    k: int = 1  # positions a step (budget), or the least number of positions a step (other rules)
    threshold: float = 1.0  # lambda
    inclusive: bool = False  # compare with >= instead of >
    entropy_bound: float = 0.0  # gamma
    kl_bound: float = 0.0  # epsilon of KL stability
    kl_steps: int = 1  # how many steps in a row the prediction must have been stable
    steps: int = 0  # > 0: k follows Dream's schedule over this many steps
    top_k: int = 0  # 0: no filter
    top_p: float = 1.0  # 1: no filter
    eos: Literal["free", "last", "never"] = "free"  # EOS: as any token, lowest confidence, forbidden

    def __post_init__(self) -> None:
        for name in ("t_token", "t_pos"):
            value = getattr(self, name)
            if not value >= 0:  # catches NaN too
                raise UserError(f"{name} must be in [0, inf], not {value!r}")
        if math.isinf(self.t_token):
            raise UserError("t_token must be finite: at inf every token is equally likely")
        for name in ("threshold", "top_p"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise UserError(f"{name} must be in [0, 1], not {value!r}")
        if self.top_p == 0:
            raise UserError("top_p must be above 0; use t_token=0 for greedy tokens")
        for name, least in (("k", 1), ("kl_steps", 1), ("steps", 0), ("top_k", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} must be an integer >= {least}, not {value!r}")
        for name in ("entropy_bound", "kl_bound"):
            value = getattr(self, name)
            if not value >= 0:
                raise UserError(f"{name} must be >= 0, not {value!r}")
        if self.eos not in ("free", "last", "never"):
            raise unknown("value of eos", self.eos, ("free", "last", "never"))

    @property
    def structure(self) -> tuple[str, str, str]:
        """What rows must share to be stepped in one batch."""
        return (self.score, self.rule, self.confidence)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data: T_pos = inf becomes "inf"."""
        data: dict[str, Any] = to_json(asdict(self))
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        numbers = {key: from_json(value) for key, value in data.items() if value == "inf"}
        return record(cls, {**data, **numbers}, "the policy")


class Key(NamedTuple):
    """Which sample of a cell: of which request, which of its n samples, with which seed."""

    request: str
    index: int  # type: ignore[assignment]  # a tuple has a method of this name, which no key needs
    seed: int

    def __str__(self) -> str:
        return f"sample {self.index} of {self.request!r}"


@dataclass(frozen=True)
class Request:
    """One sample to draw: a prompt in token ids, and how. `(seed, id, index)` fixes all of its noise."""

    id: str
    prompt: tuple[int, ...]
    policy: Policy
    length: int = 256  # tokens to generate after the prompt; 0: fill the masks inside the prompt
    block: int | None = None  # width of a decoding block; None: 32, or the model's own block size
    seed: int = 0
    index: int = 0  # which of the n samples of this question
    eos_stop: bool = False  # stop once everything up to the first EOS is committed
    trace: bool = False

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError(f"request {self.id!r}: the prompt is empty; give at least one token")
        if self.length < 0 or (self.block is not None and self.block < 1):
            raise UserError(f"request {self.id!r}: length must be >= 0 and block >= 1")
        if self.length and self.policy.k > self.length:
            raise UserError(
                f"request {self.id!r}: k={self.policy.k} tokens a step exceed length={self.length}; lower k"
            )

    @property
    def key(self) -> Key:
        return Key(self.id, self.index, self.seed)


@dataclass(frozen=True)
class Trace:
    """When and how surely each generated position was committed; aligned with `Sample.positions`.

    Every position is committed once, so three numbers a position are the whole history.
    """

    steps: tuple[int, ...]  # the step (from 0) at which the position was committed; -1: never (EOS stop)
    confidence: tuple[float, ...]  # probability of the committed token when it was committed
    entropy: tuple[float, ...]  # entropy (nats) of the model's prediction there and then


@dataclass(frozen=True)
class Sample:
    """What the engine returns for one request."""

    request: str
    index: int
    seed: int
    policy: Policy
    prompt: tuple[int, ...]
    positions: tuple[int, ...]  # where the row was masked; column 0 is the first prompt token
    tokens: tuple[int, ...]  # what was written there
    nfe: int  # as in the paper: AR counts tokens before EOS, the others steps until all is unmasked
    forwards: int  # forward passes this row was part of, cache refresh and commit passes included
    processed: int  # token positions the model computed for this row
    seconds: float  # from the row's entry into the batch to its end
    finish: Literal["length", "eos"]
    text: str | None = None
    trace: Trace | None = None

    @property
    def key(self) -> Key:
        return Key(self.request, self.index, self.seed)

    @property
    def said(self) -> str:
        """The text, or the token ids where there is no tokenizer."""
        return " ".join(map(str, self.tokens)) if self.text is None else self.text

    def __repr__(self) -> str:
        said = self.said if len(self.said) <= 60 else self.said[:57] + "..."
        return f"Sample({said!r}, {self.policy.name}, {self.nfe} NFE, {self.request} [{self.index}])"

    def to_dict(self) -> dict[str, Any]:
        # Not asdict: it copies every token by itself, which costs more than writing the sample to the disk.
        trace = None if self.trace is None else vars(self.trace)
        return {**vars(self), "policy": self.policy.to_dict(), "trace": trace}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sample:
        trace = data.get("trace")
        return cls(
            **{
                **data,
                "policy": Policy.from_dict(data["policy"]),
                "prompt": tuple(data["prompt"]),
                "positions": tuple(data["positions"]),
                "tokens": tuple(data["tokens"]),
                "trace": Trace(**{k: tuple(v) for k, v in trace.items()}) if trace else None,
            }
        )


@dataclass(frozen=True)
class Problem:
    """One question of a task: the user's turn as text, and what a grader needs to judge an answer."""

    id: str
    task: str
    prompt: str
    reference: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""  # text the assistant's turn already starts with


@dataclass(frozen=True)
class Grade:
    """A grader's verdict. `ungraded` is our own fault: counted and excluded, never "wrong"."""

    outcome: Outcome
    answer: str | None = None  # what was extracted from the text
    rule: str = ""  # which extraction rule found it
    detail: str = ""  # why it failed, for people

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"
