"""`twotemp.score`: the log-likelihood of texts and samples under a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twotemp import rng
from twotemp.errors import UserError
from twotemp.likelihood import estimators
from twotemp.likelihood.queries import Completion, estimate
from twotemp.models.base import Denoiser, LanguageModel, language_model, refuse_without_mask
from twotemp.models.load import load_name
from twotemp.records import Sample, integer
from twotemp.sampling.requests import Prompt, prompt_ids, prompt_list, prompt_names


class Likelihood(NamedTuple):
    """An estimate of log p(completion | prompt) in nats."""

    log_p: float
    error: float  # its standard error; 0 where nothing is drawn at random
    tokens: int  # scored: up to and including the first end of text


def score(
    model: Denoiser | str | Path,
    prompts: Prompt | Sequence[Prompt] | Sample | Sequence[Sample],
    completions: str | Sequence[Any] | None = None,
    estimator: str = "stratified",
    draws: int = 32,
    seed: int = 0,
    *,
    chat: bool | None = None,
    batch_size: int = 32,
) -> list[Likelihood]:
    """Estimate the log-likelihood of each completion given its prompt.

    Only the given tokens are scored. To score the end of a text as well, append the end-of-text id to its tokens.

    Args:
        model: The denoiser, or a name that `load` takes.
        prompts: One or several prompts, as in `sample`; or samples, as `sample` returns them, without completions.
        completions: One per prompt, each a text or a list of token ids.
        estimator: "stratified" and "elbo" (a lower bound, the mean over all orders; `draws` passes each), "ar" (left
            to right, one pass per token), "d1" (all at once; biased), "pll" (each token given all others) or, for
            samples with a trace, "trajectory" (given the order they were decoded in), "order" (with the probability
            of that order) or, for ct and tct, "deferral" (the same, conditioned on the scores of forced commits).
        draws: Random masks per completion, for "stratified" (an even number), "elbo" and "d1"; at least 2.
        seed: Of the random masks.
        chat: None puts text prompts into the model's chat format where it has one, False never.
        batch_size: Rows in a forward pass.

    Returns:
        One `Likelihood` per completion: the estimate, its standard error and the number of tokens scored.

    >>> import twotemp
    >>> model = twotemp.load("tiny")
    >>> right, wrong = twotemp.score(model, ["3 7 -> 10"] * 2, ["3 + 7 = 10", "7 7 7 = 3"], draws=8)
    >>> right.log_p > wrong.log_p
    True
    """
    method = estimators.get(estimator)
    draws = integer("draws", draws, least=2) if method.random else 1
    strata = method.strata(draws)
    if method.random and draws < 2 * strata:
        raise UserError(
            f"draws must be even for the {estimator} estimator (two in each stratum), not {draws}"
        )
    seed = integer("seed", seed, least=None, most=None)
    batch_size = integer("batch_size", batch_size, least=1)
    model = load_name(model)
    refuse_without_mask(model, "scoring")
    text = language_model(model)
    if completions is None:
        scored = _from_samples(prompts, method.by_block)
    else:
        scored = _from_texts(text, prompts, completions, seed, chat)
    values = estimate(model, scored, method, draws=range(draws), batch_size=batch_size)
    errors = _standard_error(values, strata) if method.random else torch.zeros(len(scored))
    return [
        Likelihood(log_p, error, completion.scored(model.eos_ids))
        for log_p, error, completion in zip(values.mean(0).tolist(), errors.tolist(), scored)
    ]


def _standard_error(values: Tensor, strata: int) -> Tensor:
    """Return the standard error of the mean over draws; [draws, B] -> [B], draw i is in stratum i mod `strata`."""
    by_stratum = values.view(-1, strata, values.shape[1])
    return (by_stratum.var(0) / by_stratum.shape[0]).sum(0).sqrt() / strata


def _from_samples(samples: Any, by_block: bool) -> list[Completion]:
    several = [samples] if isinstance(samples, Sample) else list(samples)
    if not several or not all(isinstance(sample, Sample) for sample in several):
        raise UserError("no completions given; give one per prompt, or samples alone")
    for sample in several:
        if by_block and sample.block is None and len(sample.tokens) > 1:
            raise UserError(
                f"{sample.key} does not know the blocks it was decoded in, which are not stored; set the width with "
                "dataclasses.replace(sample, block=...), or use estimator='trajectory'"
            )
    return [Completion.from_sample(sample) for sample in several]


def _from_texts(
    model: LanguageModel, prompts: Any, completions: Any, seed: int, chat: bool | None
) -> list[Completion]:
    """Return the completions as token ids, each with a key that depends on its own tokens and the seed alone."""
    rows = [prompt_ids(model, prompt, chat) for prompt in prompt_list(prompts)]
    written = [
        tuple(model.tokens(completion))
        if isinstance(completion, str)
        else prompt_ids(model, completion, chat)
        for completion in prompt_list(completions)
    ]
    if len(rows) != len(written):
        raise UserError(f"{len(rows)} prompts and {len(written)} completions: give one per prompt")
    if not all(written):
        raise UserError("a completion is empty; give at least one token")
    for row, tokens in zip(rows, written):
        if bad := [t for t in (*row, *tokens) if not 0 <= t < model.vocab_size]:
            raise UserError(f"token id {bad[0]} is outside the vocabulary of {model.vocab_size}")
        if model.mask_id in tokens:
            raise UserError("a completion contains the mask token, which cannot be scored; leave it out")
        if model.max_length is not None and len(row) + len(tokens) > model.max_length:
            raise UserError(
                f"a prompt of {len(row)} tokens with {len(tokens)} to score does not fit into {model.name!r}'s "
                f"context of {model.max_length}; shorten it"
            )
    names = prompt_names((*row, -1, *tokens) for row, tokens in zip(rows, written))
    return [
        Completion.after(row, tokens, rng.row_key(seed, name, 0))
        for row, tokens, name in zip(rows, written, names)
    ]
