"""A decoding step for a batch of rows, in two verbs: `draw` (what) and `choose` (where). Pure: state is passed in.

`reference.py` shows the same for one row of the paper's algorithms, in plain Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from twotemp import rng
from twotemp.experimental.editing import EDITS, BlockText, choose_edits
from twotemp.experimental.repulsion import Repulsion
from twotemp.policies import positions, tokens
from twotemp.policies.decision import Decision, Memory, Renoising
from twotemp.policies.positions import DrawnTokens, StackedParameters, required
from twotemp.records import Policy
from twotemp.rng import Noise

_SINGLE = torch.finfo(torch.float32)


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
        renoising: Renoising | None = None,
        embed: tokens.Embed | None = None,
    ) -> None:
        """Stack the policies.

        Args:
            policies: One per row.
            device: Where their parameters are needed.
            eos_ids: End tokens, for policies that treat them specially.
            forbidden_ids: Tokens that no row may write.
            mask_id: What a policy that remasks writes.
            renoising: Renews the positions that are not chosen, if the model has no mask.
            embed: See `tokens.predict`.
        """
        first = policies[0]
        if any(p.structure != first.structure for p in policies):
            raise ValueError("rows of one batch must share their policy's structure")
        self.score, self.rule = positions.SCORES[first.score], positions.RULES[first.rule]
        self.first_score = None if first.first_score == "same" else positions.SCORES[first.first_score]
        self.leftmost = first.fallback == "leftmost"
        self.edit = None if first.edit == "never" else EDITS[first.edit]
        self.mask_id, self.embed = mask_id, embed
        self.renoising = renoising
        self.needs = frozenset(self.score.needs + self.rule.needs)
        if renoising is not None:
            self.needs |= renoising.needs
        if self.first_score is not None:
            self.needs |= frozenset(self.first_score.needs)
        self.remembers = "probabilities" in self.rule.needs
        self.parameters = StackedParameters(policies, device)

        def where(test: Callable[[Policy], bool]) -> Tensor | None:
            """Return which rows pass, [B]; None if no row does, so that a step need not ask the device."""
            flags = [test(p) for p in policies]
            return torch.tensor(flags, device=device) if any(flags) else None

        self.eos_last = where(lambda p: p.eos == "last")
        # On a canvas only a budget needs a schedule: other rules choose again at every step.
        self.grows = renoising is not None and first.rule == "budget"
        scheduled = self.grows or renoising is None
        self.even_schedule = where(lambda p: scheduled and p.steps > 0 and p.schedule == "even")
        self.dream_schedule = where(lambda p: scheduled and p.steps > 0 and p.schedule == "dream")
        self.dream_exact_schedule = where(lambda p: scheduled and p.steps > 0 and p.schedule == "dream-exact")
        self.any_cooling = any(p.cooling for p in policies)
        # Whether `draw` and `choose` must be told how many steps a block has taken.
        self.counts_steps = renoising is not None or self.any_cooling or self.even_schedule is not None
        self.any_tempered = any(p.t_pos > 0 for p in policies)
        # Strictly left to right only the K leftmost masks can be committed.
        # (Samples that repel each other compare their predictions at every mask of the block.)
        left_to_right = all(p.left_to_right and not p.repel for p in policies)
        self.left_to_right = self.eos_last is None and left_to_right and renoising is None
        self.host_k = torch.tensor([p.k for p in policies])
        temperatures = [p.t_token for p in policies]
        if self.first_score is not None:
            temperatures += [p.first_t_token for p in policies]
            self.first_t_token = _float32([p.first_t_token for p in policies], device)
        self.draw_parameters = tokens.DrawParameters(
            t_token=_float32([p.t_token for p in policies], device),
            top_k=self.parameters.top_k,
            top_p=self.parameters.top_p.float(),
            never=where(lambda p: p.eos == "never"),
            forbidden=torch.tensor(forbidden_ids, dtype=torch.int64, device=device),
            eos=torch.tensor(eos_ids, dtype=torch.int64, device=device),
            any_greedy=any(t == 0 for t in temperatures),
            any_drawn=any(t > 0 for t in temperatures),
            most_top_k=max(p.top_k for p in policies),
            any_top_p=any(p.top_p < 1 for p in policies),
            tempered_confidence=first.confidence == "drawn",
        )

    def candidates(self, masked: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return which masked positions could be committed now, [B, W], and their number per row, [B].

        The others need no prediction.

        Args:
            masked: [B, W] bool.
            count: masked.sum(1) as the host knows it, so that the device need not be asked.
        """
        if self.left_to_right:
            leftmost = masked & (masked.cumsum(1) <= self.parameters.k[:, None])
            return leftmost, torch.minimum(count, self.host_k)
        return masked, count

    def repel(self, logits: Tensor, masked: Tensor, index: Tensor, repulsion: Repulsion) -> Tensor:
        """Return the logits, pushed away from what earlier samples of the group say; arguments as for `draw`."""
        z = logits.float() if logits.dtype.itemsize < 4 else logits
        z = tokens.allowed(z, index // masked.shape[1], self.draw_parameters)
        return repulsion.push(z, index, masked, self.draw_parameters.eos)

    def draw(
        self,
        noise: Noise,
        logits: Tensor,
        predicted: Tensor,
        index: Tensor,
        *,
        entropy: bool = False,
        block_step: Tensor | None = None,
        text: BlockText | None = None,
    ) -> DrawnTokens:
        """Draw a token for every candidate (*what* to write).

        Args:
            noise: The step's noise.
            logits: [N, V], row-major over the True entries of `predicted`.
            predicted: [B, W] bool.
            index: [N], the True entries of `predicted.flatten()`.
            entropy: Compute it even if no rule asks for it.
            block_step: [B], steps taken in the active block so far, for temperatures that fall (None: 0).
            text: What is written in the block, for policies that edit.
        """
        own = None
        if text is not None and self.edit is not None and self.edit.needs_own:
            own = text.tokens.flatten()[index]
        prediction = tokens.predict(
            logits,
            noise.uniform(rng.Stream.TOKEN).flatten()[index],
            index // predicted.shape[1],
            self._draw_parameters(noise.step, block_step),
            self.needs | {"entropy"} if entropy else self.needs,
            own,
            self.embed,
        )

        def spread(values: Tensor) -> Tensor:
            grid = torch.zeros(predicted.numel(), *values.shape[1:], dtype=values.dtype, device=values.device)
            return grid.index_copy_(0, index, values).view(*predicted.shape, *values.shape[1:])

        known = {name: values for name, values in vars(prediction).items() if values is not None}
        log_norm = known.pop("log_norm")
        values = {name: spread(tensor) for name, tensor in known.items()}
        confidence = values["log_confidence"].exp()
        return DrawnTokens(**values, confidence=confidence, positions=noise.positions, log_norm=log_norm)

    def _draw_parameters(self, step: Tensor, block_step: Tensor | None) -> tokens.DrawParameters:
        """Return how tokens are drawn now: temperatures may fall in a block, and a first step may have its own."""
        if self.first_score is None and not self.any_cooling:
            return self.draw_parameters
        t_token = self.draw_parameters.t_token
        if self.any_cooling and block_step is not None:
            steps = self.parameters.steps.clamp_min(1)
            share = torch.minimum(block_step, steps - 1) / steps
            t_token = t_token * (1 - self.parameters.cooling * share).float()
        if self.first_score is not None:
            t_token = torch.where(step == 0, self.first_t_token, t_token)
        return replace(self.draw_parameters, t_token=t_token)

    def choose(
        self,
        noise: Noise,
        drawn: DrawnTokens,
        masked: Tensor,
        *,
        memory: Memory | None = None,
        block_step: Tensor | None = None,
        text: BlockText | None = None,
    ) -> tuple[Decision, Memory | None]:
        """Choose the positions to commit (*where* to write).

        Args:
            noise: The step's noise.
            drawn: What `draw` returned.
            masked: [B, W] bool, the positions that may be committed.
            memory: What this method returned at the step before.
            block_step: [B], steps taken in the active block so far (None: 0); see `counts_steps`.
            text: What is written in the block, for policies that edit.

        Returns:
            The decision, and what to carry into the next step.
        """
        score = self.score.compute(drawn)
        if self.first_score is not None:
            score = torch.where((noise.step == 0)[:, None], self.first_score.compute(drawn), score)
        if self.any_tempered:
            uniform = noise.uniform(rng.Stream.POSITION)
            score = positions.perturb(score, self.parameters.t_pos, self.rule.noise(uniform))
        late = self.eos_last
        if late is not None:
            late = late[:, None] & torch.isin(drawn.tokens, self.draw_parameters.eos)
        carried = self._remember(memory, drawn, masked) if self.remembers else None
        order = positions.rank(score, masked, late)
        stable = None if carried is None else carried.stable
        ranked = positions.Ranked(score, order, masked, late, drawn.entropy, stable, self.parameters)
        ready = self.rule.ready(ranked)
        if self.leftmost:
            order = positions.rank(-drawn.positions.double(), masked, late)
        if ready is not None and (self.leftmost or late is not None or not self.rule.takes_the_best):
            order = positions.move_first(ready, order)
        kept = self.renoising.kept(memory, drawn.positions) if self.renoising and self.grows else None
        commit = positions.commit(ready, masked, order, self._budget(noise.step, block_step, masked, kept))
        decision = Decision(
            drawn.tokens, commit, drawn.confidence, drawn.entropy, drawn.log_norm, soft=drawn.soft
        )
        if text is not None:
            decision = self._rewrite(decision, drawn, masked, text)
        if self.renoising is None:
            return decision, carried
        return self.renoising.complete(
            decision, noise, drawn, masked, self.parameters, block_step, memory, carried
        )

    def _rewrite(self, decision: Decision, drawn: DrawnTokens, masked: Tensor, text: BlockText) -> Decision:
        """Return the decision with the tokens in doubt rewritten."""
        assert self.edit is not None, "only policies that edit need to know the text"
        edit = choose_edits(self.edit, drawn, masked, text, self.parameters)
        written = drawn.tokens
        if self.edit.remasks:
            assert self.mask_id is not None, "a policy that remasks must know the mask"
            written = written.masked_fill(edit, self.mask_id)
        return replace(decision, tokens=written, commit=decision.commit | edit, edit=edit)

    def _budget(self, step: Tensor, block_step: Tensor | None, masked: Tensor, kept: Tensor | None) -> Tensor:
        """Return how many positions to commit at least, [B]: k, or with `steps` what the schedule says.

        On a canvas, these are in addition to the positions that were `kept` [B] at the step before.
        """
        k = self.parameters.k
        if self.even_schedule is not None:
            taken = torch.zeros_like(step) if block_step is None else block_step
            even = positions.even(_remaining(masked, kept), self.parameters.steps, taken)
            k = torch.where(self.even_schedule, even, k)
        if self.dream_schedule is not None:
            dream = positions.dream(_remaining(masked, kept), self.parameters.steps, step)
            k = torch.where(self.dream_schedule, dream, k)
        if self.dream_exact_schedule is not None:
            exact = positions.dream_exact(_remaining(masked, kept), self.parameters.steps, step)
            k = torch.where(self.dream_exact_schedule, exact, k)
        return k if kept is None else k + kept

    def _remember(self, memory: Memory | None, drawn: DrawnTokens, masked: Tensor) -> Memory:
        """Compare predictions with the step before: stable where KL(q_now || q_before) < epsilon."""
        at, now = drawn.positions, required(drawn.probabilities)
        if memory is None:
            return Memory(at, now, torch.zeros_like(at))
        kl = (torch.special.xlogy(now, now) - torch.special.xlogy(now, required(memory.weights))).sum(-1)
        still = masked & (at == memory.positions) & (kl < self.parameters.kl_bound[:, None])
        return Memory(at, now, torch.where(still, required(memory.stable) + 1, 0))


def _remaining(masked: Tensor, kept: Tensor | None) -> Tensor:
    """Return how many positions a budget has not kept yet, [B]."""
    return masked.sum(1) if kept is None else masked.sum(1) - kept


def _float32(temperatures: Sequence[float], device: torch.device | str) -> Tensor:
    """Return the temperatures in float32, clamped to its range: the law is the same."""
    clamped = [min(max(t, _SINGLE.tiny), _SINGLE.max) if t else 0.0 for t in temperatures]
    return torch.tensor(clamped, dtype=torch.float32, device=device)
