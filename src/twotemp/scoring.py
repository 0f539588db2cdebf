"""How likely is a text under a model? The estimators of `rl.likelihood`, for everybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twotemp.errors import UserError
from twotemp.models.base import Denoiser, language_model
from twotemp.policies import policy
from twotemp.records import Sample
from twotemp.rl.likelihood import RANDOM, Completions, Questions, estimator, log_probs
from twotemp.sampling.prompts import Prompt, integer, prompt_ids, prompt_list, prompt_names

QUESTIONS = 4096  # held at once


class Likelihood(NamedTuple):
    """An estimate of log p(completion | prompt) in nats."""

    log_p: float
    error: float  # its standard error; 0 where nothing is drawn at random
    tokens: int  # scored: up to and including the first end of text


def score(
    model: Denoiser,
    prompts: Prompt | Sequence[Prompt] | Sample | Sequence[Sample],
    completions: str | Sequence[Any] | None = None,
    estimator: str = "stratified",
    draws: int = 32,
    seed: int = 0,
    *,
    chat: bool | None = None,
    batch_size: int = 32,
) -> list[Likelihood]:
    """The log-likelihood of each completion (text or token ids) given its prompt (as in `sample`), with its error.

    prompts may also be samples, as `sample` returns them, or one; then there are no completions to give.
    estimator: "stratified" and "elbo" (a lower bound, the mean over all orders; `draws` passes each), "ar" (left to
    right, one pass per token), "d1" (all at once; biased), "trajectory" (the order of a sample's own trace).
    draws: of the random estimators, at least 2; an even number for "stratified".

    A text is scored as it stands: to score its end, too, append the end-of-text id to its token ids.

    >>> import twotemp
    >>> model = twotemp.load("tiny")
    >>> right, wrong = twotemp.score(model, ["3 7 -> 10"] * 2, ["3 + 7 = 10", "7 7 7 = 3"], draws=8)
    >>> right.log_p > wrong.log_p
    True
    """
    build = _estimator(estimator, draws)
    samples = _samples(model, prompts, completions, integer("seed", seed, least=None), chat)
    batch = integer("batch_size", batch_size, least=1)
    forbidden = torch.tensor(model.forbidden_ids, device=model.device)
    found: list[Likelihood] = []
    random = estimator in RANDOM
    size = max(1, QUESTIONS // (draws if random else max(len(s.tokens) for s in samples)))
    for start in range(0, len(samples), size):
        rows = Completions.of(samples[start : start + size], model.eos_ids, model.device)
        asked = build(rows, model.mask_id, 0, draws)
        values = _answers(model, asked, forbidden, batch)
        counts = rows.scored.sum(1).tolist()
        if not random:
            total = torch.zeros(len(counts), dtype=torch.float64).index_add(0, asked.row.cpu(), values)
            found += [Likelihood(p, 0.0, n) for p, n in zip(total.tolist(), counts)]
            continue
        by_draw = draws * values.view(draws, -1)  # the questions come draw by draw, one per row in each
        errors = _error(by_draw, strata=draws // 2 if estimator == "stratified" else 1)
        found += [Likelihood(*one) for one in zip(by_draw.mean(0).tolist(), errors.tolist(), counts)]
    return found


def _estimator(name: str, draws: int) -> Any:
    build = estimator(name)
    if name in RANDOM and integer("draws", draws, least=2) % 2 and name == "stratified":
        raise UserError(f"draws must be even for the stratified estimator (two in each stratum), not {draws}")
    return build


@torch.inference_mode()
def _answers(model: Denoiser, asked: Questions, forbidden: Tensor, batch: int) -> Tensor:
    """[Q] float64 on the host: of each question, the weighted sum of what was read."""
    sums = []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        read = part.terms()[1] * log_probs(model.logits, part, forbidden)
        question = part.want.nonzero()[:, 0]
        sums.append(
            torch.zeros(len(part), dtype=torch.float64).index_add(0, question.cpu(), read.double().cpu())
        )
    return torch.cat(sums)


def _error(by_draw: Tensor, strata: int) -> Tensor:
    """The standard error of the mean over draws, [B]; draw i is of stratum i mod `strata`."""
    inside = by_draw.view(-1, strata, by_draw.shape[1])
    return (inside.var(0) / inside.shape[0]).sum(0).sqrt() / strata


def _samples(model: Denoiser, prompts: Any, completions: Any, seed: int, chat: bool | None) -> list[Sample]:
    """The rows to score, as if they had been sampled."""
    text = language_model(model)
    if completions is None:
        given = [prompts] if isinstance(prompts, Sample) else list(prompts)
        if not given or not all(isinstance(one, Sample) for one in given):
            raise UserError("no completions given; give one per prompt, or samples alone")
        return given
    rows = [prompt_ids(text, prompt, chat) for prompt in prompt_list(prompts)]
    written = [
        tuple(text.tokens(one)) if isinstance(one, str) else prompt_ids(text, one, chat)
        for one in prompt_list(completions)
    ]
    if len(rows) != len(written):
        raise UserError(f"{len(rows)} prompts and {len(written)} completions: give one per prompt")
    if not all(written):
        raise UserError("a completion is empty; give at least one token")
    for row, tokens in zip(rows, written):
        if bad := [t for t in (*row, *tokens) if not 0 <= t < model.vocab_size]:
            raise UserError(f"token id {bad[0]} is outside the vocabulary of {model.vocab_size}")
        if model.mask_id in tokens:
            raise UserError("a completion contains the mask token, which is no text; leave it out")
        if model.max_length is not None and len(row) + len(tokens) > model.max_length:
            raise UserError(
                f"a prompt of {len(row)} tokens with {len(tokens)} to score does not fit into {model.name!r}'s "
                f"context of {model.max_length}; shorten it"
            )
    # An estimate depends on its own texts alone, whatever else is scored beside it.
    names = prompt_names((*row, -1, *tokens) for row, tokens in zip(rows, written))
    return [
        Sample(
            request=name,
            index=0,
            seed=seed,
            policy=policy("ar"),
            prompt=row,
            positions=tuple(range(len(row), len(row) + len(tokens))),
            tokens=tokens,
            nfe=0,
            forwards=0,
            processed=0,
            seconds=0.0,
            finish="length",
        )
        for name, row, tokens in zip(names, rows, written)
    ]
