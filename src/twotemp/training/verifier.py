"""Train the embedded outcome reward model: `train(VerifierRecipe.read(path), out)`.

It starts as the denoiser itself, in the layout of AceMath-7B-RM (Qwen2ForSequenceClassification), and learns to tell
right answers from wrong ones: samples, and right answers of which the denoiser has rewritten a random part in one
step (cheap, and the mistakes of parallel decoding), all graded. Problems are of the train split only, by their own
hash; it is measured on samples of held-out problems.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from twotemp import graders
from twotemp.asking import Ask, answer, requests
from twotemp.errors import UserError, unknown
from twotemp.graders.base import Grader
from twotemp.metrics import auc
from twotemp.models.load import load
from twotemp.plain import record
from twotemp.policies import parse
from twotemp.records import Problem
from twotemp.sampling import draw
from twotemp.tasks import SOURCES
from twotemp.tasks.generated import Example, Split
from twotemp.training.corpus import encode

REPORT, MODEL = "report.json", "model"
ROWS = 256  # rewritten at once
CLIP = 1.0
LOG_EVERY = 50


@dataclass(frozen=True)
class VerifierRecipe:
    """With the code, it decides every weight."""

    name: str
    model: str  # the denoiser that is sampled, and whose weights the verifier starts from
    sampled: Mapping[str, int]  # training problems of each task that are sampled, once with each policy
    policies: tuple[str, ...]
    rewritten: Mapping[str, int]  # training problems of each task whose right answers are rewritten
    rewrites: int  # of each of these
    largest_share: float  # of an answer that is written anew, at most: beyond a half little sense is left
    t_token: float  # temperature of what is written anew
    validation: int  # held-out problems of each task, to measure on; sampled in the same way
    batch_rows: int
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
        for name in ("rewrites", "validation", "batch_rows", "steps", "warmup"):
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
        data = yaml.safe_load(path.read_text("utf-8"))
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        return record(cls, values, str(path))


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
    out.mkdir(parents=True, exist_ok=True)
    rows = _kept(out / "train.jsonl", lambda: chain(sampled(recipe, "train"), rewritten(recipe)))
    held_out = _kept(out / "validation.jsonl", lambda: sampled(recipe, "validation"))
    module, tokenizer = start(recipe)
    fit(module, tokenizer, rows, recipe)
    module.save_pretrained(out / MODEL)
    tokenizer.save_pretrained(out / MODEL)
    report = measure(out / MODEL, held_out)
    (out / REPORT).write_text(json.dumps({"recipe": asdict(recipe), "validation": report}, indent=2) + "\n")
    return out / MODEL


def examples(task: str, count: int, seed: int, split: Split) -> list[Example]:
    """Distinct problems of a task."""
    seen: dict[str, Example] = {}
    for example in SOURCES[task].examples(seed, split):
        seen.setdefault(example.key, example)
        if len(seen) == count:
            break
    return list(seen.values())


def rewritten(recipe: VerifierRecipe) -> Iterator[Judged]:
    """Right answers to training problems, and what becomes of them when the denoiser writes a part anew."""
    model: Any = load(recipe.model)
    vocabulary = model.tokenizer.get_vocab()
    for task, count in recipe.rewritten.items():
        here = examples(task, count, recipe.seed, "train")
        generator = torch.Generator().manual_seed(recipe.seed)
        by_length: dict[int, list[tuple[Problem, list[int]]]] = {}
        for number, example in enumerate(here):
            problem = Problem(f"{task}/train/{number}", task, example.prompt, example.reference)
            prompt, answer = encode(example, SOURCES[task].length, vocabulary)
            by_length.setdefault(len(prompt), []).append((problem, prompt + answer))
            yield Judged(task, problem.id, problem.prompt, example.answer, True)
        with closing(graders.get(SOURCES[task].grader)) as grader:
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
    """One sample a problem and policy, as a run would draw them; for training also a right answer to compare with."""
    model = load(recipe.model)
    counts = recipe.sampled if split == "train" else dict.fromkeys(recipe.tasks, recipe.validation)
    for task, count in counts.items():
        here = examples(task, count, recipe.seed, split)
        problems = [Problem(f"{task}/{split}/{i}", task, e.prompt, e.reference) for i, e in enumerate(here)]
        if split == "train":
            yield from (Judged(task, p.id, p.prompt, e.answer, True) for p, e in zip(problems, here))
        with closing(graders.get(SOURCES[task].grader)) as grader:
            for spec in recipe.policies:
                asks = (Ask(problem, parse(spec)) for problem in problems)
                wanted = requests(model, asks, length=SOURCES[task].length, seed=recipe.seed)
                texts = {one.request: one.text for one in draw(model, wanted)}
                yield from graded(grader, [(p, answer(p, texts[p.id])) for p in problems])


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
        **{
            name: getattr(llama, name)
            for name in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "max_position_embeddings",
                "rms_norm_eps",
                "rope_parameters",
            )
        },
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


def fit(module: Any, tokenizer: Any, rows: Sequence[Judged], recipe: VerifierRecipe) -> None:
    """Batches of pairs, a wrong and a right answer to the same problem: how hard a problem is must not help.

    Every token of an answer predicts whether it is right (as the verifiers of Cobbe et al. do): a denser signal than
    the last token alone, which is what is read in the end.
    """
    right: dict[str, list[Encoded]] = {}
    wrong: dict[str, list[tuple[str, Encoded]]] = {}  # by task, with the problem
    for row in rows:
        if row.passed:
            right.setdefault(row.problem, []).append(_encode(tokenizer, row))
        else:
            wrong.setdefault(row.task, []).append((row.problem, _encode(tokenizer, row)))
    names = sorted(wrong)
    shares = torch.tensor([len(wrong[name]) for name in names], dtype=torch.float64)
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=recipe.weight_decay, betas=(0.9, 0.98))
    module.train()
    losses: list[float] = []
    for step in range(recipe.steps):
        generator = torch.Generator().manual_seed((recipe.seed << 32) + step)
        task = names[
            int(torch.multinomial(shares, 1, generator=generator))
        ]  # one task: rows of a like length
        batch: list[tuple[Encoded, bool]] = []
        for pick in torch.randint(len(wrong[task]), (recipe.batch_rows // 2,), generator=generator).tolist():
            problem, answer = wrong[task][pick]
            rights = right[problem]
            other = int(torch.randint(len(rights), (1,), generator=generator))
            batch += [(answer, False), (rights[other], True)]
        loss = _loss(module, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {np.mean(losses[-LOG_EVERY:]):.4f}", flush=True)
    module.eval()


def _loss(module: Any, batch: Sequence[tuple[Encoded, bool]]) -> Tensor:
    width = max(len(row.ids) for row, _ in batch)
    pad = module.config.pad_token_id
    ids = torch.tensor([row.ids + [pad] * (width - len(row.ids)) for row, _ in batch])
    at = torch.arange(width)
    inside = torch.stack([(at >= row.answer) & (at < len(row.ids)) for row, _ in batch])
    labels = torch.tensor([float(passed) for _, passed in batch])[:, None].expand_as(inside)
    real = torch.stack([at < len(row.ids) for row, _ in batch]).long()
    hidden = module.model(input_ids=ids, attention_mask=real, use_cache=False).last_hidden_state
    logits = module.score(hidden)[..., 0]
    return binary_cross_entropy_with_logits(logits[inside], labels[inside])


class Encoded(NamedTuple):
    """The conversation as the reward model will see it, and where the answer starts."""

    ids: list[int]
    answer: int


def _encode(tokenizer: Any, row: Judged) -> Encoded:

    def ids(*turns: dict[str, str]) -> list[int]:
        text = tokenizer.apply_chat_template(list(turns), tokenize=False)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    user, assistant = (
        {"role": "user", "content": row.prompt},
        {"role": "assistant", "content": row.answer},
    )
    return Encoded(ids(user, assistant), len(ids(user)))


def measure(folder: Path, rows: Sequence[Judged]) -> dict[str, dict[str, float | None]]:
    """By task: samples, the share that is right, and the AUC (None where all or none are right)."""
    from twotemp.rewards import load as load_reward_model

    model = load_reward_model(str(folder))
    report: dict[str, dict[str, float | None]] = {}
    for task in sorted({row.task for row in rows}):
        here = [row for row in rows if row.task == task]
        scores = model.score([(Problem(row.problem, task, row.prompt), row.answer) for row in here])
        passed = [row.passed for row in here]
        value = auc(passed, scores)
        report[task] = {
            "samples": len(here),
            "right": float(np.mean(passed)),
            "auc": None if math.isnan(value) else value,
        }
    return report


def _kept(path: Path, make: Callable[[], Iterable[Judged]]) -> list[Judged]:
    """What `make` yields, from the file where an earlier call left it."""
    if not path.exists():
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        with partial.open("w", encoding="utf-8") as file:
            for row in make():
                file.write(json.dumps(asdict(row)) + "\n")
        partial.replace(path)
    return [Judged(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
