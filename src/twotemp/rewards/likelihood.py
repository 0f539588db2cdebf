"""A denoiser as the judge of its own answers: no training, no second model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.records import Problem


class PseudoLikelihood:
    """The pseudo-log-likelihood of an answer x given its prompt c (Wang and Cho, 2019; Salazar et al., 2020):

        PLL(x) = sum_k log q^k(x^k | c, x with position k masked),

    over the answer's tokens and the EOS that ends it. The rest of the canvas is EOS, as in a sample of the task.
    """

    def __init__(self, model: LanguageModel, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size must be >= 1, not {batch_size}")
        if not model.eos_ids:
            raise UserError(
                f"{model.name!r} names no end-of-text token, which the answer's canvas is filled with"
            )
        self.model = model
        self.batch_size = batch_size
        self.name = f"pll {model.name} {model.fingerprint[:8]}"

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        distinct = list(dict.fromkeys((problem.task, problem.prompt, text) for problem, text in items))
        total = dict.fromkeys(distinct, 0.0)
        by_length: dict[int, list[tuple[tuple[str, str, str], list[int], int]]] = {}
        for item in distinct:
            row, answer = self._canvas(*item)
            by_length.setdefault(len(row), []).extend((item, row, position) for position in answer)
        for terms in by_length.values():
            for start in range(0, len(terms), self.batch_size):
                part = terms[start : start + self.batch_size]
                rows, positions = [row for _, row, _ in part], [position for *_, position in part]
                for (item, _, _), term in zip(part, self._terms(rows, positions)):
                    total[item] += term
        return [total[problem.task, problem.prompt, text] for problem, text in items]

    def _canvas(self, task: str, prompt: str, text: str) -> tuple[list[int], range]:
        """The row of a finished sample, and the positions that count."""
        first = len(self.model.encode(prompt))
        written = self.model.encode(prompt, prefill=text)
        longest = first + tasks.get(task).length
        ids = written + [self.model.eos_ids[0]] * (longest - len(written))
        return ids, range(first, min(len(written) + 1, len(ids)))

    @torch.no_grad()
    def _terms(self, rows: Sequence[list[int]], positions: Sequence[int]) -> Iterator[float]:
        """log q of the token at one position of each row, with that position masked."""
        ids = torch.tensor(rows, device=self.model.device)
        want = torch.zeros_like(ids, dtype=torch.bool)
        want[torch.arange(len(rows)), positions] = True
        logits = self.model.logits(ids.masked_fill(want, self.model.mask_id), None, want)
        logits[:, list(self.model.forbidden_ids)] = -torch.inf
        yield from logits.log_softmax(-1).gather(1, ids[want][:, None])[:, 0].tolist()
