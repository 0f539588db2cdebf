"""Search in groups (self-rewarding SMC, D5P4) against independent samples and a ladder, at equal NFE.

    python -m experiments.paper --parts search

Every method decodes the same number of rows with one token per step, so all cost the same. The parameter of
each search is chosen on validation problems. Instead of hidden states, D5P4 compares predictions
(square roots of probabilities), so that it works with any model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import twotemp
from experiments.blocks import table, with_interval
from experiments.embedded import points
from twotemp import graders, metrics, rewards, rng, tasks
from twotemp.analysis.selectors import elect, group_answers
from twotemp.evaluation.comparison import block
from twotemp.experimental.search import certainty, resample, survivors
from twotemp.models.base import LanguageModel
from twotemp.policies import parse
from twotemp.policies.step import PolicyBatch
from twotemp.records import Problem, Request
from twotemp.rewards import RewardModel
from twotemp.rng import Noise, Stream
from twotemp.sampling.requests import PlannedSample, problem_requests

ROWS = 16  # per question
CANDIDATES = 2  # per beam
LADDER = "LC, then TLC"
VALIDATION = 40  # problems
TASKS = ("countdown-4", "programs-2")
LC, TLC = "lc", "tlc:t_pos=0.5"
CHOICES = ("oracle", "majority", "verifier", "likelihood")  # how one answer is chosen; oracle: pass@ROWS
BATCH = 20  # questions decoded together


@dataclass
class Rows:
    """Rows that are being decoded, those of a question side by side."""

    ids: Tensor  # [B, C]
    keys: Tensor  # [B]
    log_q: Tensor  # [B], of everything a row has committed
    weight: Tensor  # [B], the same since the row was last replaced
    nfe: Tensor  # [B], steps in which the row had masks

    def replace(self, index: Tensor) -> None:
        """Make each row a copy of another, which its noise will soon lead elsewhere."""
        self.ids, self.log_q, self.weight = self.ids[index], self.log_q[index], self.weight[index]


# Called before each step with the probabilities in the block, [B, W, V]: returns which rows to go on with, or None.
BeforeStep = Callable[[Rows, Tensor], Tensor | None]
AfterStep = Callable[[Rows, int], None]  # called with the number of steps taken


@torch.inference_mode()
def decode(
    model: LanguageModel,
    requests: Sequence[Request],
    before_step: BeforeStep | None = None,
    after_step: AfterStep | None = None,
    t_pos: Callable[[Tensor], Tensor] | None = None,
) -> Rows:
    """Decode requests whose prompts are equally long and whose policies have the same structure.

    A row that ends its block before the others waits for them, so only policies with a budget, whose rows all take
    the same steps, draw what the engine draws.

    Args:
        model: The model.
        requests: Those of a question side by side.
        before_step: Which rows to go on with.
        after_step: Called with the rows and the number of steps taken.
        t_pos: The factor of T_pos, given the share of the block that is masked, [B].
    """
    first = requests[0]
    start, width = len(first.prompt), first.block or first.length
    prompts = torch.tensor([request.prompt for request in requests])
    ids = torch.nn.functional.pad(prompts, (0, first.length), value=model.mask_id)
    keys = torch.tensor([rng.row_key(r.seed, r.id, r.index) for r in requests])
    rows = Rows(ids, keys, *torch.zeros(3, len(ids)))
    batch = PolicyBatch(
        [request.policy for request in requests], eos_ids=model.eos_ids, forbidden_ids=model.forbidden_ids
    )
    constant, step = batch.parameters.t_pos, 0
    for begin in range(start, ids.shape[1], width):
        columns = slice(begin, begin + width)
        positions = torch.arange(ids.shape[1])[columns].expand(len(ids), -1)
        while (masked := rows.ids[:, columns] == model.mask_id).any():
            want = torch.zeros_like(rows.ids, dtype=torch.bool)
            want[:, columns] = masked
            grid = torch.zeros(*masked.shape, model.vocab_size)
            grid[masked] = model.logits(rows.ids, None, want)
            if before_step is not None:
                written = torch.nn.functional.one_hot(rows.ids[:, columns], model.vocab_size)
                index = before_step(rows, torch.where(masked[..., None], grid.softmax(-1), written))
                if index is not None:
                    rows.replace(index)
                    grid, masked = grid[index], masked[index]
            if t_pos is not None:
                batch.parameters.t_pos = constant * t_pos(masked.float().mean(1))
            noise = Noise(rows.keys, torch.full_like(rows.keys, step), positions)
            drawn = batch.draw(noise, grid[masked], masked, masked.flatten().nonzero()[:, 0])
            decision, _ = batch.choose(noise, drawn, masked)
            rows.ids[:, columns] = torch.where(decision.commit, decision.tokens, rows.ids[:, columns])
            committed = drawn.log_confidence.masked_fill(~decision.commit, 0).sum(1)
            rows.log_q, rows.weight = rows.log_q + committed, rows.weight + committed
            rows.nfe = rows.nfe + masked.any(1)
            step += 1
            if after_step is not None:
                after_step(rows, step)
    return rows


def smc(every: int) -> AfterStep:
    """Return the replacement of each question's rows, if their weights are uneven, after each `every` steps."""

    def replace(rows: Rows, step: int) -> None:
        if step % every:
            return
        at = torch.full_like(rows.keys, step)
        u = rng.uniform(rows.keys, at, torch.zeros_like(at)[:, None], Stream.CANVAS)[:, 0]
        everything = torch.arange(len(rows.ids))
        for first in range(0, len(rows.ids), ROWS):
            group = slice(first, first + ROWS)
            index = resample(rows.weight[group], u[group])
            if index is not None:
                everything[group] = first + index
                rows.weight[group] = 0
        weight = rows.weight
        rows.replace(everything)
        rows.weight = weight

    return replace


def d5p4(diversity: float) -> BeforeStep:
    """Return the selection of one candidate per beam, which then has all the beam's rows."""

    def select(rows: Rows, probabilities: Tensor) -> Tensor:
        entropy = torch.special.entr(probabilities).sum(-1)
        chosen = []
        for first in range(0, len(rows.ids), ROWS):
            group = slice(first, first + ROWS)
            features = probabilities[group].sqrt().flatten(1)
            beams = ROWS // CANDIDATES
            chosen.append(first + survivors(features, certainty(entropy[group]), beams, diversity))
        return torch.cat(chosen).repeat_interleave(CANDIDATES)

    return select


# Method -> parameter -> what it does: D5P4's weight of the similarity, and after how many steps SMC looks at weights.
SEARCHES: dict[str, dict[float, dict[str, Any]]] = {
    "SMC": {every: {"after_step": smc(every)} for every in (9, 3, 1)},
    "D5P4": {diversity: {"before_step": d5p4(diversity)} for diversity in (0.1, 1.0, 10.0)},
}
Outcomes = tuple[list[Any], list[list[str]], np.ndarray]  # grades, texts and log q, [problems][ROWS]


def requests_by_length(
    model: LanguageModel, task: str, problems: Sequence[Problem], spec: str
) -> list[list[list[Request]]]:
    """Return the requests of each problem, problems of equally long prompts together; tags are problem numbers."""
    length = tasks.SOURCES[task].length
    groups: dict[int, list[list[Request]]] = {}
    for number, problem in enumerate(problems):
        planned = [PlannedSample(problem, parse(spec), index) for index in range(ROWS)]
        requests = list(problem_requests(model, planned, length=length, block=block(task), tag=str(number)))
        groups.setdefault(len(requests[0].prompt), []).append(requests)
    return list(groups.values())


def outcomes(
    model: LanguageModel,
    task: str,
    problems: Sequence[Problem],
    spec: str,
    before_step: BeforeStep | None = None,
    after_step: AfterStep | None = None,
) -> Outcomes:
    """Return what the rows of each problem are."""
    grader = graders.get(tasks.get(task).grader)
    texts: list[list[str]] = [[] for _ in problems]
    log_q = np.zeros((len(problems), ROWS))
    for group in requests_by_length(model, task, problems, spec):
        for part in (group[i : i + BATCH] for i in range(0, len(group), BATCH)):
            rows = decode(model, [request for each in part for request in each], before_step, after_step)
            answers = rows.ids[:, len(part[0][0].prompt) :].tolist()
            for place, requests in enumerate(part):
                number = int(requests[0].tag)
                texts[number] = [model.decode(a) for a in answers[place * ROWS : (place + 1) * ROWS]]
                log_q[number] = rows.log_q[place * ROWS : (place + 1) * ROWS].numpy()
    items = [(problem, text) for problem, row in zip(problems, texts) for text in row]
    grades = list(grader.grade(items))
    return [grades[i : i + ROWS] for i in range(0, len(grades), ROWS)], texts, log_q


def values(outcome: Outcomes, problems: Sequence[Problem], task: str, verifier: RewardModel) -> Any:
    """Return whether the chosen answer is right, [problems, CHOICES]."""
    grader = graders.get(tasks.get(task).grader)
    scores = iter(verifier.score([(p, text) for p, texts in zip(problems, outcome[1]) for text in texts]))
    rows = []
    for problem, grades, log_q in zip(problems, outcome[0], outcome[2]):
        passed = [grade.passed for grade in grades]
        answers = group_answers([g.answer for g in grades], lambda a, b, p=problem: grader.same(p, a, b))  # type: ignore[misc]
        vote = elect(answers, np.ones(len(answers)))
        surest = int(np.argmax([next(scores) for _ in grades]))
        rows.append(
            [any(passed), vote is not None and passed[vote], passed[surest], passed[int(log_q.argmax())]]
        )
    return np.array(rows, dtype=np.float64)


def ladder(first: Any, others: Any) -> Any:
    """Return the outcome of one row by the first policy and all others by the second."""
    grades, texts = ([[a[0], *b[1:]] for a, b in zip(first[i], others[i])] for i in (0, 1))
    return grades, texts, np.concatenate([first[2][:, :1], others[2][:, 1:]], axis=1)


def run(questions: int, names: Sequence[str] = TASKS) -> dict[str, Any]:
    """Compare the methods; return rates, differences from the ladder and the chosen parameters as JSON."""
    model, verifier = twotemp.load("tiny"), rewards.load("verifier", batch_size=256)
    found: dict[str, Any] = {"rows": ROWS, "tasks": {}}
    for task in names:
        held = list(tasks.get(task).problems(subset="validation").problems)[:VALIDATION]
        problems = list(tasks.get(task).problems(subset="test:33").problems)[:questions]
        drawn = {spec: outcomes(model, task, problems, spec) for spec in (LC, TLC)}
        methods = {"LC": drawn[LC], "TLC": drawn[TLC], LADDER: ladder(drawn[LC], drawn[TLC])}
        chosen: dict[str, float] = {}
        for spec, policy in ((LC, "LC"), (TLC, "TLC")):
            for name, settings in SEARCHES.items():

                def search(problems: Sequence[Problem], setting: float) -> Outcomes:
                    return outcomes(model, task, problems, spec, **settings[setting])  # noqa: B023

                def rate(setting: float) -> float:
                    return float(values(search(held, setting), held, task, verifier)[:, 0].mean())  # noqa: B023

                label = f"{name} on {policy}"
                chosen[label] = max(settings, key=rate)
                methods[label] = search(problems, chosen[label])
        table_of = {name: values(outcome, problems, task, verifier) for name, outcome in methods.items()}
        found["tasks"][task] = {
            "questions": len(problems),
            "chosen": chosen,
            "distinct": {
                n: round(float(np.mean([len(set(t)) for t in o[1]])), 2) for n, o in methods.items()
            },
            "rates": {n: [round(100 * x, 1) for x in v.mean(0)] for n, v in table_of.items()},
            "behind": {  # a method minus the ladder
                n: [
                    points(metrics.paired_bootstrap(v[:, i], table_of[LADDER][:, i]))
                    for i in range(len(CHOICES))
                ]
                for n, v in table_of.items()
            },
        }
    return found


def render(found: dict[str, Any]) -> str:
    """Return the comparison as Markdown."""
    parts = []
    for task, result in found["tasks"].items():
        head = [
            f"{task}, {result['questions']} questions, %",
            *CHOICES,
            "oracle minus the ladder",
            "distinct",
        ]
        rows = [
            [
                name,
                *(f"{rate:.1f}" for rate in rates),
                "" if name == LADDER else with_interval(result["behind"][name][0]),
                f"{result['distinct'][name]:.1f}",
            ]
            for name, rates in result["rates"].items()
        ]
        parts.append(table(head, rows))
    return "\n\n".join(parts)
