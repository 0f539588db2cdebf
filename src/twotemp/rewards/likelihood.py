"""A denoiser as the judge of answers: how likely does it find them?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.records import Problem, Sample
from twotemp.sampling.prompts import encode_problem


class Canvas(NamedTuple):
    """The row of a finished sample, filled up with EOS."""

    task: str
    ids: list[int]
    first: int  # position of the answer
    end: int  # one past the EOS that ends it


class View(NamedTuple):
    hidden: Sequence[int]  # positions that are masked together,
    asked: Sequence[int]  # those of them whose likelihood counts,
    weight: float  # and how much


Views = Callable[[Canvas], list[View]]

VERSION = "1"  # raised whenever the same weights score an answer otherwise: scores are kept by name

# Log-odds for a nat of likelihood. Masked together, tokens that hang together are counted several times, and in
# `all_and_thirds` each of them twice: as it is, the likelihood is far too sure. The verifier was trained with it.
LOG_ODDS = 0.15


def each_alone(canvas: Canvas) -> list[View]:
    """Every token in sight of all others, and the EOS that ends the answer: as many rows as tokens."""
    return [View([k], [k], 1.0) for k in range(canvas.first, canvas.end)]


def all_and_thirds(canvas: Canvas) -> list[View]:
    """Four rows, whatever the length: what does the prompt alone say, and what does the rest of the answer?

    A wrong answer that goes on consistently is found out by the first, one that contradicts itself by the others.
    """
    first, stop = canvas.first, len(canvas.ids)
    together = (range(first, stop), *(range(first + third, stop, 3) for third in range(3)))
    return [View(positions, positions, LOG_ODDS) for positions in together]


def checks(model: LanguageModel, canvas: Canvas) -> list[View]:
    """The checks of an embedded task, whose words are tokens of the model: what follows from the rest, does it come
    out again? A denoiser that cannot find a program can still tell what one returns."""
    words = cast(Any, model.tokenizer).convert_ids_to_tokens(canvas.ids)
    found = tasks.SOURCES[canvas.task].checks(words, canvas.first)
    return [View(check.covered, check.expected, 1.0) for check in found]


def likelihood_and_checks(model: LanguageModel) -> Views:
    """What the embedded verifier looks at."""
    return lambda canvas: [*all_and_thirds(canvas), *checks(model, canvas)]


class Likelihood:
    """The log-likelihood of an answer x to the prompt c, as seen through masks:

        s(x) = sum_V w_V sum_{k asked in V} log q^k((c, x)^k | (c, x) with the positions hidden in V masked).

    With every position of x hidden alone, and weights of 1, this is the pseudo-log-likelihood (Wang and Cho, 2019;
    Salazar et al., 2020). With positions of c hidden it is a part of the noisy channel: does the problem follow from
    the answer?
    """

    def __init__(
        self,
        model: LanguageModel,
        views: Views,
        name: str,
        batch_size: int = 32,
        *,
        embedded_tasks_only: bool = False,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size must be >= 1, not {batch_size}")
        if not model.eos_ids:
            raise UserError(
                f"{model.name!r} names no end-of-text token, which the answer's canvas is filled with"
            )
        self.model, self.views, self.batch_size = model, views, batch_size
        self.name = f"{name} {VERSION} {model.fingerprint[:8]}"
        self._embedded_tasks_only = embedded_tasks_only

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        foreign = {problem.task for problem, _ in items} - tasks.SOURCES.keys()
        if self._embedded_tasks_only and foreign:
            raise UserError(
                f"the embedded verifier knows only the embedded tasks, not {', '.join(sorted(foreign))}; "
                "give a reward model with --rm, e.g. --rm nvidia/AceMath-7B-RM"
            )
        return self.of([canvas_of(self.model, problem, text) for problem, text in items])

    def of(self, canvases: Sequence[Canvas]) -> list[float]:
        """s of each; those that are equal are computed once."""
        keys = [(one.task, one.first, one.end, tuple(one.ids)) for one in canvases]
        by_length: dict[int, list[tuple[Any, list[int], View]]] = {}
        for key, canvas in dict(zip(keys, canvases)).items():
            terms = ((key, canvas.ids, view) for view in self.views(canvas))
            by_length.setdefault(len(canvas.ids), []).extend(terms)
        total = dict.fromkeys(keys, 0.0)
        for here in by_length.values():
            for start in range(0, len(here), self.batch_size):
                part = here[start : start + self.batch_size]
                for (key, _, view), term in zip(part, self._terms(part)):
                    total[key] += view.weight * term
        for key, one in zip(keys, canvases):
            if not math.isfinite(total[key]):
                said = self.model.decode(one.ids[one.first : one.end])
                raise UserError(
                    f"{self.name!r} gives {total[key]} to {said[:60]!r}; is there a token in it that the model never "
                    "writes? If not, load the model with more precision (float32)"
                )
        return [total[key] for key in keys]

    @torch.no_grad()
    def _terms(self, part: Sequence[tuple[object, list[int], View]]) -> list[float]:
        ids = torch.tensor([row for _, row, _ in part], device=self.model.device)
        found: list[float] = log_q(self.model, ids, [view for _, _, view in part]).tolist()
        return found


def canvas_of(model: LanguageModel, problem: Problem, text: str) -> Canvas:
    """The row of an answer by whomever, as this model would be asked. text: the assistant's whole turn
    (`prompts.answer`); what it was given of that is part of the prompt."""
    first = len(encode_problem(model, problem))
    written = model.encode(problem.prompt, prefill=text)
    return _filled(model, problem.task, written, first, first + tasks.get(problem.task).length)


def row_of(model: LanguageModel, task: str, sample: Sample) -> Canvas:
    """The row of a sample that this model drew, token by token."""
    ended = (k for k, token in enumerate(sample.tokens) if token in model.eos_ids)
    said = sample.tokens[: next(ended, len(sample.tokens))]
    first = len(sample.prompt)
    return _filled(model, task, [*sample.prompt, *said], first, first + len(sample.tokens))


def _filled(model: LanguageModel, task: str, written: list[int], first: int, stop: int) -> Canvas:
    ids = written + [model.eos_ids[0]] * (stop - len(written))
    return Canvas(task, ids, first, min(len(written) + 1, len(ids)))


def log_q(model: LanguageModel, ids: Tensor, views: Sequence[View]) -> Tensor:
    """sum_{k asked} log q^k(x^k | x with the hidden masked) of every row x with its view."""
    hidden, asked = torch.zeros(2, *ids.shape, dtype=torch.bool, device=ids.device)
    for number, view in enumerate(views):
        hidden[number, view.hidden] = True
        asked[number, view.asked] = True
    logits = model.logits(ids.masked_fill(hidden, model.mask_id), None, asked)
    forbidden = torch.tensor(list(model.forbidden_ids), device=ids.device)
    log_p = logits.index_fill(1, forbidden, -torch.inf).log_softmax(-1)
    found = log_p.gather(1, ids[asked][:, None])[:, 0]
    return found.new_zeros(ids.shape).masked_scatter(asked, found).sum(1)
