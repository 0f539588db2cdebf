"""Train the embedded outcome reward model: `train(VerifierRecipe.read(path), out)`.

It starts as the denoiser itself, in the layout of AceMath-7B-RM (Qwen2ForSequenceClassification), and learns to tell
right answers from wrong ones *to the same problem*: samples of the policies it will judge, and right answers of which
the denoiser has rewritten a random part in one step (cheap, and the mistakes of parallel decoding), all graded.
Reference answers themselves are never shown: right ones would then be those that look like the generator's. Problems
are of the train split only, by their own hash; it is measured on samples of held-out problems.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from twotemp import graders, rewards
from twotemp.asking import Ask, answer, requests
from twotemp.errors import UserError, unknown
from twotemp.folders import only_writer, replacing, write_json
from twotemp.graders.base import Grader
from twotemp.metrics import auc
from twotemp.models.load import load
from twotemp.models.native import SIZES
from twotemp.plain import read_yaml, record
from twotemp.policies import parse
from twotemp.records import Problem
from twotemp.sampling import draw
from twotemp.tasks import SOURCES
from twotemp.tasks.generated import Split
from twotemp.training.corpus import encode
from twotemp.training.muon import Muon

REPORT, MODEL = "report.json", "model"
ROWS = 256  # rewritten at once
LOG_EVERY = 50


@dataclass(frozen=True)
class VerifierRecipe:
    """With the code, it decides every weight."""

    name: str
    model: str  # the denoiser that is sampled, and whose weights the verifier starts from
    sampled: Mapping[str, int]  # training problems of each task that are sampled
    policies: Mapping[str, int]  # samples of each of these by each policy,
    blocks: int  # with answers in so many blocks, as they will be when they are judged
    rewritten: Mapping[str, int]  # training problems of each task whose right answers are rewritten
    rewrites: int  # of each of these
    largest_share: float  # of an answer that is written anew, at most: beyond a half little sense is left
    t_token: float  # temperature of what is written anew
    validation: int  # held-out problems of each task, to measure on; sampled in the same way
    batch_pairs: int
    steps: int
    warmup: int
    learning_rate: float
    weight_decay: float
    seed: int

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in SOURCES:
                raise unknown(f"task in recipe {self.name}", task, SOURCES)
        for spec in self.policies:
            parse(spec)
        for name in ("blocks", "rewrites", "validation", "batch_pairs", "steps", "warmup"):
            if getattr(self, name) < 1:
                raise UserError(f"recipe {self.name}: {name} must be at least 1")

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.sampled, *self.rewritten)))

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
    rows = _kept(out / "train.jsonl", lambda: chain(sampled(recipe, "train"), rewritten(recipe)))
    held_out = _kept(out / "validation.jsonl", lambda: sampled(recipe, "validation"))
    module, tokenizer = start(recipe)
    fit(module, tokenizer, rows, recipe)
    module.save_pretrained(out / MODEL)
    tokenizer.save_pretrained(out / MODEL)
    report = measure(held_out, {"verifier": str(out / MODEL), "pll": f"pll:{recipe.model}"})
    write_json(out / REPORT, {"recipe": asdict(recipe), "validation": report})
    return out / MODEL


def rewritten(recipe: VerifierRecipe) -> Iterator[Judged]:
    """What becomes of right answers to training problems when the denoiser writes a part of them anew."""
    model: Any = load(recipe.model)
    vocabulary = model.tokenizer.get_vocab()
    for task, count in recipe.rewritten.items():
        source = SOURCES[task]
        generator = torch.Generator().manual_seed(recipe.seed)
        by_length: dict[int, list[tuple[Problem, list[int]]]] = {}
        for number, example in enumerate(source.distinct(recipe.seed, "train", count)):
            prompt, answer = encode(example, source.length, vocabulary)
            row = (source.problem(example, "train", number), prompt + answer)
            by_length.setdefault(len(prompt), []).append(row)
        with closing(graders.get(source.grader)) as grader:
            for first, rows in by_length.items():
                for start in range(0, len(rows), ROWS):
                    part = rows[start : start + ROWS]
                    ids = torch.tensor([row for _, row in part])
                    for _ in range(recipe.rewrites):
                        answers = rewrite(model, ids, first, recipe.largest_share, recipe.t_token, generator)
                        texts = [model.decode(row) for row in answers[:, first:].tolist()]
                        yield from graded(
                            grader, [(problem, text) for (problem, _), text in zip(part, texts)]
                        )


@torch.no_grad()
def rewrite(
    model: Any, ids: Tensor, first: int, largest_share: float, t_token: float, generator: torch.Generator
) -> Tensor:
    """Mask a random part of every answer (the columns from `first` on) and draw it anew in one step."""
    share = largest_share * torch.rand(len(ids), 1, generator=generator)
    masked = torch.rand(ids.shape, generator=generator) < share
    masked[:, :first] = False
    logits = model.logits(ids.masked_fill(masked, model.mask_id), None, masked)
    logits[:, list(model.forbidden_ids)] = -torch.inf
    drawn = torch.multinomial(torch.softmax(logits / t_token, dim=-1), 1, generator=generator)[:, 0]
    return ids.masked_scatter(masked, drawn)


def sampled(recipe: VerifierRecipe, split: Split) -> Iterator[Judged]:
    """Samples of each problem by each policy, as a run would draw them."""
    model = load(recipe.model)
    counts = recipe.sampled if split == "train" else dict.fromkeys(recipe.tasks, recipe.validation)
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


def start(recipe: VerifierRecipe) -> tuple[Any, Any]:
    """The denoiser as a Qwen2 sequence classifier: the same blocks and attention, a score instead of a head."""
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    denoiser: Any = load(recipe.model, device="cpu")
    llama = denoiser.module.config
    config = Qwen2Config(
        **{name: getattr(llama, name) for name in (*SIZES, "rms_norm_eps", "rope_parameters")},
        tie_word_embeddings=False,
        pad_token_id=denoiser.tokenizer.pad_token_id,
    )
    config.num_labels = 1
    config.is_causal = False  # as the denoiser: it has learnt to judge a token by both of its sides
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        module = Qwen2ForSequenceClassification(config)  # type: ignore[no-untyped-call]
    weights = {k: v for k, v in denoiser.module.state_dict().items() if not k.startswith("lm_head")}
    report = module.load_state_dict(weights, strict=False)
    assert not report.unexpected_keys
    with torch.no_grad():
        for key in report.missing_keys:  # the biases, which LLaDA has none of, and the score
            module.get_parameter(key).zero_()
    return module, denoiser.tokenizer


class Question(NamedTuple):
    """The distinct answers to one problem."""

    right: list[Encoded]
    wrong: list[Encoded]


def questions(tokenizer: Any, rows: Sequence[Judged]) -> dict[str, list[Question]]:
    """By task, the problems that have a right and a wrong answer."""
    by_task: dict[str, dict[str, Question]] = {}
    distinct = list(dict.fromkeys(rows))
    for row, encoded in zip(distinct, encodings(tokenizer, distinct)):
        question = by_task.setdefault(row.task, {}).setdefault(row.problem, Question([], []))
        (question.right if row.passed else question.wrong).append(encoded)
    return {
        task: [question for question in here.values() if question.right and question.wrong]
        for task, here in by_task.items()
    }


def fit(module: Any, tokenizer: Any, rows: Sequence[Judged], recipe: VerifierRecipe) -> None:
    """Batches of pairs, a right and a wrong answer to the same problem: how hard a problem is must not help.

    A problem is drawn as often as it has wrong answers, so that all of those count alike.
    """
    by_task = questions(tokenizer, rows)
    names = sorted(task for task, here in by_task.items() if here)
    weights = {
        name: torch.tensor([len(question.wrong) for question in by_task[name]], dtype=torch.float64)
        for name in names
    }
    shares = torch.stack([weights[name].sum() for name in names])
    optimizer = Muon(module, recipe.weight_decay)
    module.train()
    losses: list[float] = []
    for step in range(recipe.steps):
        generator = torch.Generator().manual_seed((recipe.seed << 32) + step)

        def pick(among: Sequence[Any], generator: torch.Generator = generator) -> Any:
            return among[int(torch.randint(len(among), (1,), generator=generator))]

        # One task for the whole batch: rows of a like length.
        task = names[int(torch.multinomial(shares, 1, generator=generator))]
        drawn = torch.multinomial(weights[task], recipe.batch_pairs, replacement=True, generator=generator)
        pairs = [by_task[task][place] for place in drawn.tolist()]
        loss = pair_loss(module, [pick(q.right) for q in pairs], [pick(q.wrong) for q in pairs])
        optimizer.descend(loss, recipe.rate(step))
        losses.append(loss.item())
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {np.mean(losses[-LOG_EVERY:]):.4f}", flush=True)
    module.eval()


def pair_loss(module: Any, right: Sequence[Encoded], wrong: Sequence[Encoded]) -> Tensor:
    """-log sigma(s_right - s_wrong), the order of each pair by the score s that is read in the end, plus the
    cross-entropy of "is it right?" at every token of an answer (as in Cobbe et al., 2021: a denser signal, and s is
    then a log-odds)."""
    rows = [*right, *wrong]
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [module.config.pad_token_id] * (width - len(row.ids)) for row in rows])
    at = torch.arange(width)
    last = torch.tensor([len(row.ids) for row in rows])[:, None] - 1
    inside = (at >= torch.tensor([row.answer for row in rows])[:, None]) & (at <= last)
    hidden = module.model(input_ids=ids, attention_mask=(at <= last).long(), use_cache=False)
    logits = module.score(hidden.last_hidden_state)[..., 0]
    labels = (torch.arange(len(rows)) < len(right)).float()[:, None].expand_as(inside)
    dense = binary_cross_entropy_with_logits(logits[inside], labels[inside])
    s_right, s_wrong = logits.gather(1, last)[:, 0].split([len(right), len(wrong)])
    return dense - logsigmoid(s_right - s_wrong).mean()


class Encoded(NamedTuple):
    """The conversation as the reward model will see it, and where the answer starts."""

    ids: list[int]
    answer: int


def encodings(tokenizer: Any, rows: Sequence[Judged]) -> list[Encoded]:
    """All at once: one by one, the tokenizer takes longer than the training."""

    def ids(conversations: Iterable[Sequence[tuple[str, str]]]) -> list[list[int]]:
        turns = [[{"role": role, "content": text} for role, text in one] for one in conversations]
        texts = [tokenizer.apply_chat_template(one, tokenize=False) for one in turns]
        return list(tokenizer(texts, add_special_tokens=False)["input_ids"]) if texts else []

    prompts = list(dict.fromkeys(row.prompt for row in rows))
    starts = dict(zip(prompts, map(len, ids([("user", prompt)] for prompt in prompts))))
    whole = ids([("user", row.prompt), ("assistant", row.answer)] for row in rows)
    return [Encoded(found, starts[row.prompt]) for row, found in zip(rows, whole)]


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
