"""Denoisers as reward models: the likelier the model finds an answer, the higher its score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.likelihood.queries import (
    BuildQueries,
    Completion,
    CompletionBatch,
    MaskedQueries,
    concatenate,
    estimate,
)
from twotemp.models.base import LanguageModel
from twotemp.records import Problem, Sample, first_eos
from twotemp.sampling.requests import encode_problem

VERSION = "1"  # increase it whenever the same weights give other scores, because scores are stored by name

# Log-odds for a nat of `thirds`. Tokens that are masked together and depend on each other are counted several times,
# so that the likelihood as it stands is far too sure. The verifier was trained with it.
LOG_ODDS = 0.3

pseudo = ESTIMATORS["pll"]


def scaled_thirds(batch: CompletionBatch, draws: range) -> MaskedQueries:
    """Return the queries of `thirds`, weighted so that their sum is about the log-odds of a right answer."""
    queries = ESTIMATORS["thirds"](batch, draws)
    return replace(queries, weight=LOG_ODDS * queries.weight)


def checks(model: LanguageModel, task: str) -> BuildQueries:
    """Return a function that builds the queries of an embedded task's checks; its words are tokens of the model.

    A check masks what follows from the rest of problem and answer, and asks whether the model predicts it again. A
    denoiser that cannot find a program can still tell what a program returns.
    """

    def build(batch: CompletionBatch, draws: range) -> MaskedQueries:
        rows, all_checks = [], []
        for row, (ids, present, generated) in enumerate(zip(batch.ids, batch.present, batch.generated)):
            words = cast(Any, model.tokenizer).convert_ids_to_tokens(ids[present].tolist())
            row_checks = tasks.SOURCES[task].checks(words, int(generated.int().argmax()))
            rows += [row] * len(row_checks)
            all_checks += row_checks
        shape = (2, len(all_checks), batch.ids.shape[1])
        hidden, queried = torch.zeros(shape, dtype=torch.bool, device=batch.ids.device)
        for number, check in enumerate(all_checks):
            hidden[number, check.covered] = queried[number, check.expected] = True
        return batch.mask(hidden, queried, torch.tensor(rows, dtype=torch.int64, device=batch.ids.device))

    return build


def with_checks(build: BuildQueries, model: LanguageModel, task: str) -> BuildQueries:
    """Return a function that adds the task's checks to the queries of `build`, in the order of the answers."""
    build_checks = checks(model, task)

    def both(batch: CompletionBatch, draws: range) -> MaskedQueries:
        queries = concatenate([build(batch, draws), build_checks(batch, draws)])
        return queries[queries.row.argsort(stable=True)]

    return both


class DenoiserReward:
    """The weighted log-likelihood of an answer x to the prompt c under a denoiser,

        s(x) = sum_V w_V sum_{k queried in V} log q^k((c, x)^k | (c, x) with the positions hidden in V masked).

    With every position of x hidden alone, and weights of 1, this is the pseudo-log-likelihood. With positions of c
    hidden it is a part of the noisy channel: does the problem follow from the answer?
    """

    def __init__(
        self,
        model: LanguageModel,
        build: BuildQueries,
        name: str,
        batch_size: int = 32,
        *,
        checks: bool = False,
    ) -> None:
        """Prepare a reward model.

        Args:
            model: The denoiser.
            build: Builds the queries about answers.
            name: Under which scores are stored, with the model's fingerprint.
            batch_size: Rows in a forward pass.
            checks: Add the checks of the embedded tasks, and refuse other tasks.
        """
        if batch_size < 1:
            raise UserError(f"batch_size must be >= 1, not {batch_size}")
        if not model.eos_ids:
            raise UserError(
                f"{model.name!r} names no end-of-text token, which the answer's row is filled with"
            )
        self.model, self.batch_size = model, batch_size
        self.name = f"{name} {VERSION} {model.fingerprint[:8]}"
        self._build, self._checks = build, checks

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        """Return the score of each answer, in the order given."""
        names = [problem.task for problem, _ in items]
        foreign = {*names} - tasks.SOURCES.keys()
        if self._checks and foreign:
            raise UserError(
                f"the embedded verifier knows only the embedded tasks, not {', '.join(sorted(foreign))}; "
                "give a reward model with --rm, e.g. --rm nvidia/AceMath-7B-RM"
            )
        answers = [answer_row(self.model, problem, text) for problem, text in items]
        scores = {
            task: self.score_rows(task, [answer for name, answer in zip(names, answers) if name == task])
            for task in dict.fromkeys(names)
        }
        remaining = {task: iter(values) for task, values in scores.items()}
        return [next(remaining[name]) for name in names]

    def score_rows(self, task: str, answers: Sequence[Completion]) -> list[float]:
        """Return the score of each answer to problems of one task; equal ones are computed once."""
        distinct = list(dict.fromkeys(answers))
        if not distinct:
            return []
        build = with_checks(self._build, self.model, task) if self._checks else self._build
        values = estimate(self.model, distinct, build, batch_size=self.batch_size)[0].tolist()
        for answer, value in zip(distinct, values):
            if not math.isfinite(value):
                text = self.model.decode(answer.tokens)
                raise UserError(
                    f"{self.name!r} gives {value} to {text[:60]!r}; does it contain a token that the model never "
                    "writes? If not, load the model with more precision (float32)"
                )
        scores = dict(zip(distinct, values))
        return [scores[answer] for answer in answers]


def answer_row(model: LanguageModel, problem: Problem, text: str) -> Completion:
    """Return an answer from any source as this model would have written it, filled up with EOS.

    Args:
        model: The denoiser.
        problem: The question; its prefill, with which `text` begins, is part of the prompt.
        text: The assistant's whole turn (`sampling.requests.assistant_turn`).
    """
    start = len(encode_problem(model, problem))
    written = model.encode(problem.prompt, prefill=text)
    return _filled(model, written, start, start + tasks.get(problem.task).length)


def sample_row(model: LanguageModel, sample: Sample) -> Completion:
    """Return a sample of this model, token by token, with EOS at all positions from its first EOS on."""
    text = sample.tokens[: first_eos(sample.tokens, model.eos_ids)]
    start = len(sample.prompt)
    return _filled(model, [*sample.prompt, *text], start, start + len(sample.tokens))


def _filled(model: LanguageModel, written: list[int], start: int, stop: int) -> Completion:
    row = written + [model.eos_ids[0]] * (stop - len(written))
    return Completion.after(row[:start], row[start:])
