"""The update of the trained weights from one step's rollouts.

The loss is divided by the token count of the *global* batch, so an update does not depend on the number of workers or
on the size of micro-batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from twotemp.engine.scheduler import CatchOutOfMemory
from twotemp.errors import UserError
from twotemp.likelihood import estimators
from twotemp.likelihood.queries import Completion, CompletionBatch, MaskedQueries, empty_query
from twotemp.models.transformer import Transformer
from twotemp.records import Sample
from twotemp.rl import objective
from twotemp.rl.knobs import Knobs
from twotemp.rl.objective import Clip, Loss, Terms, advantages
from twotemp.rl.parallel import accumulating, global_max, unsharded
from twotemp.rl.rollouts import Rollouts
from twotemp.rl.settings import GrpoSettings
from twotemp.rl.weights import TrainedWeights
from twotemp.rng import row_key

log = logging.getLogger("twotemp")


@dataclass(frozen=True)
class Update:
    """The numbers of an update: means over the tokens of the global batch and the inner iterations."""

    loss: float = 0.0
    kl: float | None = None  # measured only where it is part of the loss
    clipped: float = 0.0
    grad_norm: float = 0.0


@dataclass(frozen=True)
class RowNumbers:
    """What an objective needs to know about this worker's rows, [R] each, and the divisor of its sum."""

    advantage: Tensor
    tokens: Tensor
    group: Tensor
    total: float  # tokens, rows or groups of the global batch


@dataclass(frozen=True)
class Iteration:
    """What an optimizer step is computed from."""

    batch: list[MaskedQueries]  # micro-batches, the same number on every worker
    rows: RowNumbers
    # Log q of every query before the first iteration; None: it is the current one, or not needed.
    old: list[Tensor] | None
    reference: list[Tensor] | None  # log q of every query under the untrained model; None: no KL

    def terms(self, new: Tensor, part: slice) -> Terms:
        """Return the terms of some of the micro-batches for an objective; `new` is their log q now."""
        batch, rows = self.batch[part], self.rows
        numbers = [queries.terms() for queries in batch]
        return Terms(
            new,
            new.detach() if self.old is None else torch.cat(self.old[part]),
            None if self.reference is None else torch.cat(self.reference[part]),
            weight=torch.cat([weight for _, weight in numbers]),
            row=torch.cat([row for row, _ in numbers]),
            column=torch.cat([queries.queried.nonzero()[:, 1] for queries in batch]),
            advantage=rows.advantage,
            tokens=rows.tokens,
            group=rows.group,
        )


class NotANumber(UserError):
    """The loss or its gradient is not finite. Both are sums over all workers, so every worker raises this."""


class Learner(TrainedWeights):
    """Trains a model in place, on one worker or several.

    Attributes:
        changes: how many optimizer steps the weights went through, less those that were undone. The trainer uses it
            to tell whether its counters describe the current weights.
    """

    def __init__(self, model: Transformer, settings: GrpoSettings, accelerator: Accelerator) -> None:
        super().__init__(model, settings, accelerator)
        self.knobs = Knobs(
            settings.policy.for_sample(0), settings.learned, settings.policy_learning_rate, accelerator.device
        )
        self.changes = 0
        self.micro_batch = settings.micro_batch

    def update(self, rollouts: Rollouts) -> Update:
        """Take mu optimizer steps of GRPO on the rollouts; none where no worker has anything to learn from.

        If a later step fails, the earlier ones are undone. If a single worker runs out of memory, it halves its
        micro-batches and starts again, which changes sums by rounding only. Several workers stop instead, because the
        others would wait forever.
        """
        changes = self.changes
        while True:
            with CatchOutOfMemory():
                return self._update(rollouts)
            if self.micro_batch == 1 or self.accelerator.num_processes > 1 or self.changes != changes:
                raise UserError(
                    f"an update does not fit into memory with --micro-batch {self.micro_batch}; the same command "
                    "with a lower one continues after the last finished step (less memory: --gradient-checkpointing)"
                )
            self.micro_batch //= 2
            log.warning("out of memory in an update; continuing with micro-batches of %d", self.micro_batch)

    def _update(self, rollouts: Rollouts) -> Update:
        settings, goal = self.settings, objective.get(self.settings.objective)
        if goal.advantages is None:
            by_group = advantages(rollouts.rewards, scale=settings.scale_advantage)
        else:
            by_group = goal.advantages(rollouts.rewards)
        signal, advantage = (by_group != 0).any(1), by_group.flatten()
        if not self._sum(float(signal.sum())):
            return Update()
        graded = ~rollouts.rewards.flatten().isnan()
        # A row without advantage matters only for the KL, or for the weights of its group. Otherwise it adds nothing,
        # so leave it out to save time.
        used = graded if settings.beta else advantage != 0
        if goal.normalizes:
            used = graded & signal.repeat_interleave(rollouts.size)
        totals = {
            "tokens": lambda: self._tokens(_select(graded, rollouts.samples)),
            "rows": lambda: self._sum(float(graded.sum())),
            "groups": lambda: self._sum(float(signal.sum())),
        }
        completions = self._completions(_select(used, rollouts.samples))
        device = self.accelerator.device
        number = torch.arange(len(advantage)) // rollouts.size
        rows = RowNumbers(
            advantage[used].to(device),
            torch.zeros(0, device=device) if completions is None else completions.scored.sum(1).float(),
            torch.unique(number[used], return_inverse=True)[1].to(device),
            totals[goal.per](),
        )
        # Old and reference log-probabilities of every iteration's queries, before the first update.
        batches = [self._micro_batches(completions, iteration) for iteration in range(settings.iterations)]
        old = [self._without_gradient(batch) if n and goal.ratio else None for n, batch in enumerate(batches)]
        reference = [self._reference(batch) if settings.beta else None for batch in batches]
        self.network.train()
        # With one iteration, weights change at the very end. With several, a later one may fail after they changed.
        snapshot = self._snapshot() if settings.iterations > 1 else None
        changes, knobs = self.changes, self.knobs.state()
        try:
            numbers = [
                self._iteration(Iteration(batch, rows, *before))
                for batch, *before in zip(batches, old, reference)
            ]
        except BaseException:
            self.knobs.restore(knobs)
            if snapshot is not None:
                self._restore_snapshot(snapshot)
                self.changes = changes
            raise
        loss, kl, clipped, grad_norm = torch.tensor(numbers).mean(0).tolist()
        return Update(loss, kl if settings.beta else None, clipped, grad_norm)

    def _iteration(self, given: Iteration) -> tuple[float, float, float, float]:
        """Take one optimizer step; return the loss, the KL, the clipped share and the norm of the gradient."""
        settings, accelerator = self.settings, self.accelerator
        goal = objective.get(settings.objective)
        self.optimizer.zero_grad()
        sums = torch.zeros(3, device=accelerator.device)
        slopes: list[Tensor] | None = None
        if goal.needs != "terms":
            loss, slopes = self._slopes(given)
            sums += torch.stack([loss.total.detach(), loss.kl, loss.clipped])
        for number, queries in enumerate(given.batch):
            last = number == len(given.batch) - 1
            with nullcontext() if last else accumulating(self.scorer), self._dropout(number):
                new = self._log_q(self.scorer, self.knobs.apply_to(queries))
                if slopes is None:
                    loss = goal.loss(given.terms(new, slice(number, number + 1)), self._clip)
                    sums += torch.stack([loss.total.detach(), loss.kl, loss.clipped])
                    total = loss.total
                else:
                    total = (slopes[number] * new).sum()
                # Workers' gradients are averaged, and we want their sum.
                (total * accelerator.num_processes / given.rows.total).backward()
        total, kl, clipped = (accelerator.reduce(sums, "sum") / given.rows.total).tolist()
        norm = accelerator.clip_grad_norm_(self.scorer.parameters(), settings.max_grad_norm)
        grad_norm = float(unsharded(norm))
        if not torch.isfinite(torch.tensor([total, grad_norm])).all():
            raise NotANumber(
                f"the loss is {total} and its gradient {grad_norm}: not a number. Every finished step is kept; the "
                "same command with a lower --learning-rate or --max-grad-norm, or without --bf16, continues "
                "after them"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, (self._updates() + 1) / max(1, settings.warmup))
        self.changes += 1  # before the step: interrupted, it may have changed some of the weights
        self.optimizer.step()
        # Each worker's loss was multiplied by their number, for gradients that are averaged.
        self.knobs.step(lambda slope: accelerator.reduce(slope, "sum") / accelerator.num_processes)
        return total, kl, clipped, grad_norm

    @contextmanager
    def _dropout(self, number: int) -> Iterator[None]:
        """Draw the dropout of a micro-batch by its place in the run, so that a continued run repeats it."""
        if not self.settings.lora_dropout:
            yield
            return
        device = self.accelerator.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            address = f"{self._updates()} {number} {self.accelerator.process_index}"
            torch.manual_seed(row_key(self.settings.seed, address, 0))
            yield

    def _slopes(self, given: Iteration) -> tuple[Loss, list[Tensor]]:
        """Return an objective of whole rows and its derivative in every log q, by micro-batch."""
        goal = objective.get(self.settings.objective)
        sizes = [int(queries.queried.sum()) for queries in given.batch]
        values = [torch.zeros(size, device=given.rows.advantage.device) for size in sizes]
        # At the start, new and old log q are the same; if nothing but their difference matters, neither is computed.
        if goal.needs != "differences" or given.old is not None or given.reference is not None:
            for number, queries in enumerate(given.batch):
                with torch.no_grad(), self._dropout(number):
                    values[number] = self._log_q(self.scorer, self.knobs.apply_to(queries))
        new = torch.cat(values).requires_grad_()
        loss = goal.loss(given.terms(new, slice(None)), self._clip)
        (slopes,) = torch.autograd.grad(loss.total, new)
        return loss, list(torch.split(slopes, sizes))

    @property
    def _clip(self) -> Clip:
        settings = self.settings
        high = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
        return Clip(settings.epsilon, high, settings.beta)

    def _micro_batches(self, completions: CompletionBatch | None, iteration: int) -> list[MaskedQueries]:
        """Return the queries of one inner iteration, in the same number of micro-batches on every worker."""
        settings, parts = self.settings, []
        if completions is not None:
            draws = range(iteration * settings.draws, (iteration + 1) * settings.draws)
            parts = estimators.get(settings.likelihood)(completions, draws).split(self.micro_batch)
        missing = int(global_max(self.accelerator, len(parts))) - len(parts)
        return parts + [empty_query(self.model.mask_id, self.accelerator.device)] * missing

    def _completions(self, samples: list[Sample]) -> CompletionBatch | None:
        """Return samples as a batch; None where there are none."""
        if not samples:
            return None
        batch = CompletionBatch.for_model(list(map(Completion.from_sample, samples)), self.model)
        return batch.merged(self.settings.merge_steps) if self.settings.merge_steps > 1 else batch

    def _tokens(self, samples: list[Sample]) -> float:
        """Return the number of scored tokens of all workers' samples, at least 1."""
        tokens = sum(Completion.from_sample(sample).scored(self.model.eos_ids) for sample in samples)
        return max(1.0, self._sum(float(tokens)))

    def _sum(self, number: float) -> float:
        """Return the sum over workers. Collective."""
        return float(self.accelerator.reduce(torch.tensor(number, device=self.accelerator.device), "sum"))


def _select(mask: Tensor, samples: Sequence[Sample]) -> list[Sample]:
    return [samples[index] for index in mask.nonzero()[:, 0].tolist()]
