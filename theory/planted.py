"""A table model with a planted fork: the numpy / statistics example of the paper's overview figure.

Eighteen ways to write "the standard deviation of x", with invented probabilities:

    from numpy import std as sd            from statistics import stdev as sd
    def f(x):                              def f(data):
        return float(sd(x))                    result = sd(data)
                                               return result

The library is the **fork**: numpy divides by n, `statistics.stdev` by n - 1, and both look right. Argument name,
`return` and `float(...)` are **anchors**: habits that every numpy program has and many others share, so the model
is more confident in them than in the library, and each one revealed is evidence for numpy. The text between the
five choices is fixed and left out, which keeps everything small enough to enumerate: `exact` and `draw` answer the
same questions, one by summing over all orders and tokens, the other by sampling through the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from theory.strings import Partial, StringLaw, entropy, string_law
from theory.table import TableModel
from twotemp.engine import run
from twotemp.records import Policy, Request

FORK, NAME, *ANCHORS = range(5)
LIBRARY = {"numpy": 0.55, "statistics": 0.45}
FUNCTION = {"numpy": {"std": 0.75, "nanstd": 0.25}, "statistics": {"stdev": 0.6, "pstdev": 0.4}}
HABITS = (("x", "data"), ("return", "result ="), ("float(sd(", "sd("))  # numpy's habit, and the alternative
# The probability that a `statistics` program has numpy's habit. They all differ, so that no two confidences are
# equal: LC would break a tie by position, but rounding differs between the engine's float32 and `exact`.
SHARED = (0.43, 0.37, 0.47)

VALUES = (2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0)  # the input of the programs
POPULATION, SAMPLE = "2.000", "2.138"  # the deviation of VALUES with n, and with n - 1

Words = tuple[str, ...]


def programs() -> Iterator[tuple[Words, float]]:
    """Yield every program as its five choices, with its probability."""
    for library, prior in LIBRARY.items():
        shares = SHARED if library == "statistics" else (1.0, 1.0, 1.0)
        odds = [{a: p, b: 1 - p} if p < 1 else {a: p} for (a, b), p in zip(HABITS, shares)]
        for words in product(FUNCTION[library], *odds):
            chances = [FUNCTION[library][words[0]], *(o[w] for o, w in zip(odds, words[1:]))]
            yield (library, *words), prior * float(np.prod(chances))


WORDS = tuple(dict.fromkeys(word for words, _ in programs() for word in words))
START, MASK = len(WORDS), len(WORDS) + 1  # the only token of the prompt, and the mask
LENGTH = 5


def encode(words: Words) -> tuple[int, ...]:
    """Return the token ids of a program."""
    return tuple(WORDS.index(word) for word in words)


def source(words: Words) -> str:
    """Return the Python source of a program."""
    library, name, argument, body, call = words
    call = call + argument + ")" * call.count("(")
    lines = [f"return {call}"] if body == "return" else [f"result = {call}", "return result"]
    return f"from {library} import {name} as sd\ndef f({argument}):\n    " + "\n    ".join(lines) + "\n"


@cache
def outcome(tokens: tuple[int, ...]) -> str:
    """Return the meaning of a program: its result on VALUES, or the name of the error that it raises.

    The program is executed. Its text can only be a combination of the words above, never free text of a model.
    """
    names: dict[str, Any] = {}
    try:
        exec(source(tuple(WORDS[token] for token in tokens)), names)
        return f"{names['f'](list(VALUES)):.3f}"
    except ImportError as error:  # a parallel commit of one library and a function of the other
        return type(error).__name__


def model() -> TableModel:
    """Return the table model of all programs."""
    return TableModel(
        [((START, *encode(words)), p) for words, p in programs()], len(WORDS) + 2, MASK, name="planted"
    )


@dataclass(frozen=True)
class Outcomes:
    """The laws of outcomes and libraries under a policy."""

    outcomes: Mapping[str, float]  # the law of `outcome`
    libraries: Mapping[str, float]  # the law of the fork's token
    fork_entropy: float  # H-bar: of the model's prediction at the fork when it was committed, in nats

    @property
    def semantic_entropy(self) -> float:
        """Return the entropy of the outcome, in nats."""
        return entropy(np.array(list(self.outcomes.values())))

    @property
    def token_entropy(self) -> float:
        """Return the entropy of the fork's token, in nats."""
        return entropy(np.array(list(self.libraries.values())))

    def pass_at(self, k: int, wanted: str = SAMPLE) -> float:
        """Return 1 - (1 - p)^k, the probability that one of k samples has the outcome that a hidden test expects."""
        return 1 - (1 - self.outcomes.get(wanted, 0.0)) ** k


def exact(policy: Policy) -> Outcomes:
    """Return the outcomes by enumerating every order and every token."""
    law: StringLaw = string_law(predict, LENGTH, policy)
    outcomes = {str(key): p for key, p in law.law_of(outcome).items()}
    libraries = {str(key): p for key, p in law.law_of(lambda s: WORDS[s[FORK]]).items()}
    return Outcomes(outcomes, libraries, law.commit_entropy[FORK])


def predict(state: Partial, position: int) -> np.ndarray:
    """Return q^k(. | x_t) from the definition, by Bayes' rule over the programs that agree with x_t.

    Parallel commits can contradict each other, so that no program agrees; then, as in the table model, the programs
    with the fewest disagreements are used.
    """
    weights = np.zeros(len(WORDS))
    candidates = [(encode(words), p) for words, p in programs()]
    counts = [sum(x is not None and x != s[k] for k, x in enumerate(state)) for s, _ in candidates]
    for (tokens, p), disagreements in zip(candidates, counts):
        if disagreements == min(counts):
            weights[tokens[position]] += p
    weights /= weights.sum()
    return weights


@dataclass(frozen=True)
class Draws:
    """Samples of the planted model, drawn through the engine."""

    tokens: Sequence[tuple[int, ...]]
    fork_entropies: np.ndarray  # of the prediction at the fork, when it was committed

    def outcomes(self) -> Outcomes:
        """Return estimates of the numbers that `exact` computes."""
        return Outcomes(
            _frequencies([outcome(t) for t in self.tokens]),
            _frequencies([WORDS[t[FORK]] for t in self.tokens]),
            float(self.fork_entropies.mean()),
        )


def draw(policy: Policy, n: int, seed: int = 0) -> Draws:
    """Draw `n` samples through the engine."""
    requests = [
        Request("planted", (START,), policy, length=LENGTH, block=LENGTH, seed=seed, index=i, trace=True)
        for i in range(n)
    ]
    samples = list(run(model(), requests, batch_size=1024))
    traces = [sample.trace for sample in samples if sample.trace is not None]
    return Draws([sample.tokens for sample in samples], np.array([trace.entropy[FORK] for trace in traces]))


def _frequencies(values: Sequence[str]) -> dict[str, float]:
    """Return the share of every value."""
    return {value: count / len(values) for value, count in Counter(values).items()}
