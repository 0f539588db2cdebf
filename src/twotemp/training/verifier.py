"""Train the embedded verifier: `train(VerifierRecipe.read(path), out)`.

It is the denoiser itself, trained to find right answers likelier than wrong ones *to the same problem*, samples of
the policies it will judge; its score is that likelihood (`rewards.likelihood`). So it starts with all that the
denoiser knows about answers, which a classifier has to learn again (docs/LOG.md). Problems are of the train split
only, by their own hash; it is measured on samples of held-out problems.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from twotemp import graders, rewards
from twotemp.asking import Ask, answer, requests
from twotemp.errors import UserError, unknown
from twotemp.folders import only_writer, replacing, write_json
from twotemp.graders.base import Grader
from twotemp.metrics import auc
from twotemp.models.checkpoint import save
from twotemp.models.load import load
from twotemp.plain import read_yaml, record
from twotemp.policies import parse
from twotemp.records import Problem
from twotemp.rewards.likelihood import LOG_ODDS, Canvas, View, all_and_thirds, canvas_of, log_q
from twotemp.sampling import draw
from twotemp.tasks import SOURCES
from twotemp.tasks.generated import Split
from twotemp.training.muon import Muon

REPORT, MODEL = "report.json", "model"
LOG_EVERY = 50


@dataclass(frozen=True)
class VerifierRecipe:
    """With the code, it decides every weight."""

    name: str
    model: str  # the denoiser that is sampled, and whose weights the verifier starts from
    sampled: Mapping[str, int]  # training problems of each task that are sampled
    policies: Mapping[str, int]  # samples of each of these by each policy,
    blocks: int  # with answers in so many blocks, as they will be when they are judged
    validation: int  # held-out problems of each task, to measure on; sampled in the same way
    batch_pairs: int
    steps: int
    warmup: int
    learning_rate: float
    weight_decay: float
    anchor: (
        float  # weight of the likelihood of right answers itself, which the comparison alone would let fall
    )
    seed: int

    def __post_init__(self) -> None:
        for task in self.sampled:
            if task not in SOURCES:
                raise unknown(f"task in recipe {self.name}", task, SOURCES)
        for spec in self.policies:
            parse(spec)
        for name in ("blocks", "validation", "batch_pairs", "steps", "warmup"):
            if getattr(self, name) < 1:
                raise UserError(f"recipe {self.name}: {name} must be at least 1")

    def rate(self, step: int) -> float:
        """Linear warm-up, then linear to 0."""
        return self.learning_rate * min((step + 1) / self.warmup, 1 - step / self.steps)

    @classmethod
    def read(cls, path: Path) -> VerifierRecipe:
        """A recipe from a YAML file; unknown and missing keys are errors."""
        return record(cls, read_yaml(path, "recipe"), str(path))


@dataclass(frozen=True)
class Judged:
    """An answer to a problem, and whether it is right."""

    task: str
    problem: str
    prompt: str
    answer: str
    passed: bool


def train(recipe: VerifierRecipe, out: Path) -> Path:
    """Draw and grade (once: `out` keeps the samples), train, measure; returns the folder of the checkpoint."""
    with only_writer(out):
        return _train(recipe, out)


def _train(recipe: VerifierRecipe, out: Path) -> Path:
    if (out / MODEL).exists():
        raise UserError(
            f"{out} has a verifier; remove {out / MODEL} to train again on the samples kept there"
        )
    rows = _kept(out / "train.jsonl", lambda: sampled(recipe, "train"))
    held_out = _kept(out / "validation.jsonl", lambda: sampled(recipe, "validation"))
    model: Any = load(recipe.model, device="cpu")
    fit(model, rows, recipe)
    save(model, out / MODEL)
    judges = {"verifier": out / MODEL, "untrained": recipe.model}
    sources = {name: f"{rewards.LIKELIHOOD}{source}" for name, source in judges.items()}
    report = measure(held_out, {**sources, "pll": f"{rewards.PLL}{recipe.model}"})
    write_json(out / REPORT, {"recipe": asdict(recipe), "validation": report})
    return out / MODEL


def sampled(recipe: VerifierRecipe, split: Split) -> Iterator[Judged]:
    """Samples of each problem by each policy, as a run would draw them."""
    model = load(recipe.model)
    counts = recipe.sampled if split == "train" else dict.fromkeys(recipe.sampled, recipe.validation)
    for task, count in counts.items():
        source = SOURCES[task]
        here = enumerate(source.distinct(recipe.seed, split, count))
        problems = [source.problem(example, split, number) for number, example in here]
        with closing(graders.get(source.grader)) as grader:
            for spec, samples in recipe.policies.items():
                indices = range(samples)
                asks = (Ask(problem, parse(spec), index) for problem in problems for index in indices)
                block = source.length // recipe.blocks
                wanted = list(requests(model, asks, length=source.length, block=block, seed=recipe.seed))
                texts = {one.key: one.text for one in draw(model, wanted)}
                asked = [problem for problem in problems for _ in indices]
                items = [(p, answer(p, texts[request.key])) for p, request in zip(asked, wanted)]
                yield from graded(grader, items)


def graded(grader: Grader, items: Sequence[tuple[Problem, str]]) -> Iterator[Judged]:
    for (problem, text), grade in zip(items, grader.grade(items)):
        if grade.outcome != "ungraded":
            yield Judged(problem.task, problem.id, problem.prompt, text, grade.passed)


class Question(NamedTuple):
    """The distinct answers to one problem."""

    right: list[Canvas]
    wrong: list[Canvas]


@dataclass(frozen=True)
class Shelf:
    """Problems of one task that have a right and a wrong answer, with prompts of one length."""

    questions: list[Question]

    @property
    def views(self) -> list[View]:
        return all_and_thirds(self.questions[0].right[0])

    @cached_property
    def weights(self) -> Tensor:
        """Shelves and problems are drawn as often as they have wrong answers: all of those count alike."""
        return torch.tensor([len(one.wrong) for one in self.questions], dtype=torch.float64)

    def pairs(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A right and a wrong answer to each of so many problems."""

        def pick(among: Sequence[Canvas]) -> list[int]:
            return among[int(torch.randint(len(among), (1,), generator=generator))].ids

        places = torch.multinomial(self.weights, count, replacement=True, generator=generator).tolist()
        drawn = [(pick(self.questions[at].right), pick(self.questions[at].wrong)) for at in places]
        right, wrong = (torch.tensor(side) for side in zip(*drawn))
        return right, wrong


def shelves(model: Any, rows: Sequence[Judged]) -> list[Shelf]:
    """What batches are drawn from."""
    found: dict[tuple[str, int, int], dict[str, Question]] = {}
    for row in dict.fromkeys(rows):
        canvas = canvas_of(model, row.task, row.prompt, row.answer)
        here = found.setdefault((row.task, canvas.first, len(canvas.ids)), {})
        question = here.setdefault(row.problem, Question([], []))
        (question.right if row.passed else question.wrong).append(canvas)
    both = ([one for one in here.values() if one.right and one.wrong] for here in found.values())
    return [Shelf(questions) for questions in both if questions]


def fit(model: Any, rows: Sequence[Judged], recipe: VerifierRecipe) -> None:
    """Batches of pairs, a right and a wrong answer to the same problem: how hard a problem is must not help."""
    found = shelves(model, rows)
    if not found:
        raise UserError("no problem has a right and a wrong answer among its samples; draw more of them")
    sizes = torch.stack([shelf.weights.sum() for shelf in found])
    optimizer = Muon(model.module, recipe.weight_decay)
    losses: list[float] = []
    for step in range(recipe.steps):
        generator = torch.Generator().manual_seed((recipe.seed << 32) + step)
        shelf = found[int(torch.multinomial(sizes, 1, generator=generator))]
        right, wrong = shelf.pairs(recipe.batch_pairs, generator)
        loss = pair_loss(model, right, wrong, shelf.views, recipe.anchor)
        optimizer.descend(loss, recipe.rate(step))
        losses.append(loss.item())
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {np.mean(losses[-LOG_EVERY:]):.4f}", flush=True)


def pair_loss(model: Any, right: Tensor, wrong: Tensor, views: Sequence[View], anchor: float) -> Tensor:
    """-log sigma(s_right - s_wrong), the order of each pair by its scores, minus `anchor` times the mean
    log-likelihood of the right answers' tokens, each of which is seen twice."""
    ids = torch.cat([right, wrong])
    rows = ids.repeat_interleave(len(views), dim=0)
    likelihoods = log_q(model, rows, [*views] * len(ids)).view(len(ids), len(views)).sum(1)
    of_right, of_wrong = likelihoods[: len(right)], likelihoods[len(right) :]
    seen = sum(map(len, views))
    loss: Tensor = -logsigmoid(LOG_ODDS * (of_right - of_wrong)).mean() - anchor * of_right.mean() / seen
    return loss


def measure(rows: Sequence[Judged], models: Mapping[str, str]) -> dict[str, dict[str, float | None]]:
    """By task: samples, the share that is right, and for each reward model (name -> source) the probability that it
    ranks a right sample above a wrong one of the same question."""
    report: dict[str, dict[str, float | None]] = {}
    for task in sorted({row.task for row in rows}):
        here = [row for row in rows if row.task == task]
        items = [(Problem(row.problem, task, row.prompt), row.answer) for row in here]
        report[task] = {"samples": len(here), "right": float(np.mean([row.passed for row in here]))}
        for name, source in models.items():
            report[task][name] = within_question_auc(here, rewards.load(source, batch_size=256).score(items))
    return report


def within_question_auc(rows: Sequence[Judged], scores: Sequence[float]) -> float | None:
    """The mean AUC over the questions that have right and wrong samples; None where there is none."""
    by_question: dict[str, tuple[list[bool], list[float]]] = {}
    for row, score in zip(rows, scores):
        passed, given = by_question.setdefault(row.problem, ([], []))
        passed.append(row.passed)
        given.append(score)
    values = [auc(passed, given) for passed, given in by_question.values() if len(set(passed)) == 2]
    return float(np.mean(values)) if values else None


def _kept(path: Path, make: Callable[[], Iterable[Judged]]) -> list[Judged]:
    """What `make` yields, from the file where an earlier call left it."""
    if not path.exists():
        with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in make())
    return [Judged(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
