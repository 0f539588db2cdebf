"""The training loop: sample, grade, update, record; stops at the budget and continues where it stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from twotemp.backends import Backend
from twotemp.backends.local import LocalBackend
from twotemp.engine.runner import check_cache
from twotemp.errors import UserError
from twotemp.folders import continued, only_writer, write_run
from twotemp.graders.rewards import Reward, answered, correct, reward_name
from twotemp.models.transformer import Transformer
from twotemp.records import Problem
from twotemp.rl import checkpoint, results
from twotemp.rl.checkpoint import State
from twotemp.rl.learner import Learner, NotANumber
from twotemp.rl.parallel import global_max
from twotemp.rl.results import GreedyEvaluation, StepRecord
from twotemp.rl.rollouts import Dataset, RolloutBackend, Rollouts, collect, joined
from twotemp.rl.settings import Budget, GrpoSettings

# Settings that change time and memory; results change only by rounding.
FREE = (
    "settings.batch_size",
    "settings.micro_batch",
    "settings.save_every",
    "settings.learn_rate",  # what `policy_learning_rate` was called
)
# Settings that may change so that a run that diverged can continue; the change is recorded.
ADJUSTABLE = (
    "settings.learning_rate",
    "settings.policy_learning_rate",
    "settings.weight_decay",
    "settings.max_grad_norm",
    "settings.bf16",
)

GAIN = 0.2  # logits of lambda for each e-fold of tokens per forward above the target
LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.05, 0.999  # bounds of lambda: beyond them it has no effect

# Called after every step with its record and the share of the budget that is used up.
OnStep = Callable[[StepRecord, float], None]
# Opens another backend for the evaluations, with the weights of the last checkpoint.
EvaluationBackend = Callable[[], AbstractContextManager[Backend]]
# Opens the backend that draws the rollouts, if that is not this process.
OpenRollouts = Callable[[], AbstractContextManager[RolloutBackend]]


def train(
    model: Transformer,
    dataset: Dataset,
    settings: GrpoSettings,
    budget: Budget,
    out: Path,
    *,
    accelerator: Accelerator,
    rewards: Mapping[Reward, float] | None = None,
    loading: Mapping[str, Any] | None = None,
    on_step: OnStep = lambda record, used: None,
    stop: Callable[[], bool] = lambda: False,
    evaluating: EvaluationBackend | None = None,
    drawing: OpenRollouts | None = None,
) -> State:
    """Train until the budget is used up or `stop()`; the same call continues a run that stopped or was killed.

    The held-out problems are evaluated before the first step and after the last.

    Args:
        model: Trained in place.
        dataset: Problems to learn from, held-out problems and their grader.
        settings: Of the run; a run continues with the same ones.
        budget: When to stop.
        out: The run's folder; receives run.json, steps.jsonl, rollouts/, evaluation.json and checkpoints/.
        accelerator: The device and the other workers.
        rewards: Reward functions with their weights; None: correctness.
        loading: The options of loading the model that change results; a run continues with the same ones.
        on_step: Called after every step.
        stop: Called before every step; True ends the run.
        evaluating: Opens another backend for the evaluations; None: the model itself, on this device.
        drawing: Opens the backend that draws the rollouts, with copies of the model; None: the model itself.

    Returns:
        The counters after the last step.
    """
    budget.check(settings.groups * settings.size)
    if drawing is not None and accelerator.num_processes > 1:
        raise UserError(
            "with several training processes, these draw the rollouts themselves: leave --rollout-workers out"
        )
    with ExitStack() as held:
        trainer = Trainer(
            model,
            dataset,
            settings,
            out,
            accelerator,
            held,
            rewards=rewards,
            evaluating=evaluating,
            loading=loading,
            rollouts=None if drawing is None else held.enter_context(drawing()),
        )
        return trainer.run(budget, on_step, stop)


def next_threshold(threshold: float, tokens_per_forward: float, target: float) -> float:
    """Return the lambda of the next step, chosen to keep tokens per forward constant.

    With a fixed lambda, a model that grows more confident commits more tokens at once. Integral control in the
    logit of lambda: logit(lambda') = logit(lambda) + gain * log(speed / target).
    """
    inside = min(max(threshold, LOWEST_THRESHOLD), HIGHEST_THRESHOLD)
    moved = math.log(inside / (1 - inside)) + GAIN * math.log(tokens_per_forward / target)
    return min(max(1 / (1 + math.exp(-moved)), LOWEST_THRESHOLD), HIGHEST_THRESHOLD)


class Trainer:
    """One run of GRPO in its folder."""

    def __init__(
        self,
        model: Transformer,
        dataset: Dataset,
        settings: GrpoSettings,
        out: Path,
        accelerator: Accelerator,
        held: ExitStack,
        rewards: Mapping[Reward, float] | None = None,
        evaluating: EvaluationBackend | None = None,
        loading: Mapping[str, Any] | None = None,
        rollouts: RolloutBackend | None = None,
    ) -> None:
        """Start a run, or continue the one in `out`. The arguments are those of `train`, and two more.

        Args:
            held: Closed by the caller after `run`; keeps other processes from writing to `out` until then.
            rollouts: Draws the rollouts; None: the model itself.
        """
        self.evaluating, self.rollouts = evaluating, rollouts
        self._assigned: int | None = None  # the updates that the weights of `rollouts` went through
        self.dataset, self.settings, self.out, self.accelerator = dataset, settings, out, accelerator
        check_cache(model, settings.cache)
        self.loading = loading or {}
        self.rewards: dict[Reward, float] = {correct: 1.0} if rewards is None else dict(rewards)
        if settings.format_weight:
            self.rewards[answered] = settings.format_weight
        self.state = State(
            threshold=settings.policy.for_sample(0).threshold if settings.tokens_per_forward else None
        )
        stream = dataset.training(settings.seed)  # before a folder is made: the data may be refused
        if accelerator.is_main_process:
            held.enter_context(only_writer(out))
        # A run that was killed before its first checkpoint starts again.
        saved = checkpoint.read(out) if checkpoint.exists(out) or results.read_steps(out) else None
        described = continued(
            out,
            "grpo",
            self._identity(model),
            step=None if saved is None else saved[0].step,
            free=FREE,
            adjustable=ADJUSTABLE,
        )
        accelerator.wait_for_everyone()  # all have read before the main worker writes
        if accelerator.is_main_process:
            write_run(out, described)
        self.learner = Learner(model, settings, accelerator)
        # The changes that `state` counts: where the learner has more, its weights are of no step.
        self._counted = self.learner.changes
        if saved is None:
            self._save()
        else:
            self.state, weights, moments = saved
            self.learner.restore(weights, moments)
            self.learner.knobs.restore(self.state.knobs)
        self.log = results.open_steps(out, self.state.step) if accelerator.is_main_process else None
        self.problems: Iterator[Problem] = islice(stream, self.state.problems, None)

    def run(self, budget: Budget, on_step: OnStep, stop: Callable[[], bool]) -> State:
        """Train until the budget is used up or `stop()` and return the counters."""
        self._evaluate(only_if_new=True)
        before, started = self.state.seconds, perf_counter()
        try:
            while not self._any_worker(self._used(budget) >= 1 or stop()):
                rollouts, numbers = self._draw()
                record = self._learn(rollouts, numbers, before, started)
                results.write_rollouts(self.out, record.step, self.accelerator.process_index, rollouts)
                if self.log is not None:
                    self.log.add(asdict(record))
                on_step(record, self._used(budget))
                if self.state.step % self.settings.save_every == 0:
                    self._save()
        except BaseException as error:
            # Save the last finished step, if the weights are still those of it: an update may have been interrupted.
            # Saving is collective, so with several workers only an error that all of them raise permits it.
            shared = self.accelerator.num_processes == 1 or isinstance(error, NotANumber)
            if shared and self.learner.changes == self._counted:
                self._save()
            raise
        self._save()
        if self._used(budget) >= 1:
            self._evaluate()
        return self.state

    # One step.

    def _draw(self) -> tuple[Rollouts, Tensor]:
        """Sample and grade groups of the next problems; return this worker's, and the numbers of all workers'.

        With `resample`, groups without a signal are replaced by others (DAPO's dynamic sampling, Yu et al. 2025),
        in at most that many rounds.
        """
        rounds, numbers = [], torch.zeros(0, len(results.COLUMNS), dtype=torch.float64)
        wanted = self.settings.groups
        for _ in range(1 + self.settings.resample):
            rounds.append(self._draw_groups(wanted, self.state.problems + len(numbers)))
            exchanged = self._exchange(rounds[-1], wanted)
            numbers = torch.cat([numbers, exchanged])
            wanted = int(exchanged[:, results.COLUMNS.index("zero_std")].sum())
            if not wanted:
                break
        return joined(rounds), numbers

    def _draw_groups(self, groups: int, first: int) -> Rollouts:
        """Draw this worker's share of the next problems, which start at number `first` of the stream."""
        settings, accelerator = self.settings, self.accelerator
        problems = list(enumerate(islice(self.problems, groups), start=first))
        mine = dict(problems[accelerator.process_index :: accelerator.num_processes])
        policy = settings.policy
        if self.state.threshold is not None:
            policy = replace(policy.for_sample(0), threshold=self.state.threshold)
        if self.learner.knobs:
            policy = replace(policy.for_sample(0), **self.learner.knobs.numbers())
        with self._drawing() as backend:
            return collect(
                backend,
                self.dataset.grader,
                mine,
                policy,
                self.rewards,
                size=settings.size,
                seed=settings.seed,
                length=settings.length,
                block=settings.block,
                prompt_tokens=settings.prompt_tokens,
                chat=self.dataset.chat,
            )

    @contextmanager
    def _drawing(self) -> Iterator[Backend]:
        """Yield a backend with the current weights."""
        if self.rollouts is None:
            with self.learner.sampling() as model:
                yield self._backend(model, self.settings.cache)
            return
        if self._assigned != self.learner.changes:
            self.rollouts.assign(self.learner.sampling_weights())
            self._assigned = self.learner.changes
        yield self.rollouts

    def _exchange(self, rollouts: Rollouts, groups: int) -> Tensor:
        """Return the numbers of all workers' groups of a round, [groups, columns]. Collective."""
        accelerator = self.accelerator
        numbers = torch.zeros(groups, len(results.COLUMNS), dtype=torch.float64)
        numbers[accelerator.process_index :: accelerator.num_processes] = results.group_numbers(rollouts)
        total: Tensor = accelerator.reduce(numbers.to(accelerator.device), "sum")
        return total.cpu()

    def _learn(
        self, rollouts: Rollouts, numbers: Tensor, seconds_before: float, started: float
    ) -> StepRecord:
        """Update the weights, then the counters, so that they describe a finished step; return its record."""
        settings, state, accelerator = self.settings, self.state, self.accelerator
        drawn_with = rollouts.samples[0].policy if rollouts.samples else settings.policy.for_sample(0)
        begin = perf_counter()
        update = self.learner.update(rollouts.with_signal() if settings.resample else rollouts)
        seconds_updating = perf_counter() - begin
        means = results.summarize(numbers, settings.size, accelerator.num_processes)
        rows = len(numbers) * settings.size
        threshold = settings.policy.for_sample(0).threshold if state.threshold is None else state.threshold
        controlled = state.threshold
        if controlled is not None and settings.tokens_per_forward is not None:
            controlled = next_threshold(controlled, means["tokens_per_forward"], settings.tokens_per_forward)
        self.state = State(
            step=state.step + 1,
            problems=state.problems + len(numbers),
            nfe=state.nfe + round(means["nfe"] * rows),
            # One time for all workers, so that they agree on whether the budget is used up.
            seconds=global_max(accelerator, seconds_before + perf_counter() - started),
            threshold=controlled,
            knobs=self.learner.knobs.state(),
        )
        self._counted = self.learner.changes
        return StepRecord(
            step=self.state.step,
            threshold=drawn_with.threshold if self.learner.knobs else threshold,
            t_pos=drawn_with.t_pos if self.learner.knobs else None,
            t_token=drawn_with.t_token if self.learner.knobs else None,
            loss=update.loss,
            kl=update.kl,
            clipped=update.clipped,
            grad_norm=update.grad_norm,
            seconds_updating=seconds_updating,
            total_seconds=self.state.seconds,
            total_nfe=self.state.nfe,
            **means,
        )

    # The run's folder.

    def _identity(self, model: Transformer) -> dict[str, Any]:
        """Return what must be the same for a run to be continued."""
        return {
            "model": model.name,
            **self.dataset.to_dict(),
            "loading": dict(self.loading),
            "rewards": {reward_name(reward): weight for reward, weight in self.rewards.items()},
            "settings": self.settings.to_dict(),
        }

    def _save(self) -> None:
        """Write a checkpoint of the last finished step. Collective."""
        weights, moments = self.learner.weights(), self.learner.moments()
        if self.accelerator.is_main_process:
            checkpoint.write(self.out, self.state, weights, moments, self.learner.adapter(weights))
        self.accelerator.wait_for_everyone()

    def _evaluate(self, only_if_new: bool = False) -> None:
        """Evaluate the held-out problems, unless that was done for this step. Collective."""
        known = {evaluation.step for evaluation in results.read_evaluations(self.out)}
        held_out = self.dataset.held_out
        if not held_out or self.state.step in known or (only_if_new and self.state.step):
            return
        with (
            self.learner.sampling() as model,
            self.evaluating() if self.evaluating else nullcontext(self._backend(model)) as backend,
        ):
            points = results.evaluate(
                backend,
                self.dataset.grader,
                held_out,
                self.accelerator,
                length=self.settings.length,
                block=self.settings.block,
                chat=self.dataset.chat,
            )
        if self.accelerator.is_main_process:
            questions = tuple(problem.id for problem in held_out)
            evaluation = GreedyEvaluation(self.state.step, self.state.seconds, questions, points)
            results.add_evaluation(self.out, evaluation)
        self.accelerator.wait_for_everyone()

    def _backend(self, model: Transformer, cache: str | None = None) -> Backend:
        return LocalBackend(model, batch_size=self.settings.batch_size, cache=cache)

    def _used(self, budget: Budget) -> float:
        return budget.used(self.state.seconds, self.state.nfe, self.state.step)

    def _any_worker(self, stop: bool) -> bool:
        """Return whether one of the workers wants to stop. Collective."""
        vote = torch.tensor(float(stop), device=self.accelerator.device)
        return bool(self.accelerator.reduce(vote, "sum") > 0)
