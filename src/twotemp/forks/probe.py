"""The paper's two experiments on fork tokens (appendix C.5), for any model and task.

1. Complete prompts from left to right and take the positions whose predictive entropy, when they were revealed, is
   above a high quantile: the candidate forks.
2. Restart each with everything to its left revealed, now with low-confidence remasking. Whatever LC reveals before
   the fork is a potential anchor: log the fork's entropy against their number, and fit a line to each fork.
3. Set the fork to each of its likeliest tokens, complete with deterministic LC, and count the well-formed answers
   that differ in what they mean: answers by the grader's `same`, programs by which of their tests pass.

The restart is an infill request. It keeps the block width of generation, but on models without a block grid of
their own the first block starts at the fork: LC may reveal up to `block - 1` positions before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from twotemp.asking import Draw, answer
from twotemp.engine import run, states
from twotemp.errors import UserError
from twotemp.folders import only_writer
from twotemp.forks.journal import Journal
from twotemp.graders.base import Grader
from twotemp.models.base import LanguageModel
from twotemp.models.checkpoint import fingerprint
from twotemp.policies import policy
from twotemp.records import Policy, Problem, Request, Sample

CHUNK = 32  # forks measured together, for each worker; what a kill costs at most
_NO_PROGRAM = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True)
class Settings:
    """How the study is made; the defaults are the paper's."""

    quantile: float = 0.99  # of predictive entropy; positions above it are forks
    alternatives: int = 5  # likeliest tokens tried at each fork
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
        return policy("ar", t_token=self.t_token)


class LineFit(NamedTuple):
    """A least-squares fit of entropy (nats) against the number of revealed anchors."""

    slope: float
    r2: float  # NaN where it says nothing: fewer than three points, or an entropy that never moves


def fit(revealed: Sequence[int], entropy: Sequence[float]) -> LineFit:
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
class Place:
    """A candidate fork: a position of a left-to-right completion."""

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
    """What was measured at one fork."""

    name: str  # problem/sample/position
    entropy: float  # of the prediction when the completion revealed it
    revealed: tuple[int, ...]  # potential anchors LC had revealed, at each of its steps up to the fork's own
    path: tuple[float, ...]  # the fork's entropy (nats) then
    tokens: tuple[int, ...]  # the likeliest, most likely first
    answers: tuple[str | None, ...]  # what the completion with each of them answers; None: not well-formed
    distinct: int  # semantically different answers among them
    ungraded: int  # of the alternatives: our grader's own failures

    @cached_property
    def line(self) -> LineFit:
        return fit(self.revealed, self.path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fork:
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}
        return cls(**fields)


def find(samples: Iterable[Sample], eos_ids: Sequence[int], quantile: float) -> tuple[list[Place], float]:
    """Positions above the quantile of predictive entropy, and that entropy.

    Only positions of the answer count, its EOS included; two samples that agree up to a position have that
    position once.
    """
    found: dict[tuple[str, tuple[int, ...]], Place] = {}
    for sample in sorted(samples, key=lambda s: (s.request, s.index)):
        if sample.trace is None:
            raise UserError(f"sample {sample.index} of {sample.request!r} has no trace; sample with --trace")
        row, start, end = sample.prompt, sample.positions[0], sample.positions[-1] + 1
        for token, entropy in zip(sample.tokens, sample.trace.entropy):
            place = Place(sample.request, sample.index, start, end, row, entropy)
            found.setdefault((sample.request, row), place)
            row = (*row, token)
            if token in eos_ids:
                break
    if not found:
        raise UserError("no completion to look for forks in")
    places = list(found.values())
    threshold = float(np.quantile([place.entropy for place in places], quantile))
    return [place for place in places if place.entropy > threshold], threshold


def measure(
    model: LanguageModel,
    places: Sequence[Place],
    problems: Mapping[str, Problem],
    grader: Grader,
    settings: Settings,
    *,
    draw: Draw | None = None,
) -> list[Fork]:
    """Both experiments on some forks. What the model predicts at them is looked up here; the restarts, which are most
    of the work, are drawn by `draw` (None: by the engine in this process)."""
    draw = draw or partial(run, model)
    paths = _restart(model, places, settings, draw)
    tokens = [_likeliest(logits[0], settings.alternatives) for _, logits in paths]
    chosen = [(place, token) for place, likely in zip(places, tokens) for token in likely]
    answers = _answers(model, chosen, settings, draw)
    asked = [problems[place.problem] for place, _ in chosen]
    items = [(problem, answer(problem, text)) for problem, text in zip(asked, answers)]
    grades = iter(list(grader.grade(items)))
    forks = []
    for place, (revealed, logits), likely in zip(places, paths, tokens):
        mine = [next(grades) for _ in likely]
        said = tuple(None if grade.detail.startswith(_NO_PROGRAM) else grade.answer for grade in mine)
        forks.append(
            Fork(
                place.name,
                place.entropy,
                revealed,
                tuple(_entropy(logits).tolist()),
                tuple(likely),
                said,
                _count_distinct(grader, problems[place.problem], said),
                sum(grade.outcome == "ungraded" for grade in mine),
            )
        )
    return forks


def _restart(
    model: LanguageModel, places: Sequence[Place], settings: Settings, draw: Draw
) -> list[tuple[tuple[int, ...], Tensor]]:
    """For each fork: how many positions LC had revealed, and the logits at the fork, until it is committed.

    LC runs with a trace; its states are replayed and the fork's column is asked for in all of them at once.
    """
    lc = policy("lc", t_token=settings.t_token)
    requests = [_fill(model, place, place.left, lc, settings) for place in places]
    found = {sample.request: sample for sample in draw(requests)}
    paths = []
    for place in places:
        at, mask = place.position, model.mask_id
        rows = [row for row, _ in states(found[place.name], mask) if row[at] == mask]
        revealed = tuple(len(row) - at - row.count(mask) for row in rows)
        paths.append((revealed, _logits_at(model, torch.tensor(rows, device=model.device), at)))
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
    """The `count` likeliest tokens, fewer where the model rules out the rest."""
    best = logits.topk(min(count, len(logits)))
    return best.indices[torch.isfinite(best.values)].tolist()


def _answers(
    model: LanguageModel, chosen: Sequence[tuple[Place, int]], settings: Settings, draw: Draw
) -> list[str]:
    """The text of each completion: everything left of the fork as it was, the fork set, the rest by greedy LC."""
    lc = policy("lc", t_token=0.0)
    rows = {(place.name, token): (*place.left, token) for place, token in chosen}
    requests = [
        _fill(model, place, rows[place.name, token], lc, settings, index=token)
        for place, token in chosen
        if place.position + 1 < place.end  # else the fork was all that was left to write
    ]
    for sample in draw(requests):
        rows[sample.request, sample.index] += sample.tokens
    return [model.decode(rows[place.name, token][place.start :]) for place, token in chosen]


def _fill(
    model: LanguageModel, place: Place, left: tuple[int, ...], lc: Policy, settings: Settings, index: int = 0
) -> Request:
    """Write everything from here to the end of the answer."""
    return Request(
        id=place.name,
        prompt=(*left, *[model.mask_id] * (place.end - len(left))),
        policy=lc,
        length=0,
        block=settings.block,
        seed=settings.seed,
        index=index,
        trace=True,
    )


def _count_distinct(grader: Grader, problem: Problem, answers: Iterable[str | None]) -> int:
    """How many things the well-formed answers mean. A program means which of its tests it passes, one by one (the
    paper's outcome map); whether other answers are the same is for the grader to say."""
    said = [one for one in answers if one is not None]
    if tests := _one_by_one(problem):
        return len({tuple(g.outcome for g in grader.grade((test, a) for test in tests)) for a in said})
    kept: list[str] = []
    for one in said:
        if not any(grader.same(problem, one, other) for other in kept):
            kept.append(one)
    return len(kept)


def _one_by_one(problem: Problem) -> list[Problem]:
    """The problem with each of its program tests alone; none where no tests judge it. HumanEval has one `test`."""
    tests = problem.reference.get("tests", ())
    alone = [replace(problem, reference={**problem.reference, "tests": [test]}) for test in tests]
    return alone or [problem] * ("test" in problem.reference)


@dataclass(frozen=True)
class Study:
    """The forks of one task."""

    task: str
    threshold: float  # entropy (nats) above which a position is a fork
    forks: tuple[Fork, ...]

    def slopes(self) -> np.ndarray:
        """Of forks that LC did not commit at once."""
        return np.array([f.line.slope for f in self.forks if len(f.path) > 1])

    def r2(self) -> np.ndarray:
        """Of forks with at least three points and an entropy that moves."""
        return np.array([f.line.r2 for f in self.forks if np.isfinite(f.line.r2)])

    def distinct(self) -> np.ndarray:
        """Numbers of different answers, of forks whose alternatives could all be graded."""
        return np.array([f.distinct for f in self.forks if not f.ungraded], dtype=np.int64)


def study(
    model: LanguageModel,
    task: str,
    samples: Iterable[Sample],
    problems: Mapping[str, Problem],
    grader: Grader,
    settings: Settings,
    folder: Path,
    *,
    draw: Draw | None = None,
    together: int = CHUNK,
    watch: Callable[[int, int], None] | None = None,
) -> Study:
    """Measure every fork of some completions, so many at a time; those that `folder` already holds are not measured
    again. draw: see `measure`."""
    places, threshold = find(samples, model.eos_ids, settings.quantile)
    facts = {"model": model.name, "fingerprint": fingerprint(model), "task": task, "grader": grader.name}
    with only_writer(folder), closing(Journal(folder, {**facts, **asdict(settings)})) as journal:
        done = {fork.name: fork for fork in map(Fork.from_dict, journal.rows())}
        todo = [place for place in places if place.name not in done]
        for start in range(0, len(todo), together):
            if watch is not None:
                watch(len(places) - len(todo) + start, len(places))
            chunk = todo[start : start + together]
            forks = measure(model, chunk, problems, grader, settings, draw=draw)
            journal.append(asdict(fork) for fork in forks)
            done |= {fork.name: fork for fork in forks}
    if watch is not None:
        watch(len(places), len(places))
    return Study(task, threshold, tuple(done[place.name] for place in places))
