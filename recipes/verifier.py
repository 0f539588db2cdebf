"""Train the embedded verifier: `train(VerifierRecipe.read(path), out)`.

The verifier is a fine-tuned denoiser whose score is the likelihood of an answer and of its checks
(`rewards.denoiser`). It starts with all that the denoiser knows about answers, which a classifier would have to
learn again (docs/log.md). First it learns the checks from freshly generated problems with their right answers. Then
it also learns to give right answers a higher likelihood than wrong ones *to the same problem*; these are samples of
the policies that it will score. All problems are from the train split; the evaluation uses samples of held-out
problems.
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
from recipes.log import LossLog, ProgressCallback, ignore_progress
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
from twotemp.sampling.requests import PlannedSample, assistant_turn, problem_requests
from twotemp.serialization import read_yaml, record
from twotemp.tasks import SOURCES
from twotemp.tasks.base import Split

T = TypeVar("T")
REPORT, MODEL = "report.json", "model"
CHECKPOINT_EVERY = 100  # steps; also writes a line of the log
CHECKED = 0.8  # the share of right answers in a step that train a check
# The fields of a recipe that determine the samples.
SAMPLES = ("model", "sampled", "policies", "blocks", "validation", "seed")


@dataclass(frozen=True)
class VerifierRecipe:
    """A training run of the verifier; the recipe and the code determine every weight."""

    name: str
    model: str  # the denoiser that draws the samples, and whose weights the verifier starts from
    sampled: Mapping[str, int]  # task -> training problems to draw samples of
    policies: Mapping[str, int]  # policy -> samples per problem
    blocks: int  # blocks per answer, as in the answers that will be scored
    validation: int  # held-out problems per task for the evaluation, sampled in the same way
    examples: Mapping[str, int]  # task -> training problems with their right answers
    batch_tokens: int  # tokens of right answers in a step
    steps: int
    pairs_from: int  # the step from which on pairs of samples are trained as well
    batch_pairs: int  # pairs in a step
    warmup: int
    learning_rate: float
    weight_decay: float
    anchor: float  # weight of the likelihood of right answers, which would fall if only checks were trained
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
        """Return the learning rate of a step: a linear warm-up, then a linear decay to 0."""
        return self.learning_rate * min((step + 1) / self.warmup, 1 - step / self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON data."""
        return asdict(self)

    def same_so_far(self, before: dict[str, Any], changed: Set[str], step: int) -> bool:
        """Return False: the learning rate of every step depends on the number of steps."""
        return False

    @classmethod
    def read(cls, path: Path) -> VerifierRecipe:
        """Read a recipe from a YAML file; unknown and missing keys are errors."""
        return record(cls, read_yaml(path, "recipe"), str(path))


@dataclass(frozen=True)
class GradedAnswer:
    """An answer to a problem, and whether it is right."""

    task: str
    problem: str
    prompt: str
    answer: str
    passed: bool


def train(recipe: VerifierRecipe, out: Path, on_progress: ProgressCallback = ignore_progress) -> Path:
    """Draw and grade samples, train on them, evaluate, and return the folder of the checkpoint.

    `out` keeps the samples. The same call continues a training that was stopped and ends with the same weights.
    """
    with only_writer(out), threads(recipe.threads):
        return _train(recipe, out, on_progress)


def _train(recipe: VerifierRecipe, out: Path, on_progress: ProgressCallback) -> Path:
    trained = (out / MODEL).exists()
    if trained and (out / REPORT).exists():
        raise UserError(
            f"{out} already has a verifier; remove {out / MODEL} to train again on the same samples"
        )
    model: Any = load(recipe.model, device="cpu")
    versions = {task: SOURCES[task].version for task in {**recipe.sampled, **recipe.examples}}
    identity = {"recipe": recipe.to_dict(), "weights": model.fingerprint, "tasks": versions}
    # Until the training starts, fields that do not affect the samples may change.
    started = trained or (out / checkpoints.FILE).exists()
    free = [f"recipe.{name}" for name in recipe.to_dict() if name not in SAMPLES]
    write_run(out, continued(out, "training", identity, free=[] if started else free))
    rows, held_out = (sampled(recipe, split, out, on_progress) for split in ("train", "validation"))
    if not trained:
        (out / REPORT).unlink(missing_ok=True)  # the report of an earlier verifier
        fit(model, rows, recipe, out, on_progress)
        save(model, out / MODEL)
    (out / checkpoints.FILE).unlink(missing_ok=True)
    reward_models = {
        "verifier": f"{rewards.VERIFIER}:{out / MODEL}",
        "untrained": f"{rewards.LIKELIHOOD}{recipe.model}",
        "pll": f"{rewards.PLL}{recipe.model}",
    }
    report = measure(held_out, reward_models)
    write_json(out / REPORT, {"recipe": recipe.to_dict(), "validation": report})
    return out / MODEL


def sampled(
    recipe: VerifierRecipe, split: Split, out: Path, on_progress: ProgressCallback
) -> list[GradedAnswer]:
    """Return graded samples of each problem by each policy, drawing those that are missing.

    Args:
        recipe: The recipe.
        split: The split of the problems.
        out: The run directory; it keeps the samples of one policy on one task in a file.
        on_progress: Called with the progress.
    """
    counts = recipe.sampled if split == "train" else dict.fromkeys(recipe.sampled, recipe.validation)
    total = sum(counts.values()) * sum(recipe.policies.values())
    rows: list[GradedAnswer] = []
    for task, count in counts.items():
        for number, (spec, samples) in enumerate(recipe.policies.items()):
            path = out / f"{split}-{task}-{number}.jsonl"
            if not path.exists():
                answers = drawn(recipe, split, task, count, spec, samples)
                with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(asdict(row)) + "\n" for row in answers)
            rows += [GradedAnswer(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
            on_progress(len(rows), total, f"samples of {split} problems, {task}")
    return rows


def drawn(
    recipe: VerifierRecipe, split: Split, task: str, count: int, spec: str, samples: int
) -> Iterator[GradedAnswer]:
    """Draw samples of one policy on one task, as an evaluation would, and yield them with their grades.

    Args:
        recipe: The recipe.
        split: The split of the problems.
        task: The name of the task.
        count: The number of problems.
        spec: The policy.
        samples: Samples per problem.
    """
    model, source = load(recipe.model, device="cpu"), SOURCES[task]
    examples = enumerate(source.distinct(recipe.seed, split, count))
    problems = [source.problem(example, split, number) for number, example in examples]
    keys = [(problem, index) for problem in problems for index in range(samples)]
    asks = (PlannedSample(problem, parse(spec), index) for problem, index in keys)
    block = source.length // recipe.blocks
    wanted = list(problem_requests(model, asks, length=source.length, block=block, seed=recipe.seed))
    texts = {sample.key: sample.text for sample in LocalBackend(model).sample(wanted)}
    items = [
        (problem, assistant_turn(problem, texts[request.key])) for (problem, _), request in zip(keys, wanted)
    ]
    with closing(graders.get(source.grader)) as grader:
        yield from graded(grader, items)


def graded(grader: Grader, items: Sequence[tuple[Problem, str]]) -> Iterator[GradedAnswer]:
    """Yield the answers that the grader could grade."""
    for (problem, text), grade in zip(items, grader.grade(items)):
        if grade.outcome != "ungraded":
            yield GradedAnswer(problem.task, problem.id, problem.prompt, text, grade.passed)


class AnswerSet(NamedTuple):
    """The distinct answers to one problem."""

    right: list[Completion]
    wrong: list[Completion]


@dataclass(frozen=True)
class ProblemGroup:
    """Problems of one task with prompts of one length, each with right and wrong answers."""

    task: str
    questions: list[AnswerSet]

    def pairs(self, count: int, generator: torch.Generator) -> tuple[list[Completion], list[Completion]]:
        """Draw `count` problems uniformly, and a right and a wrong answer to each."""

        def pick(items: Sequence[T]) -> T:
            return items[int(torch.randint(len(items), (1,), generator=generator))]

        problems = [pick(self.questions) for _ in range(count)]
        return [pick(answers.right) for answers in problems], [pick(answers.wrong) for answers in problems]


def problem_groups(model: Any, rows: Sequence[GradedAnswer]) -> list[ProblemGroup]:
    """Return the groups that batches of pairs are drawn from."""
    grouped: dict[tuple[str, int, int], dict[str, AnswerSet]] = {}
    for row in dict.fromkeys(rows):
        completion = answer_row(model, Problem(row.problem, row.task, row.prompt), row.answer)
        problems = grouped.setdefault((row.task, len(completion.prompt), completion.columns), {})
        answers = problems.setdefault(row.problem, AnswerSet([], []))
        (answers.right if row.passed else answers.wrong).append(completion)
    mixed = {
        key: [answers for answers in problems.values() if answers.right and answers.wrong]
        for key, problems in grouped.items()
    }
    return [ProblemGroup(task, questions) for (task, _, _), questions in mixed.items() if questions]


def fit(
    model: Any,
    rows: Sequence[GradedAnswer],
    recipe: VerifierRecipe,
    out: Path,
    on_progress: ProgressCallback = ignore_progress,
) -> None:
    """Train on batches of right answers, and on pairs of a right and a wrong answer to the same problem.

    Both answers of a pair belong to the same problem, so that the difficulty of a problem does not help.

    Args:
        model: The denoiser, which is trained in place.
        rows: Graded samples.
        recipe: The recipe.
        out: The run directory, for the log and the checkpoints.
        on_progress: Called with the progress.
    """
    groups = problem_groups(model, rows)
    if not groups:
        raise UserError("no problem has a right and a wrong answer among its samples; draw more of them")
    sizes = torch.tensor([len(group.questions) for group in groups], dtype=torch.float64)
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
            group = groups[int(torch.multinomial(sizes, 1, generator=generator))]
            ranking = pair_loss(model, group.task, *group.pairs(recipe.batch_pairs, generator))
            log.add("pairs", ranking.item(), 0)
            loss = loss + ranking
        optimizer.descend(loss, recipe.rate(step))
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == recipe.steps:
            log.write(step + 1, "checks and pairs" if pairs else "checks", recipe.rate(step))
            checkpoints.write(out, step + 1, recipe, model.module, optimizer)
        on_progress(step + 1, recipe.steps, f"{recipe.name}, loss {loss.item():.3f}")
    log.plot("loss")


def right_loss(model: Any, batch: Examples, anchor: float, generator: torch.Generator) -> Tensor:
    """Return -log q per token that a check expects, plus `anchor` times -log q per token of an answer.

    Every right answer contributes one random query, which is a check with probability CHECKED.

    Args:
        model: The denoiser.
        batch: Right answers.
        anchor: The weight of the likelihood of answers.
        generator: Draws the queries.
    """
    completions = [Completion.after(ids[: batch.prompt], ids[batch.prompt :]) for ids in batch.ids.tolist()]
    checked = (torch.rand(len(completions), generator=generator) < CHECKED).tolist()
    build_checks = checks(model, batch.task)
    every = [
        _queries(model, build_checks if check else scaled_thirds, [completion])
        for completion, check in zip(completions, checked)
    ]
    queries = concatenate([_of_a_token(queries, generator) for queries in every])
    terms, tokens = _log_q(model, queries), queries.queried.sum(1).tolist()
    loss = terms.new_zeros(())
    for kind, weight in ((True, 1.0), (False, anchor)):
        members = [number for number, check in enumerate(checked) if check is kind]
        if members:
            loss = loss - weight * terms[members].sum() / sum(tokens[number] for number in members)
    return loss


def pair_loss(model: Any, task: str, right: Sequence[Completion], wrong: Sequence[Completion]) -> Tensor:
    """Return the mean of -log sigma(s_right - s_wrong) over the pairs."""
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
    """Return log q of all tokens that each query asks for."""
    forbidden = torch.tensor(model.forbidden_ids, device=model.device)
    return queries.totals(log_q(model.logits, queries, forbidden))


def _of_a_token(queries: MaskedQueries, generator: torch.Generator) -> MaskedQueries:
    """Draw a query in proportion to its tokens, so that all tokens are equally likely."""
    number = int(torch.multinomial(queries.queried.sum(1).float(), 1, generator=generator))
    return queries[number : number + 1]


def measure(rows: Sequence[GradedAnswer], models: Mapping[str, str]) -> dict[str, dict[str, float | None]]:
    """Return by task the number of samples, the share that is right, and the AUC of every reward model.

    The AUC is the probability that a right sample scores higher than a wrong one of the same question. `models` maps
    the name of a reward model to its source.
    """
    report: dict[str, dict[str, float | None]] = {}
    for task in sorted({row.task for row in rows}):
        members = [row for row in rows if row.task == task]
        items = [(Problem(row.problem, task, row.prompt), row.answer) for row in members]
        report[task] = {"samples": len(members), "right": float(np.mean([row.passed for row in members]))}
        for name, source in models.items():
            scores = rewards.load(source, batch_size=256).score(items)
            report[task][name] = within_question_auc(members, scores)
    return report


def within_question_auc(rows: Sequence[GradedAnswer], scores: Sequence[float]) -> float | None:
    """Return the mean AUC over the questions that have right and wrong samples, None if there are none."""
    by_question: dict[str, tuple[list[bool], list[float]]] = {}
    for row, score in zip(rows, scores):
        passed, question_scores = by_question.setdefault(row.problem, ([], []))
        passed.append(row.passed)
        question_scores.append(score)
    values = [auc(*pair) for pair in by_question.values() if len(set(pair[0])) == 2]
    return float(np.mean(values)) if values else None
