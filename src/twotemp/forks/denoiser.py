"""The anchor-fork model as a Denoiser, so that the real engine and policies can be held against `exact`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.forks.exact import Commit
from twotemp.forks.strings import entropy
from twotemp.forks.theory import AnchorFork, State, state_of
from twotemp.records import Policy, Request

_START = 0  # the one token of the prompt


def with_entropy(top: float, nats: float, tokens: int) -> np.ndarray:
    """A distribution over `tokens` tokens whose likeliest has probability `top` and whose entropy is `nats`.

    H = h(top) + (1 - top) H(rest); the rest is geometric, whose entropy falls continuously in its rate.
    """

    def build(rate: float) -> np.ndarray:
        rest = np.exp(-rate * np.arange(tokens - 1))
        return np.concatenate([[top], (1 - top) * rest / rest.sum()])

    low, high = 0.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(build(middle)) > nats else (low, middle)
    p = build(low)
    if abs(entropy(p) - nats) > 1e-9 or p[1] >= top:
        raise UserError(
            f"no distribution over {tokens} tokens with largest probability {top} and entropy {nats:.4g} nats; "
            f"at most {entropy(build(0.0)):.4g} nats fit, and little entropy needs a large probability"
        )
    return p


class AnchorForkModel:
    """Greedy decoding of this model realises the confidence paths of an AnchorFork exactly.

    Everywhere the likeliest token has probability c(state, position). At the fork the entropy follows the linear
    law; elsewhere the rest of the mass is spread evenly. Position j stands in column j + 1, after the prompt.
    """

    block_size = None
    max_length = None
    tokenizer = None
    eos_ids: tuple[int, ...] = ()
    device = torch.device("cpu")

    def __init__(self, model: AnchorFork, tokens: int = 64) -> None:
        if model.length > 62:
            raise UserError(
                f"length {model.length} does not fit the bits of a state; use at most 62 positions"
            )
        self.name = "anchor-fork"
        self.model = model
        self.mask_id = tokens
        self.vocab_size = tokens + 1
        self.forbidden_ids = (self.mask_id,)
        self._known: dict[State, Tensor] = {}

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        real = torch.ones_like(want) if attention_mask is None else attention_mask
        position = real.int().cumsum(1) - 2  # of the column among the generated; the prompt is -1
        free = real & (position >= 0)
        bit = torch.where(free, 1 << position.clamp_min(0), 0)
        state = (bit * (ids != self.mask_id)).sum(1)
        row, column = want.nonzero(as_tuple=True)
        distinct, which = state.unique(return_inverse=True)
        known = torch.stack([self._state_logits(int(s)) for s in distinct])
        return known[which[row], position[row, column]]

    def _state_logits(self, state: State) -> Tensor:
        """[length, vocab]; rows of revealed positions are never asked for."""
        if state not in self._known:
            rows = torch.zeros(self.model.length, self.vocab_size)
            for j, c in self.model.confidences(state).items():
                rows[j] = torch.from_numpy(np.log(self._distribution(state, j, c))).float()
            self._known[state] = rows
        return self._known[state]

    def _distribution(self, state: State, position: int, c: float) -> np.ndarray:
        tokens = self.mask_id
        if position == self.model.fork:
            p = with_entropy(c, self.model.fork_entropy(state), tokens)
        else:
            p = np.full(tokens, (1 - c) / (tokens - 1))
            p[0] = c
            if p[1] >= c:
                raise UserError(
                    f"confidence {c} is not above 1/{tokens}; use more tokens or a larger confidence"
                )
        with np.errstate(divide="ignore"):
            return np.append(np.maximum(p, 1e-30), 1e-30)  # finite logits for what never happens


@dataclass(frozen=True)
class Simulation:
    """Samples drawn through the engine: when each position was committed, and the fork's entropy then."""

    model: AnchorFork
    steps: np.ndarray  # [samples, length]
    entropies: np.ndarray  # [samples]

    def before(self, anchor: int) -> float:
        """The fraction of samples with T(a) < T(l)."""
        return float((self.steps[:, anchor] < self.steps[:, self.model.fork]).mean())

    @property
    def entropy(self) -> float:
        """The sample mean of the fork's entropy at its commit."""
        return float(self.entropies.mean())

    @property
    def standard_error(self) -> float:
        return float(self.entropies.std(ddof=1) / math.sqrt(len(self.entropies)))

    def commits(self) -> Iterator[Commit]:
        """How each sample committed its fork, to be compared with `ForkLaw.commits`."""
        fork = self.steps[:, self.model.fork, None]
        for earlier, same in zip(self.steps < fork, self.steps == fork):
            yield Commit(state_of(np.flatnonzero(earlier).tolist()), state_of(np.flatnonzero(same).tolist()))


def simulate(
    model: AnchorFork, policy: Policy, samples: int, seed: int = 0, batch_size: int = 1024
) -> Simulation:
    """Draw through `engine.run`. Tokens are greedy, so that the confidence of the drawn token is c(state, j)."""
    greedy = replace(policy, t_token=0.0)
    requests = [
        Request(
            id="fork",
            prompt=(_START,),
            policy=greedy,
            length=model.length,
            block=model.length,
            seed=seed,
            index=i,
            trace=True,
        )
        for i in range(samples)
    ]
    found = list(run(AnchorForkModel(model), requests, batch_size=batch_size))
    traces = [sample.trace for sample in found if sample.trace is not None]
    return Simulation(
        model,
        np.array([trace.steps for trace in traces]),
        np.array([trace.entropy[model.fork] for trace in traces]),
    )
