"""Train the embedded verifier: `train(VerifierRecipe.read(path), out)`.

It is the denoiser itself; its score is the likelihood of an answer and of its checks (`rewards.denoiser`). So it
starts with all that the denoiser knows about answers, which a classifier has to learn again (docs/LOG.md). First it
learns the checks, from fresh problems with their right answers, of which there is no end; then also to find right
answers likelier than wrong ones *to the same problem*, samples of the policies it will judge. Problems are of the
train split only, by their own hash; it is measured on samples of held-out problems.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from recipes import checkpoints
from recipes.corpus import Corpus, Examples, generate
from recipes.log import LossLog, Watch, unwatched
from recipes.muon import Muon
from recipes.recipe import check_count, check_numbers, check_tasks, threads
from twotemp import graders, rewards
from twotemp.backends.local import LocalBackend
from twotemp.errors import UserError
from twotemp.folders import continued, only_writer, replacing, write_json, write_run
from twotemp.graders.base import Grader
from twotemp.likelihood.queries import (
    BuildQueries,
    Completion,
    CompletionBatch,
    MaskedQueries,
    concatenate,
    log_q,
)
from twotemp.metrics import auc
from twotemp.models.checkpoint import save
from twotemp.models.load import load
from twotemp.policies import parse
from twotemp.records import Problem
from twotemp.rewards.denoiser import answer_row, checks, scaled_thirds, with_checks
from twotemp.sampling.prompts import ProblemRequest, answer, problem_requests
from twotemp.serialization import read_yaml, record
from twotemp.tasks import SOURCES
from twotemp.tasks.generated import Split

T = TypeVar("T")
REPORT, MODEL = "report.json", "model"
CHECKPOINT_EVERY = 100  # steps, and a line of the log with each
CHECKED = 0.8  # of the right answers of a step
SAMPLES = (
    "model",
    "sampled",
    "policies",
    "blocks",
    "validation",
    "seed",
)  # what of a recipe decides the samples


@dataclass(frozen=True)
class VerifierRecipe:
    """With the code, it decides every weight."""

    name: str
    model: str  # the denoiser that is sampled, and whose weights the verifier starts from
    sampled: Mapping[str, int]  # training problems of each task that are sampled
    policies: Mapping[str, int]  # samples of each of these by each policy,
    blocks: int  # with answers in so many blocks, as they will be when they are judged
    validation: int  # held-out problems of each task, to measure on; sampled in the same way
    examples: Mapping[str, int]  # fresh training problems of each task, with their right answers
    batch_tokens: int  # of these, in a step
    steps: int
    pairs_from: int  # the step from which on pairs of samples are learnt as well,
    batch_pairs: int  # so many in a step
    warmup: int
    learning_rate: float
    weight_decay: float
    anchor: float  # weight of the likelihood of right answers, which the checks alone would let fall
    seed: int
    threads: int = 1  # as in `Recipe`

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in ("sampled", "examples"):
            check_tasks(self.name, name, getattr(self, name))
        for spec, samples in self.policies.items():
            parse(spec)
            check_count(self.name, f"samples of {spec}", samples)
        for name in ("blocks", "validation", "batch_tokens", "batch_pairs", "steps", "warmup", "threads"):
            check_count(self.name, name, getattr(self, name))
        if self.blocks > (least := min(SOURCES[task].length for task in self.sampled)):
            raise UserError(f"recipe {self.name}: blocks must be at most {least}, the tokens of an answer")

    def rate(self, step: int) -> float:
        """Linear warm-up, then linear to 0."""
        return self.learning_rate * min((step + 1) / self.warmup, 1 - step / self.steps)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def same_so_far(self, before: dict[str, Any], changed: Set[str], step: int) -> bool:
        """Every step depends on the last one: its rate says so."""
        return False

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


def train(recipe: VerifierRecipe, out: Path, watch: Watch = unwatched) -> Path:
    """Draw and grade (once: `out` keeps the samples), train, measure; returns the folder of the checkpoint. The same
    call continues a training that was stopped, to the same weights."""
    with only_writer(out), threads(recipe.threads):
        return _train(recipe, out, watch)


def _train(recipe: VerifierRecipe, out: Path, watch: Watch) -> Path:
    trained = (out / MODEL).exists()
    if trained and (out / REPORT).exists():
        raise UserError(
            f"{out} has a verifier; remove {out / MODEL} to train again on the samples kept there"
        )
    model: Any = load(recipe.model, device="cpu")
    versions = {task: SOURCES[task].version for task in {**recipe.sampled, **recipe.examples}}
    identity = {"recipe": recipe.to_dict(), "weights": model.fingerprint, "tasks": versions}
    # While there is nothing but samples, the rest of a recipe may change.
    begun = trained or (out / checkpoints.FILE).exists()
    free = [f"recipe.{name}" for name in recipe.to_dict() if name not in SAMPLES]
    write_run(out, continued(out, "training", identity, free=[] if begun else free))
    rows, held_out = (sampled(recipe, split, out, watch) for split in ("train", "validation"))
    if not trained:
        (out / REPORT).unlink(missing_ok=True)  # of a verifier that was here before
        fit(model, rows, recipe, out, watch)
        save(model, out / MODEL)
    (out / checkpoints.FILE).unlink(missing_ok=True)
    judges = {
        "verifier": f"{rewards.VERIFIER}:{out / MODEL}",
        "untrained": f"{rewards.LIKELIHOOD}{recipe.model}",
        "pll": f"{rewards.PLL}{recipe.model}",
    }
    report = measure(held_out, judges)
    write_json(out / REPORT, {"recipe": recipe.to_dict(), "validation": report})
    return out / MODEL


def sampled(recipe: VerifierRecipe, split: Split, out: Path, watch: Watch) -> list[Judged]:
    """Samples of each problem by each policy. `out` keeps those of one policy on one task in a file."""
    counts = recipe.sampled if split == "train" else dict.fromkeys(recipe.sampled, recipe.validation)
    total = sum(counts.values()) * sum(recipe.policies.values())
    rows: list[Judged] = []
    for task, count in counts.items():
        for number, (spec, samples) in enumerate(recipe.policies.items()):
            path = out / f"{split}-{task}-{number}.jsonl"
            if not path.exists():
                found = drawn(recipe, split, task, count, spec, samples)
                with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(asdict(row)) + "\n" for row in found)
            rows += [Judged(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
            watch(len(rows), total, f"samples of {split} problems, {task}")
    return rows


def drawn(
    recipe: VerifierRecipe, split: Split, task: str, count: int, spec: str, samples: int
) -> Iterator[Judged]:
    """So many samples of each of so many problems, as a run would draw them."""
    model, source = load(recipe.model, device="cpu"), SOURCES[task]
    here = enumerate(source.distinct(recipe.seed, split, count))
    problems = [source.problem(example, split, number) for number, example in here]
    asked = [(problem, index) for problem in problems for index in range(samples)]
    asks = (ProblemRequest(problem, parse(spec), index) for problem, index in asked)
    block = source.length // recipe.blocks
    wanted = list(problem_requests(model, asks, length=source.length, block=block, seed=recipe.seed))
    texts = {one.key: one.text for one in LocalBackend(model).sample(wanted)}
    items = [(problem, answer(problem, texts[one.key])) for (problem, _), one in zip(asked, wanted)]
    with closing(graders.get(source.grader)) as grader:
        yield from graded(grader, items)


def graded(grader: Grader, items: Sequence[tuple[Problem, str]]) -> Iterator[Judged]:
    for (problem, text), grade in zip(items, grader.grade(items)):
        if grade.outcome != "ungraded":
            yield Judged(problem.task, problem.id, problem.prompt, text, grade.passed)


class Question(NamedTuple):
    """The distinct answers to one problem."""

    right: list[Completion]
    wrong: list[Completion]


@dataclass(frozen=True)
class Shelf:
    """Problems of one task that have a right and a wrong answer, with prompts of one length."""

    task: str
    questions: list[Question]

    def pairs(self, count: int, generator: torch.Generator) -> tuple[list[Completion], list[Completion]]:
        """A right and a wrong answer to each of so many problems, all of which count alike."""

        def pick(among: Sequence[T]) -> T:
            return among[_below(len(among), generator)]

        drawn = [pick(self.questions) for _ in range(count)]
        return [pick(one.right) for one in drawn], [pick(one.wrong) for one in drawn]


def shelves(model: Any, rows: Sequence[Judged]) -> list[Shelf]:
    """What batches are drawn from."""
    found: dict[tuple[str, int, int], dict[str, Question]] = {}
    for row in dict.fromkeys(rows):
        completion = answer_row(model, Problem(row.problem, row.task, row.prompt), row.answer)
        here = found.setdefault((row.task, len(completion.prompt), completion.columns), {})
        question = here.setdefault(row.problem, Question([], []))
        (question.right if row.passed else question.wrong).append(completion)
    both = {key: [one for one in here.values() if one.right and one.wrong] for key, here in found.items()}
    return [Shelf(task, questions) for (task, _, _), questions in both.items() if questions]


def fit(
    model: Any, rows: Sequence[Judged], recipe: VerifierRecipe, out: Path, watch: Watch = unwatched
) -> None:
    """Batches of right answers, and of pairs, a right and a wrong answer to the same problem: how hard a problem is
    must not help. `out` keeps how far it came."""
    found = shelves(model, rows)
    if not found:
        raise UserError("no problem has a right and a wrong answer among its samples; draw more of them")
    sizes = torch.tensor([len(shelf.questions) for shelf in found], dtype=torch.float64)
    vocabulary = model.tokenizer.get_vocab()
    fresh = Corpus(generate(recipe.examples, recipe.seed, vocabulary), recipe.batch_tokens)
    optimizer = Muon(model.module, recipe.weight_decay)
    done = checkpoints.read(out, recipe, model.module, optimizer)
    log = LossLog(out, done)
    for step in range(done, recipe.steps):
        generator = torch.Generator().manual_seed((recipe.seed << 32) + step)
        batch = fresh.batch(generator)
        loss = right_loss(model, batch, recipe.anchor, generator)
        log.add(batch.task, loss.item(), batch.ids.numel())
        if pairs := step >= recipe.pairs_from:
            shelf = found[int(torch.multinomial(sizes, 1, generator=generator))]
            of_pairs = pair_loss(model, shelf.task, *shelf.pairs(recipe.batch_pairs, generator))
            log.add("pairs", of_pairs.item(), 0)
            loss = loss + of_pairs
        optimizer.descend(loss, recipe.rate(step))
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == recipe.steps:
            log.write(step + 1, "checks and pairs" if pairs else "checks", recipe.rate(step))
            checkpoints.write(out, step + 1, recipe, model.module, optimizer)
        watch(step + 1, recipe.steps, f"{recipe.name}, loss {loss.item():.3f}")
    log.plot("loss")


def right_loss(model: Any, batch: Examples, anchor: float, generator: torch.Generator) -> Tensor:
    """-log q of a token that a check expects, plus `anchor` times -log q of a token of the answer: of every right
    answer one view, mostly a check."""
    completions = [Completion.after(ids[: batch.prompt], ids[batch.prompt :]) for ids in batch.ids.tolist()]
    checked = (torch.rand(len(completions), generator=generator) < CHECKED).tolist()
    build_checks = checks(model, batch.task)
    every = [
        _queries(model, build_checks if check else scaled_thirds, [completion])
        for completion, check in zip(completions, checked)
    ]
    queries = concatenate([_of_a_token(queries, generator) for queries in every])
    found, tokens = _log_q(model, queries), queries.queried.sum(1).tolist()
    loss = found.new_zeros(())
    for kind, weight in ((True, 1.0), (False, anchor)):
        here = [number for number, check in enumerate(checked) if check is kind]
        if here:
            loss = loss - weight * found[here].sum() / sum(tokens[number] for number in here)
    return loss


def pair_loss(model: Any, task: str, right: Sequence[Completion], wrong: Sequence[Completion]) -> Tensor:
    """-log sigma(s_right - s_wrong): the order of each pair by its scores."""
    queries = _queries(model, with_checks(scaled_thirds, model, task), [*right, *wrong])
    terms = queries.weight * _log_q(model, queries)
    scores = terms.new_zeros(len(right) + len(wrong)).index_add(0, queries.row, terms)
    loss: Tensor = -logsigmoid(scores[: len(right)] - scores[len(right) :]).mean()
    return loss


def _queries(model: Any, build: BuildQueries, completions: Sequence[Completion]) -> MaskedQueries:
    batch = CompletionBatch.pad(
        completions, eos_ids=model.eos_ids, mask_id=model.mask_id, device=model.device
    )
    return build(batch, range(1))


def _log_q(model: Any, queries: MaskedQueries) -> Tensor:
    """log q of all that a query asks for, query by query."""
    forbidden = torch.tensor(model.forbidden_ids, device=model.device)
    return queries.totals(log_q(model.logits, queries, forbidden))


def _of_a_token(queries: MaskedQueries, generator: torch.Generator) -> MaskedQueries:
    """One of the queries, so that every token that is asked for is as likely."""
    number = int(torch.multinomial(queries.queried.sum(1).float(), 1, generator=generator))
    return queries[number : number + 1]


def _below(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (1,), generator=generator))


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
