"""The records that packages exchange: frozen, validated, without torch.

Problem -> Request -> (engine) -> Sample -> (grader) -> Grade
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from numbers import Real
from operator import index as as_integer
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from twotemp.errors import UserError, unknown
from twotemp.serialization import record, to_json

Score = Literal["log_confidence", "confidence", "log_top", "log_margin", "entropy", "neg_entropy", "position"]
First = Literal["same", Score]
Rule = Literal["budget", "threshold", "entropy_bound", "stable"]
Confidence = Literal["model", "drawn"]
Fallback = Literal["best", "leftmost"]
Edit = Literal["never", "overwrite", "remask"]
Schedule = Literal["even", "dream", "dream-exact"]
Eos = Literal["free", "last", "never"]
Finish = Literal["length", "eos", "stop"]
Outcome = Literal["passed", "failed", "timeout", "ungraded"]
NO_MASK = -1  # the `mask_id` of models whose open positions hold random tokens; it marks them in requests
LARGEST_INTEGER = 2**31 - 1  # accepted: sums of a few of them still fit into a tensor's integers


def integer(name: str, value: Any, least: int | None = 0, most: int | None = LARGEST_INTEGER) -> int:
    """Return an integer in [least, most] (None: no bound), NumPy's included, as an int; else raise a UserError.

    >>> integer("k", 3, least=1)
    3
    """
    try:
        number = as_integer(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        bound = "" if least is None else f" >= {least}"
        raise UserError(f"{name} must be an integer{bound}, not {value!r}")
    if most is not None and number > most:
        raise UserError(f"{name} must be at most {most}")
    return number


def number(name: str, value: Any, interval: str) -> float:
    """Return `value` if it is a real number in the interval, in mathematical notation; else raise a UserError.

    >>> number("top_p", 0.5, "(0, 1]")
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not _contains(interval, float(value)):
        raise UserError(f"{name} must be in {interval}, not {value!r}")
    return value if isinstance(value, int) else float(value)


def _contains(interval: str, value: float) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    return above and (value < high if interval[-1] == ")" else value <= high)


@dataclass(frozen=True)
class Parameter:
    """A field of `Policy`: what it means and which values it may have. Checks, help and docs derive from this."""

    text: str  # its line in the help
    kind: type  # float, int or bool: a number; str: one of `values`
    interval: str = ""  # of a number, in mathematical notation: "(0, 1]"
    values: tuple[str, ...] = ()
    structural: bool = False  # rows of one batch share it; other fields may differ from row to row

    def checked(self, name: str, value: Any) -> Any:
        """Return the value, a number as a plain Python number (NumPy's cannot be stored), or raise a UserError."""
        if self.kind is str:
            if value not in self.values:
                raise unknown(f"value of {name}", str(value), self.values)
            return value
        if self.kind is bool:
            if not isinstance(value, bool):
                raise UserError(f"{name} must be true or false, not {value!r}")
            return value
        if self.kind is int:
            return integer(name, value, least=int(self.interval.strip("[)").split(",")[0]))
        return number(name, value, self.interval)

    def read(self, name: str, text: str) -> Any:
        """Return the value that a text on the command line means."""
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.lower(), text)  # `checked` refuses any other text
        try:
            return text if self.kind is str else self.kind(text)
        except ValueError:
            raise UserError(f"parameter {name}={text!r} is not a number") from None


_STRUCTURE = "structure"


@dataclass(frozen=True)
class Policy:
    """One decoding policy, as data: *what* to write (tokens) and *where* (positions).

    The positions committed at a step are the plain `rule` applied to the `score` perturbed by
    T_pos-scaled noise; `twotemp.policies` holds the functions, `presets` the named points.
    """

    name: str
    score: Annotated[Score, "what ranks the positions", _STRUCTURE]
    rule: Annotated[Rule, "which of them are committed", _STRUCTURE]
    confidence: Annotated[Confidence, "of q itself, or of the tempered and filtered q", _STRUCTURE] = "model"
    fallback: Annotated[Fallback, "which positions fill up to k if the rule finds fewer", _STRUCTURE] = "best"
    first_score: Annotated[First, "what ranks the positions at the first step", _STRUCTURE] = "same"
    edit: Annotated[Edit, "what may happen to tokens already written in the block", _STRUCTURE] = "never"
    t_token: Annotated[float, "token temperature, 0: greedy", "[0, inf)"] = 0.8
    first_t_token: Annotated[float, "token temperature of a first step with its own score", "[0, inf)"] = 0.8
    t_pos: Annotated[float, "position temperature", "[0, inf]"] = 0.0
    k: Annotated[int, "positions per step (budget), or at least this many (other rules)", "[1, inf)"] = 1
    threshold: Annotated[float, "lambda", "[0, 1]"] = 1.0
    inclusive: Annotated[bool, "compare with >= instead of >"] = False
    entropy_bound: Annotated[float, "gamma", "[0, inf]"] = 0.0
    kl_bound: Annotated[float, "epsilon of KL stability", "[0, inf]"] = 0.0
    kl_steps: Annotated[int, "steps in a row for which a prediction must be stable", "[1, inf)"] = 1
    edit_threshold: Annotated[float, "tau: when a written token is in doubt", "[0, 1]"] = 0.0
    edit_share: Annotated[float, "largest share of a block's tokens rewritten per step", "(0, 1]"] = 1.0
    edits: Annotated[int, "how often a position may be rewritten, so that rows end", "[0, inf)"] = 0
    steps: Annotated[
        int,
        "> 0: k follows a schedule over this many steps; without a mask, the most steps of a canvas",
        "[0, inf)",
    ] = 0
    schedule: Annotated[
        Schedule,
        "even: this many steps per block; dream: Dream's time grid, at least one position per step; dream-exact: "
        "the grid as published, whose share of a step can round to none",
    ] = "even"
    cooling: Annotated[
        float, "by what share t_token falls, linearly, over the `steps` of a block", "[0, 1]"
    ] = 0.0
    stop_steps: Annotated[
        int,
        "a canvas without masks ends if its likeliest tokens have stayed the same for this many steps",
        "[0, inf)",
    ] = 1
    stop_entropy: Annotated[float, "and the mean entropy of its predictions is below this", "[0, inf]"] = (
        0.005
    )
    repel: Annotated[float, "alpha: how far a sample is pushed away from those before it", "[0, inf)"] = 0.0
    top_k: Annotated[int, "0: no filter", "[0, inf)"] = 0
    top_p: Annotated[float, "1: no filter", "(0, 1]"] = 1.0
    eos: Annotated[Eos, "as any token, lowest confidence, forbidden"] = "free"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UserError(f"a policy's name must be a string, not {self.name!r}")
        for name, parameter in PARAMETERS.items():
            object.__setattr__(self, name, parameter.checked(name, getattr(self, name)))
        if self.cooling and not self.steps:
            raise UserError(f"cooling={self.cooling:g} lowers t_token over the steps of a block: set steps")

    @cached_property
    def structure(self) -> tuple[str, ...]:
        """What rows must share to be stepped in one batch."""
        shared = (getattr(self, name) for name, parameter in PARAMETERS.items() if parameter.structural)
        return (*shared, "groups" if self.repel else "rows")

    @property
    def left_to_right(self) -> bool:
        """Whether every step writes the k leftmost masks, whatever the model says."""
        order = self.score, self.rule, self.first_score, self.edit, self.t_pos, self.steps
        return order == ("position", "budget", "same", "never", 0, 0)

    # What a `twotemp.policies.Portfolio` has as well, so that callers need not tell the two apart.

    @property
    def components(self) -> tuple[Policy, ...]:
        """The policies that draw samples: this one."""
        return (self,)

    def for_sample(self, index: int) -> Policy:
        """Return the policy of the sample with this index: itself."""
        return self

    def map(self, change: Callable[[Policy], Policy]) -> Policy:
        """Return the changed policy."""
        return change(self)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data; T_pos = inf becomes "inf"."""
        data: dict[str, Any] = to_json(asdict(self))
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """Return the policy that `to_dict` wrote."""
        return record(cls, data, "the policy")


class Key(NamedTuple):
    """Identifies a sample in a cell: its request, which of the n samples of that request it is, and its seed."""

    request: str  # its id
    index: int  # type: ignore[assignment]  # a tuple has a method of this name, which no key needs
    seed: int

    def __str__(self) -> str:
        return f"sample {self.index} of {self.request!r}"


def _parameter(hint: Any) -> Parameter:
    kind, (text, *more) = hint.__origin__, hint.__metadata__
    if get_origin(kind) is Literal:
        return Parameter(text, str, values=get_args(kind), structural=_STRUCTURE in more)
    return Parameter(text, kind, *more)


PARAMETERS: dict[str, Parameter] = {
    name: _parameter(hint)
    for name, hint in get_type_hints(Policy, include_extras=True).items()
    if get_origin(hint) is Annotated
}


@dataclass(frozen=True)
class Request:
    """One sample to draw: a prompt in token ids, and how. `(seed, id, index)` determines all of its noise."""

    id: str
    prompt: tuple[int, ...]
    policy: Policy
    length: int = 256  # tokens to generate after the prompt; 0: fill the masks inside the prompt
    block: int | None = None  # width of a decoding block; None: 32, or the model's own block size
    seed: int = 0
    index: int = 0  # which of the n samples of this prompt
    eos_stop: bool = False  # stop once everything up to the first EOS is committed
    # The row ends with its active block, and another follows until one has an EOS or `length` is reached.
    extend: bool = False
    trace: bool = False
    stop: tuple[str, ...] = ()  # strings before which the text ends; the engine does not see them
    # Neither identity nor noise depend on these.
    tag: str = ""  # by which a caller recognizes its sample
    label: str = field(default="", compare=False)  # the prompt in words, for messages; "": the id will do

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError(f"{self.name}: the prompt is empty; give at least one token")
        if self.length < 0 or (self.block is not None and self.block < 1):
            raise UserError(f"{self.name}: length must be >= 0 and block >= 1")
        if max(self.length, self.block or 1) > LARGEST_INTEGER:
            raise UserError(f"{self.name}: length and block must be at most {LARGEST_INTEGER}")
        if self.length and self.policy.k > self.length:
            raise UserError(
                f"{self.name}: k={self.policy.k} tokens per step exceed length={self.length}; lower k"
            )

    @property
    def key(self) -> Key:
        return Key(self.id, self.index, self.seed)

    @property
    def name(self) -> str:
        """What error messages call it: a prompt without an id given by the caller is known by a hash otherwise."""
        return self.label or f"request {self.id!r}"

    @property
    def group(self) -> Hashable | None:
        """What requests of samples that repel each other share: everything but the index; None if none repel."""
        if not self.policy.repel:
            return None
        row = self.prompt, self.length, self.block, self.eos_stop, self.extend
        return self.tag, self.id, self.seed, self.policy, row


@dataclass(frozen=True)
class Trace:
    """When and how confidently each generated position was committed; aligned with `Sample.positions`.

    Unless the policy edits, every position is committed once, and three numbers per position are the whole history.
    Of a model without a mask, the history is of the likeliest token: when it last changed.
    """

    steps: tuple[int, ...]  # the step (from 0) at which the position was last written; -1: never (EOS stop)
    confidence: tuple[float, ...]  # probability of the committed token when it was committed
    entropy: tuple[float, ...]  # entropy (nats) of the model's prediction at that step
    # What was written and later rewritten, by step: (step, index in `Sample.positions`, token; a remask: the mask).
    edits: tuple[tuple[int, int, int], ...] = ()
    # Without a mask: since which step the position was kept by every step up to the last, -1: the last renoised it.
    accepted: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data, with edits and acceptance only where there are any: few policies and models have them."""
        return {
            name: value for name, value in vars(self).items() if value or name not in ("edits", "accepted")
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trace:
        """Return the trace that `to_dict` wrote."""
        edits = tuple(tuple(edit) for edit in data.get("edits", ()))
        return cls(**{name: tuple(value) for name, value in data.items() if name != "edits"}, edits=edits)


@dataclass(frozen=True)
class Sample:
    """One sample. The engine writes the tokens; a backend or service adds the text and the caller's tag."""

    request: str  # its id, and its index and seed
    index: int
    seed: int
    policy: Policy
    prompt: tuple[int, ...]
    positions: tuple[int, ...]  # where the row was masked; column 0 is the first prompt token
    tokens: tuple[int, ...]  # what was written there
    nfe: int  # as in the paper: AR counts tokens before EOS, the others count steps until all is unmasked
    forwards: int  # forward passes this row was part of, cache refresh and commit passes included
    processed: int  # token positions the model computed for this row
    seconds: float  # from the row's entry into the batch to its end
    finish: Finish  # the whole length, an end-of-text token, or before a stop string
    text: str = ""  # decoded; the token ids, separated by spaces, where the model has no tokenizer
    trace: Trace | None = None
    # `NOT_STORED`:
    tag: str = field(default="", compare=False)  # the request's
    block: int | None = field(default=None, compare=False)  # width of its decoding blocks; None: not known

    @property
    def key(self) -> Key:
        return Key(self.request, self.index, self.seed)

    @property
    def written(self) -> int:
        """How many positions were written: a row from left to right may have ended at its EOS."""
        count = len(self.tokens)
        return min(count, self.forwards * self.policy.k) if self.policy.left_to_right else count

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"Sample({text!r}, {self.policy.name}, {self.nfe} NFE, {self.request} [{self.index}])"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        # Not asdict: it copies token by token, which takes longer than writing the sample to disk.
        trace = None if self.trace is None else self.trace.to_dict()
        data = {**vars(self), "policy": self.policy.to_dict(), "trace": trace}
        return {name: value for name, value in data.items() if name not in NOT_STORED}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sample:
        """Return the sample that `to_dict` wrote."""
        trace = data.get("trace")
        return cls(
            **{
                **data,
                "policy": Policy.from_dict(data["policy"]),
                "prompt": tuple(data["prompt"]),
                "positions": tuple(data["positions"]),
                "tokens": tuple(data["tokens"]),
                "text": data["text"] or "",
                "trace": Trace.from_dict(trace) if trace else None,
            }
        )


NOT_STORED = ("tag", "block")  # fields of a `Sample` that mean something only while it is in memory


def first_eos(tokens: Sequence[int], eos_ids: Collection[int]) -> int:
    """Return the index of the first end token, which ends the text; the number of tokens if there is none."""
    return next((n for n, token in enumerate(tokens) if token in eos_ids), len(tokens))


@dataclass(frozen=True)
class Problem:
    """One problem of a task: the user's turn as text, and what a grader needs to judge an answer."""

    id: str
    task: str
    prompt: str
    reference: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""  # text the assistant's turn already starts with


@dataclass(frozen=True)
class Grade:
    """A grader's verdict. `ungraded` means that grading failed: counted and excluded, never "wrong"."""

    outcome: Outcome
    answer: str | None = None  # what was extracted from the text
    rule: str = ""  # which extraction rule found it
    detail: str = ""  # why it failed, for readers

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"
