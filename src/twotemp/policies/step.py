"""A decoding step for a batch of rows, in two verbs: `draw` (what) and `choose` (where). Pure: state is passed in.

Samples that repel each other have a third before these: `repel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twotemp import rng
from twotemp.policies import positions, tokens
from twotemp.policies.positions import Drawn, Given, Text
from twotemp.policies.repulsion import Crowd, push
from twotemp.records import Policy

_SINGLE = torch.finfo(torch.float32)


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
    """State: what KL stability carries from step to step; other rules carry nothing."""

    positions: Tensor  # [B, W]: which positions the rest is about
    weights: Tensor  # [B, W, V] float32: the previous prediction, normalised
    stable: Tensor  # [B, W] int64: for how many steps in a row the prediction has been stable

    def rows(self, index: Tensor) -> Memory:
        return Memory(self.positions[index], self.weights[index], self.stable[index])

    def grow(self, rows: int, width: int) -> Memory:
        """Room for more rows and wider blocks, of whose positions (-1: none) nothing is known."""
        more, wider = rows - len(self.positions), width - self.positions.shape[1]
        pad = torch.nn.functional.pad
        return Memory(
            pad(self.positions, (0, wider, 0, more), value=-1),
            pad(self.weights, (0, 0, 0, wider, 0, more)),
            pad(self.stable, (0, wider, 0, more)),
        )


@dataclass(frozen=True)
class Decision:
    """Information: the outcome of a step, [B, W]; meaningful where `masked` was True, or a token was edited."""

    tokens: Tensor
    commit: Tensor  # bool: the positions to write
    confidence: Tensor  # of the drawn token
    entropy: Tensor | None
    log_norm: Tensor  # [N] of the positions decided; not finite where the logits were not
    edit: Tensor | None = None  # bool: those of them where a token stood; None: the policies do not edit


class PolicyBatch:
    """Policies of one structure, stacked: row i follows policies[i]."""

    def __init__(
        self,
        policies: Sequence[Policy],
        device: torch.device | str = "cpu",
        *,
        eos_ids: Sequence[int] = (),
        forbidden_ids: Sequence[int] = (),
        mask_id: int | None = None,
    ) -> None:
        """mask_id: what a policy that remasks writes."""
        first = policies[0]
        if any(p.structure != first.structure for p in policies):
            raise ValueError("rows of one batch must share their policy's structure")
        self.score, self.rule = positions.SCORES[first.score], positions.RULES[first.rule]
        self.first_score = None if first.first_score == "same" else positions.SCORES[first.first_score]
        self.leftmost = first.fallback == "leftmost"
        self.edit = None if first.edit == "never" else positions.EDITS[first.edit]
        self.mask_id = mask_id
        self.needs = frozenset(self.score.needs + self.rule.needs)
        if self.first_score is not None:
            self.needs |= frozenset(self.first_score.needs)
        self.remembers = "probabilities" in self.rule.needs
        self.given = Given(policies, device)

        def where(test: Callable[[Policy], bool]) -> Tensor | None:
            """Which rows, [B]; None where there are none, so that no step waits for the device to know."""
            found = [test(p) for p in policies]
            return torch.tensor(found, device=device) if any(found) else None

        self.late = where(lambda p: p.eos == "last")
        self.dream = where(lambda p: p.steps > 0 and p.schedule == "dream")
        self.even = where(lambda p: p.steps > 0 and p.schedule == "even")
        self.any_tempered = any(p.t_pos > 0 for p in policies)
        # Strictly left to right only the K leftmost masks can be committed.
        # (Samples that repel each other compare what they predict at every mask of the block.)
        self.left_to_right = self.late is None and all(p.left_to_right and not p.repel for p in policies)
        self.host_k = torch.tensor([p.k for p in policies])
        used = [p.t_token for p in policies]
        if self.first_score is not None:
            used += [p.first_t_token for p in policies]
            self.first_t_token = _single([p.first_t_token for p in policies], device)
        self.tokens = tokens.TokenRules(
            t_token=_single([p.t_token for p in policies], device),
            top_k=self.given.top_k,
            top_p=self.given.top_p.float(),
            never=where(lambda p: p.eos == "never"),
            forbidden=torch.tensor(forbidden_ids, dtype=torch.int64, device=device),
            eos=torch.tensor(eos_ids, dtype=torch.int64, device=device),
            any_greedy=any(t == 0 for t in used),
            any_drawn=any(t > 0 for t in used),
            most_top_k=max(p.top_k for p in policies),
            any_top_p=any(p.top_p < 1 for p in policies),
            of_drawn=first.confidence == "drawn",
        )

    def candidates(self, masked: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Which masked positions could be committed now, and how many in each row; the others need no prediction.

        count: masked.sum(1) as the host knows it, so that nothing has to be asked of the device.
        """
        if self.left_to_right:
            return masked & (masked.cumsum(1) <= self.given.k[:, None]), torch.minimum(count, self.host_k)
        return masked, count

    def repel(self, logits: Tensor, masked: Tensor, index: Tensor, crowd: Crowd) -> Tensor:
        """*Beside whom*: the logits, pushed away from what earlier samples of the group say. As for `draw`."""
        z = logits.float() if logits.dtype.itemsize < 4 else logits
        z = tokens.allowed(z, index // masked.shape[1], self.tokens)
        return push(z, index, masked, self.tokens.eos, crowd)

    def draw(
        self,
        noise: Noise,
        logits: Tensor,
        asked: Tensor,
        index: Tensor,
        *,
        entropy: bool = False,
        text: Text | None = None,
    ) -> Drawn:
        """*What*: a token for every candidate. logits: [N, V], row-major over the True entries of `asked` [B, W].

        index: [N], these entries in `asked.flatten()`. entropy: wanted even where no rule asks for it. text: what
        stands there, for policies that edit.
        """
        own = None
        if text is not None and self.edit is not None and "own" in self.edit.needs:
            own = text.tokens.flatten()[index]
        found = tokens.predict(
            logits,
            noise.uniform(rng.Stream.TOKEN).flatten()[index],
            index // asked.shape[1],
            self._rules(noise.step),
            self.needs | {"entropy"} if entropy else self.needs,
            own,
        )

        def spread(values: Tensor) -> Tensor:
            grid = torch.zeros(asked.numel(), *values.shape[1:], dtype=values.dtype, device=values.device)
            return grid.index_copy_(0, index, values).view(*asked.shape, *values.shape[1:])

        log_confidence = spread(found.log_confidence)
        return Drawn(
            spread(found.tokens),
            log_confidence,
            log_confidence.exp(),
            noise.positions,
            found.log_norm,
            *(
                None if it is None else spread(it)
                for it in (
                    found.entropy,
                    found.log_margin,
                    found.probabilities,
                    found.log_top,
                    found.log_own,
                )
            ),
        )

    def _rules(self, step: Tensor) -> tokens.TokenRules:
        """How tokens are drawn now: a row's first step may have a temperature of its own."""
        if self.first_score is None:
            return self.tokens
        now = torch.where(step == 0, self.first_t_token, self.tokens.t_token)
        return replace(self.tokens, t_token=now)

    def choose(
        self,
        noise: Noise,
        drawn: Drawn,
        masked: Tensor,
        *,
        memory: Memory | None = None,
        since: Tensor | None = None,
        text: Text | None = None,
    ) -> tuple[Decision, Memory | None]:
        """*Where*: the positions to commit, and what to carry into the next step.

        since: [B], steps that were taken in the block before this one; for schedules by block (None: the first).
        text: what stands there, for policies that edit.
        """
        score = self.score.of(drawn)
        if self.first_score is not None:
            score = torch.where((noise.step == 0)[:, None], self.first_score.of(drawn), score)
        if self.any_tempered:
            uniform = noise.uniform(rng.Stream.POSITION)
            score = positions.perturb(score, self.given.t_pos, self.rule.noise(uniform))
        late = self.late
        if late is not None:
            late = late[:, None] & torch.isin(drawn.tokens, self.tokens.eos)
        memory = self._remember(memory, drawn, masked) if self.remembers else None
        order = positions.rank(score, masked, late)
        stable = None if memory is None else memory.stable
        ranked = positions.Ranked(score, order, masked, late, drawn.entropy, stable, self.given)
        ready = self.rule.ready(ranked)
        if self.leftmost:
            order = positions.rank(-drawn.positions.double(), masked, late)
        if ready is not None and (self.leftmost or late is not None or not self.rule.takes_the_best):
            order = positions.first(ready, order)
        commit = positions.commit(ready, masked, order, self._budget(noise.step, since, masked))
        decision = Decision(drawn.tokens, commit, drawn.confidence, drawn.entropy, drawn.log_norm)
        return decision if text is None else self._rewrite(decision, drawn, masked, text), memory

    def _rewrite(self, decision: Decision, drawn: Drawn, masked: Tensor, text: Text) -> Decision:
        """The tokens in doubt are rewritten, each at most `edits` times, and of those that stand in the block at most
        the share `edit_share` (but one) in a step: the most doubtful."""
        assert self.edit is not None, "only policies that edit need to know the text"
        stands = text.asked & ~masked
        wrong, doubt = self.edit.doubt(drawn, text, self.given.edit_threshold)
        wrong = wrong & stands & (text.edits < self.given.edits[:, None])
        most = (self.given.edit_share * stands.sum(1)).long().clamp_min(1)
        edit = positions.commit(None, wrong, positions.rank(doubt, wrong, None), most)
        tokens = drawn.tokens
        if self.edit.remasks:
            assert self.mask_id is not None, "a policy that remasks must know the mask"
            tokens = tokens.masked_fill(edit, self.mask_id)
        return replace(decision, tokens=tokens, commit=decision.commit | edit, edit=edit)

    def _budget(self, step: Tensor, since: Tensor | None, masked: Tensor) -> Tensor:
        """How many positions at least: k, or with `steps` what the schedule says."""
        k = self.given.k
        if self.even is not None:
            since = torch.zeros_like(step) if since is None else since
            k = torch.where(self.even, positions.even(masked.sum(1), self.given.steps, since), k)
        if self.dream is not None:
            k = torch.where(self.dream, positions.dream(masked.sum(1), self.given.steps, step), k)
        return k

    def _remember(self, memory: Memory | None, drawn: Drawn, masked: Tensor) -> Memory:
        """Compare predictions with the step before: stable where KL(q_now || q_before) < epsilon."""
        at, now = drawn.positions, positions.known(drawn.probabilities)
        if memory is None:
            return Memory(at, now, torch.zeros_like(at))
        kl = (torch.special.xlogy(now, now) - torch.special.xlogy(now, memory.weights)).sum(-1)
        still = masked & (at == memory.positions) & (kl < self.given.kl_bound[:, None])
        return Memory(at, now, torch.where(still, memory.stable + 1, 0))


def _single(t_token: Sequence[float], device: torch.device | str) -> Tensor:
    """In float32. A temperature it does not know becomes the nearest one that it does: the law is the same."""
    known = [min(max(t, _SINGLE.tiny), _SINGLE.max) if t else 0.0 for t in t_token]
    return torch.tensor(known, dtype=torch.float32, device=device)
