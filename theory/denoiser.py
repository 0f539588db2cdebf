"""The anchor-fork model as a Denoiser, to test the engine and the policies against `exact`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from theory.anchor_fork import AnchorFork, State, state_of
from theory.exact import Commit
from theory.strings import entropy
from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.records import Policy, Request

_START = 0  # the only token of the prompt


def with_entropy(top: float, nats: float, tokens: int) -> np.ndarray:
    """Return a distribution over `tokens` tokens with largest probability `top` and entropy `nats`.

    Entropy is concave, so it rises along the line from the least even such distribution (as many entries of `top` as
    fit, and the remainder) to the most even one; bisection finds the point.
    """
    even = np.full(tokens, (1 - top) / (tokens - 1))
    even[0] = top
    packed = np.clip(1 - top * np.arange(tokens), 0, top)
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy((1 - middle) * packed + middle * even) < nats else (low, middle)
    p: np.ndarray = (1 - high) * packed + high * even
    if abs(entropy(p) - nats) > 1e-9 or not p[1] < top:
        raise UserError(
            f"no distribution over {tokens} tokens has its largest probability {top} and entropy {nats:.4g} nats; "
            f"take between {entropy(packed):.4g} and {entropy(even):.4g} nats"
        )
    return p


class AnchorForkModel:
    """A denoiser whose greedy decoding has exactly the confidence paths of an AnchorFork.

    The most likely token has probability c(state, position). At the fork the entropy follows the linear law;
    elsewhere the rest of the mass is spread evenly. Position j is in column j + 1, after the prompt.
    """

    name = "anchor-fork"
    block_size: int | None = None
    max_length: int | None = None
    tokenizer = None
    eos_ids: tuple[int, ...] = ()
    forbidden_ids: tuple[int, ...]
    device = torch.device("cpu")

    def __init__(self, model: AnchorFork, tokens: int = 64) -> None:
        if model.length > 62:
            raise UserError(
                f"length {model.length} does not fit the bits of a state; use at most 62 positions"
            )
        self.model = model
        self.mask_id = tokens
        self.vocab_size = tokens + 1
        self.forbidden_ids = (self.mask_id,)

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """Return the logits at the wanted positions; see `Denoiser.logits`."""
        real = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
        position = real.int().cumsum(1) - 2  # of the column among the generated; the prompt is -1
        revealed = real & (position >= 0) & (ids != self.mask_id)
        state = torch.where(revealed, 1 << position.clamp_min(0).long(), 0).sum(1)
        queries = torch.stack([state[:, None].expand_as(position), position.long()], dim=2)
        queries = queries.flatten(0, 1)[want.flatten()]
        distinct, which = torch.unique(queries, dim=0, return_inverse=True)
        return torch.stack([self._row(s, j) for s, j in distinct.tolist()])[which]

    def _row(self, state: State, position: int) -> Tensor:
        nats = self.model.fork_entropy(state) if position == self.model.fork else None
        return _log_probabilities(self.model.confidence(state, position), nats, self.mask_id)


@lru_cache(maxsize=4096)
def _log_probabilities(top: float, nats: float | None, tokens: int) -> Tensor:
    """Return logits over the tokens and the mask, which comes last; without `nats` the rest is spread evenly."""
    if nats is not None:
        p = with_entropy(top, nats, tokens)
    else:
        p = np.full(tokens, (1 - top) / (tokens - 1))
        p[0] = top
        if p[1] >= top:
            raise UserError(
                f"confidence {top} is not above 1/{tokens}; use more tokens or a larger confidence"
            )
    # Logits are finite even for tokens of probability 0 and for the mask.
    finite = np.append(np.maximum(p, 1e-30), 1e-30)
    return torch.from_numpy(np.log(finite)).float()


@dataclass(frozen=True)
class Simulation:
    """Samples drawn through the engine: the step of every position's commit, and the fork's entropy at its commit."""

    model: AnchorFork
    steps: np.ndarray  # [samples, length]
    entropies: np.ndarray  # [samples]

    def before(self, anchor: int) -> float:
        """Return the fraction of samples with T(a) < T(l)."""
        return float((self.steps[:, anchor] < self.steps[:, self.model.fork]).mean())

    @property
    def entropy(self) -> float:
        """Return the sample mean of the fork's entropy at its commit."""
        return float(self.entropies.mean())

    def commits(self) -> Iterator[Commit]:
        """Yield each sample's commit of the fork, to be compared with `ForkLaw.commits`."""
        fork = self.steps[:, self.model.fork, None]
        for earlier, same in zip(self.steps < fork, self.steps == fork):
            yield Commit(state_of(np.flatnonzero(earlier).tolist()), state_of(np.flatnonzero(same).tolist()))


def simulate(
    model: AnchorFork, policy: Policy, samples: int, seed: int = 0, batch_size: int = 4096
) -> Simulation:
    """Draw samples of the model through `engine.run`.

    Tokens are greedy, so that the confidence of a drawn token is c(state, j).

    Args:
        model: The anchor-fork model.
        policy: The policy; its token temperatures are replaced by 0.
        samples: The number of samples.
        seed: Their seed.
        batch_size: Rows computed together.
    """
    greedy = replace(policy, t_token=0.0, first_t_token=0.0)
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
    drawn = list(run(AnchorForkModel(model), requests, batch_size=batch_size))
    traces = [sample.trace for sample in drawn if sample.trace is not None]
    return Simulation(
        model,
        np.array([trace.steps for trace in traces]),
        np.array([trace.entropy[model.fork] for trace in traces]),
    )
