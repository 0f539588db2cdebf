"""One decoding step for a batch of rows: draw everywhere, score, perturb, commit. Pure: state is passed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twotemp import rng
from twotemp.policies import positions, tokens
from twotemp.records import Policy

_DREAM_EPS = 1e-3  # where Dream's time grid ends
_NUMBERS = {
    "t_token": torch.float32,
    "t_pos": torch.float64,
    "k": torch.int64,
    "threshold": torch.float64,
    "inclusive": torch.bool,
    "entropy_bound": torch.float64,
    "kl_bound": torch.float64,
    "kl_steps": torch.int64,
    "steps": torch.int64,
    "top_k": torch.int64,
    "top_p": torch.float32,
}


@dataclass(frozen=True)
class Noise:
    """The noise of this step for each row: addressed, not drawn, so it does not depend on the batch."""

    keys: Tensor  # [B] int64
    step: Tensor  # [B] int64
    positions: Tensor  # [B, W] int64

    def uniform(self, stream: rng.Stream) -> Tensor:
        return rng.uniform(self.keys, self.step, self.positions, stream)


@dataclass(frozen=True)
class Memory:
    """What KL stability carries from step to step; other rules carry nothing."""

    positions: Tensor  # [B, W]: which positions the rest is about
    weights: Tensor  # [B, W, V] float32: the previous prediction, normalised
    stable: Tensor  # [B, W] int64: for how many steps in a row the prediction has been stable

    def rows(self, index: Tensor) -> Memory:
        return Memory(self.positions[index], self.weights[index], self.stable[index])


@dataclass(frozen=True)
class Decision:
    """The outcome of a step. [B, W]; meaningful where `masked` was True."""

    tokens: Tensor
    commit: Tensor
    confidence: Tensor
    entropy: Tensor | None
    log_norm: Tensor  # [N]: not finite where the model's logits are not
    memory: Memory | None


class PolicyBatch:
    """Policies of one structure, a row each, with their numbers as tensors."""

    def __init__(self, policies: Sequence[Policy], device: torch.device | str = "cpu") -> None:
        first = policies[0]
        if any(p.structure != first.structure for p in policies):
            raise ValueError("rows of one batch must share their policy's structure")
        self.score, self.rule, confidence = first.structure
        self.of_drawn = confidence == "drawn"
        self.policies = list(policies)
        for name, dtype in _NUMBERS.items():
            values = [getattr(p, name) for p in policies]
            setattr(self, name, torch.tensor(values, dtype=dtype, device=device))
        # Known on the host, so that no step waits for the device to learn what it may skip.
        self.host_k = torch.tensor([p.k for p in policies])
        self.any_tempered = any(p.t_pos > 0 for p in policies)
        self.any_greedy = any(p.t_token == 0 for p in policies)
        self.any_drawn = any(p.t_token > 0 for p in policies)
        self.most_top_k = max(p.top_k for p in policies)
        self.any_top_p = any(p.top_p < 1 for p in policies)
        self.any_scheduled = any(p.steps > 0 for p in policies)
        self.eos_last = torch.tensor([p.eos == "last" for p in policies], device=device)
        self.eos_never = torch.tensor([p.eos == "never" for p in policies], device=device)
        self.any_eos_last = any(p.eos == "last" for p in policies)
        self.any_eos_never = any(p.eos == "never" for p in policies)

    t_token: Tensor
    t_pos: Tensor
    k: Tensor
    threshold: Tensor
    inclusive: Tensor
    entropy_bound: Tensor
    kl_bound: Tensor
    kl_steps: Tensor
    steps: Tensor
    top_k: Tensor
    top_p: Tensor

    def candidates(self, masked: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Which masked positions could be committed now, and how many in each row; the others need no prediction.

        Strictly left to right, that is the K leftmost; under every other rule it is all of them.
        count: masked.sum(1) as the host knows it, so that nothing has to be asked of the device.
        """
        if (
            self.score == "position"
            and self.rule == "budget"
            and not (self.any_tempered or self.any_eos_last)
        ):
            return masked & (masked.cumsum(1) <= self.k[:, None]), torch.minimum(count, self.host_k)
        return masked, count

    def step(
        self,
        noise: Noise,
        logits: Tensor,
        masked: Tensor,
        *,
        eos_ids: Tensor,
        index: Tensor | None = None,
        memory: Memory | None = None,
        want_entropy: bool = False,
        lap: Callable[[str], None] = lambda part: None,
    ) -> Decision:
        """Choose tokens and positions. logits: [N, V], row-major over the N True entries of `masked` [B, W].

        index: these entries in `masked.flatten()`, where the caller knows them (it saves a round trip).
        `lap(part)` is called when a part of the step ("draw", "select") is over, for whoever keeps time.
        """
        if index is None:
            index = masked.flatten().nonzero()[:, 0]
        row = index // masked.shape[1]
        if self.any_eos_never:
            logits = logits.clone()
            logits[:, eos_ids] = logits[:, eos_ids].masked_fill(self.eos_never[row, None], -torch.inf)
        rules = self._token_rules(row, want_entropy)
        found = tokens.predict(logits, noise.uniform(rng.Stream.TOKEN).flatten()[index], rules)
        lap("draw")

        def spread(values: Tensor) -> Tensor:
            grid = torch.zeros(masked.numel(), dtype=values.dtype, device=values.device)
            return grid.index_copy(0, index, values).view_as(masked)

        written = spread(found.tokens)
        log_confidence = spread(found.log_confidence)
        confidence = log_confidence.exp()
        entropy = None if found.entropy is None else spread(found.entropy)

        score = self._score(found, spread, log_confidence, confidence, entropy, noise.positions)
        if self.any_tempered:
            u = noise.uniform(rng.Stream.POSITION)
            thresholded = self.rule in ("threshold", "stable")
            score = positions.perturb(score, self.t_pos, rng.logistic(u) if thresholded else rng.gumbel(u))
        if self.any_eos_last:
            score = positions.demote(score, torch.isin(written, eos_ids) & self.eos_last[:, None])

        k = self._budget(noise.step, masked)
        if self.rule == "entropy_bound":
            assert entropy is not None
            commit = positions.select_entropy_bound(score, entropy.double(), masked, k, self.entropy_bound)
        else:
            if self.rule == "stable":
                memory = self._remember(memory, found, masked, index, noise.positions)
                score = positions.demote(score, memory.stable < self.kl_steps[:, None])
            commit = positions.select(score, masked, k, self._cut())
        lap("select")
        return Decision(
            written,
            commit,
            confidence,
            entropy,
            found.log_norm,
            memory if self.rule == "stable" else None,
        )

    def _token_rules(self, row: Tensor, want_entropy: bool) -> tokens.TokenRules:
        return tokens.TokenRules(
            self.t_token[row],
            self.top_k[row],
            self.top_p[row],
            self.any_greedy,
            self.any_drawn,
            self.most_top_k,
            self.any_top_p,
            self.of_drawn,
            entropy=want_entropy or self.score == "neg_entropy",
            margin=self.score == "log_margin",
            probabilities=self.rule == "stable",
        )

    def _score(self, found, spread, log_confidence, confidence, entropy: Tensor | None, at: Tensor) -> Tensor:
        """What the plain rule ranks positions by, [B, W] float64; higher is committed earlier."""
        match self.score:
            case "log_confidence":
                return log_confidence.double()
            case "confidence":  # above the threshold is above 0; a fixed budget does not see the shift
                return confidence.double() - self.threshold[:, None]
            case "log_margin":
                return spread(found.log_margin).double()
            case "neg_entropy":
                assert entropy is not None
                return -entropy.double()
            case "position":
                return -at.double()
        raise AssertionError(self.score)

    def _cut(self) -> Tensor:
        """Where `select` cuts: nowhere for a fixed budget, at 0 (or just below, for >=) for a threshold."""
        if self.rule == "budget":
            return torch.full_like(self.threshold, torch.inf)
        return -1e-12 * self.inclusive.double()  # far below the spacing of float32 confidences

    def _budget(self, step: Tensor, masked: Tensor) -> Tensor:
        """k, or with `steps` Dream's schedule: int(n (1 - s/t)) on a time grid from 1 to eps, then all.

        Upstream's schedule can round to 0 and waste a forward pass; ours commits at least one.
        """
        if not self.any_scheduled:
            return self.k
        remaining = masked.sum(1)
        total = self.steps.clamp_min(1)
        now = step.clamp_max(total - 1)
        t = 1 - (1 - _DREAM_EPS) * now.double() / total
        s = 1 - (1 - _DREAM_EPS) * (now + 1).double() / total
        planned = (remaining * (1 - s / t)).long().clamp_min(1)
        planned = torch.where(now == total - 1, remaining, planned)
        return torch.where(self.steps > 0, planned, self.k)

    def _remember(self, memory: Memory | None, found, masked: Tensor, index: Tensor, at: Tensor) -> Memory:
        """Compare predictions with the step before: stable where KL(q_now || q_before) < epsilon."""
        now = torch.zeros(masked.numel(), found.probabilities.shape[1], device=masked.device)
        now = now.index_copy_(0, index, found.probabilities).view(*masked.shape, -1)
        if memory is None:
            return Memory(at, now, torch.zeros_like(at))
        kl = (torch.special.xlogy(now, now) - torch.special.xlogy(now, memory.weights)).sum(-1)
        still = masked & (at == memory.positions) & (kl < self.kl_bound[:, None])
        return Memory(at, now, torch.where(still, memory.stable + 1, 0))
