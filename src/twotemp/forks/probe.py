"""The paper's two experiments on fork tokens (appendix C.5), for any model and task.

1. Complete prompts from left to right and take the positions whose predictive entropy, when they were revealed, is
   above a high quantile: the candidate forks.
2. Restart from each with everything to its left revealed, now with low-confidence remasking. Every position that LC
   reveals before the fork is a potential anchor: record the fork's entropy against their number, and fit a line.
3. Set the fork to each of its most likely tokens, complete with deterministic LC, and count the well-formed answers
   with different meanings: answers by the grader's `same`, programs by which of their tests pass.

The restart is an infill request. It keeps the block length of generation, but on models without a fixed block grid
the first block starts at the fork: LC may reveal up to `block - 1` positions before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from twotemp.backends import Backend
from twotemp.backends.local import LocalBackend
from twotemp.engine import states
from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.models.base import LanguageModel, refuse_without_mask
from twotemp.policies import policy
from twotemp.records import Policy, Problem, Request, Sample
from twotemp.sampling.requests import assistant_turn
from twotemp.serialization import record

_NO_PROGRAM = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True)
class Settings:
    """The settings of a study; the defaults are the paper's."""

    quantile: float = 0.99  # of predictive entropy; positions above it are forks
    alternatives: int = 5  # most likely tokens tried at each fork
    t_token: float = 0.8  # of the completions and of the restart; alternatives are completed greedily
    block: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise UserError(f"quantile must be between 0 and 1, not {self.quantile}")
        if self.alternatives < 1:
            raise UserError(f"alternatives must be at least 1, not {self.alternatives}")

    @property
    def completion(self) -> Policy:
        """The policy of the left-to-right completions."""
        return policy("ar", t_token=self.t_token)


class LineFit(NamedTuple):
    """A least-squares fit of entropy (nats) against the number of revealed anchors."""

    slope: float
    r2: float  # NaN if undefined: fewer than three points, or a constant entropy


def fit(revealed: Sequence[int], entropy: Sequence[float]) -> LineFit:
    """Fit a line to the entropy of a fork."""
    x, y = np.asarray(revealed, dtype=np.float64), np.asarray(entropy, dtype=np.float64)
    if len(x) < 2:
        return LineFit(np.nan, np.nan)
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx))
    total = float(dy @ dy)
    if len(x) < 3 or total < 1e-12:
        return LineFit(slope, np.nan)
    return LineFit(slope, 1 - float(((dy - slope * dx) ** 2).sum()) / total)


@dataclass(frozen=True)
class ForkCandidate:
    """A position of a left-to-right completion with high entropy."""

    problem: str
    sample: int
    start: int  # where the answer starts
    end: int  # and where it may end
    left: tuple[int, ...]  # everything to the left of the fork, prompt included
    entropy: float  # of the prediction when the completion revealed it

    @property
    def position(self) -> int:
        return len(self.left)

    @property
    def name(self) -> str:
        return f"{self.problem}/{self.sample}/{self.position}"


@dataclass(frozen=True)
class Fork:
    """The measurements at one fork."""

    name: str  # problem/sample/position
    entropy: float  # of the prediction when the completion revealed it
    revealed: tuple[int, ...]  # potential anchors LC had revealed, at each of its steps up to the fork's own
    path: tuple[float, ...]  # the fork's entropy (nats) at these steps
    tokens: tuple[int, ...]  # the alternatives, most likely first
    answers: tuple[str | None, ...]  # of the completion with each alternative; None: not well-formed
    distinct: int  # semantically different answers among them
    ungraded: int  # alternatives on which the grader itself failed

    @cached_property
    def line(self) -> LineFit:
        return fit(self.revealed, self.path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fork:
        """Return the fork of a stored row."""
        return record(cls, data, "a row of the study")


def find(
    samples: Iterable[Sample], eos_ids: Sequence[int], quantile: float
) -> tuple[list[ForkCandidate], float]:
    """Return the positions above the quantile of predictive entropy, and the entropy at the quantile.

    Only positions of the answer count, including its EOS; a position that two samples reach by the same tokens counts
    once.
    """
    candidates: dict[tuple[str, tuple[int, ...]], ForkCandidate] = {}
    for sample in sorted(samples, key=lambda s: (s.request, s.index)):
        if sample.trace is None:
            raise UserError(f"sample {sample.index} of {sample.request!r} has no trace; sample with --trace")
        row, start, end = sample.prompt, sample.positions[0], sample.positions[-1] + 1
        for token, entropy in zip(sample.tokens, sample.trace.entropy):
            candidate = ForkCandidate(sample.request, sample.index, start, end, row, entropy)
            candidates.setdefault((sample.request, row), candidate)
            row = (*row, token)
            if token in eos_ids:
                break
    if not candidates:
        raise UserError("no completion to look for forks in; draw some samples first")
    threshold = float(np.quantile([candidate.entropy for candidate in candidates.values()], quantile))
    return [candidate for candidate in candidates.values() if candidate.entropy > threshold], threshold


def measure(
    model: LanguageModel,
    candidates: Sequence[ForkCandidate],
    problems: Mapping[str, Problem],
    grader: Grader,
    settings: Settings,
    *,
    backend: Backend | None = None,
) -> list[Fork]:
    """Run both experiments on some forks.

    Args:
        model: Predicts the entropies and alternatives at the forks.
        candidates: The forks.
        problems: The problems by id.
        grader: Grades the completions.
        settings: Of the study.
        backend: Draws the restarts and completions, which are most of the work; None: in this process.
    """
    refuse_without_mask(model, "the study of forks")
    backend = backend or LocalBackend(model)
    paths = _restart(model, candidates, settings, backend)
    tokens = [_likeliest(logits[0], settings.alternatives) for _, logits in paths]
    alternatives = [(candidate, token) for candidate, likely in zip(candidates, tokens) for token in likely]
    texts = _completions(model, alternatives, settings, backend)
    asked_problems = [problems[candidate.problem] for candidate, _ in alternatives]
    items = [(problem, assistant_turn(problem, text)) for problem, text in zip(asked_problems, texts)]
    grades = iter(list(grader.grade(items)))
    forks = []
    for candidate, (revealed, logits), likely in zip(candidates, paths, tokens):
        fork_grades = [next(grades) for _ in likely]
        answers = tuple(
            None if grade.detail.startswith(_NO_PROGRAM) else grade.answer for grade in fork_grades
        )
        forks.append(
            Fork(
                candidate.name,
                candidate.entropy,
                revealed,
                tuple(_entropy(logits).tolist()),
                tuple(likely),
                answers,
                _count_distinct(grader, problems[candidate.problem], answers),
                sum(grade.outcome == "ungraded" for grade in fork_grades),
            )
        )
    return forks


def _restart(
    model: LanguageModel, candidates: Sequence[ForkCandidate], settings: Settings, backend: Backend
) -> list[tuple[tuple[int, ...], Tensor]]:
    """Return for each fork how many positions LC had revealed, and the logits at the fork, until it is committed.

    LC runs with a trace; its states are replayed, and the logits of the fork are computed in all of them at once.
    """
    lc = policy("lc", t_token=settings.t_token)
    requests = [_fill(model, candidate, candidate.left, lc, settings) for candidate in candidates]
    samples = {sample.request: sample for sample in backend.sample(requests)}
    paths = []
    for candidate in candidates:
        position, mask = candidate.position, model.mask_id
        rows = [row for row, _ in states(samples[candidate.name], mask) if row[position] == mask]
        revealed = tuple(len(row) - position - row.count(mask) for row in rows)
        paths.append((revealed, _logits_at(model, torch.tensor(rows, device=model.device), position)))
    return paths


@torch.inference_mode()
def _logits_at(model: LanguageModel, rows: Tensor, position: int) -> Tensor:
    want = torch.zeros_like(rows, dtype=torch.bool)
    want[:, position] = True
    logits = model.logits(rows, None, want)
    logits[:, list(model.forbidden_ids)] = -torch.inf
    return logits


def _entropy(logits: Tensor) -> Tensor:
    q = torch.softmax(logits.double(), dim=-1)
    return -torch.xlogy(q, q).sum(-1)


def _likeliest(logits: Tensor, count: int) -> list[int]:
    """Return the `count` most likely tokens, fewer if the model rules out the rest."""
    best = logits.topk(min(count, len(logits)))
    return best.indices[torch.isfinite(best.values)].tolist()


def _completions(
    model: LanguageModel,
    alternatives: Sequence[tuple[ForkCandidate, int]],
    settings: Settings,
    backend: Backend,
) -> list[str]:
    """Return the text of each completion: the left of the fork unchanged, the fork set, the rest by greedy LC."""
    lc = policy("lc", t_token=0.0)
    rows = {(candidate.name, token): (*candidate.left, token) for candidate, token in alternatives}
    requests = [
        _fill(model, candidate, rows[candidate.name, token], lc, settings, index=token)
        for candidate, token in alternatives
        if candidate.position + 1 < candidate.end  # else the fork is the last position
    ]
    for sample in backend.sample(requests):
        rows[sample.request, sample.index] += sample.tokens
    return [model.decode(rows[candidate.name, token][candidate.start :]) for candidate, token in alternatives]


def _fill(
    model: LanguageModel,
    candidate: ForkCandidate,
    left: tuple[int, ...],
    lc: Policy,
    settings: Settings,
    index: int = 0,
) -> Request:
    """Return the request to fill in everything from here to the end of the answer."""
    return Request(
        id=candidate.name,
        prompt=(*left, *[model.mask_id] * (candidate.end - len(left))),
        policy=lc,
        length=0,
        block=settings.block,
        seed=settings.seed,
        index=index,
        trace=True,
    )


def _count_distinct(grader: Grader, problem: Problem, answers: Iterable[str | None]) -> int:
    """Return the number of different meanings among the well-formed answers.

    The meaning of a program is which of its tests pass (the paper's outcome map); other answers are compared by the
    grader.
    """
    formed = [text for text in answers if text is not None]
    if tests := _one_by_one(problem):
        return len({tuple(g.outcome for g in grader.grade((test, a) for test in tests)) for a in formed})
    distinct: list[str] = []
    for text in formed:
        if not any(grader.same(problem, text, other) for other in distinct):
            distinct.append(text)
    return len(distinct)


def _one_by_one(problem: Problem) -> list[Problem]:
    """Return the problem once per program test; empty if it has no tests. HumanEval has one `test`."""
    tests = problem.reference.get("tests", ())
    alone = [replace(problem, reference={**problem.reference, "tests": [test]}) for test in tests]
    return alone or [problem] * ("test" in problem.reference)
