"""Learn the parameters of a policy with the weights fixed: stochastic gradient ascent on pass@k.

The likelihood `order` is differentiable in T_token, T_pos and lambda, so samples and their rewards give a
gradient of the goal (REINFORCE). A step draws `size` samples of some questions, scores those that matter for
pass@k, and moves the parameters with Adam on unbounded scales (`knobs`). Noise is addressed by (seed, question,
index): a question that comes again is drawn with the same noise, even if the parameters have changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twotemp import metrics
from twotemp.backends.local import LocalBackend
from twotemp.errors import UserError
from twotemp.folders import Log, claim, only_writer
from twotemp.graders.base import Grader
from twotemp.graders.rewards import correct
from twotemp.likelihood import estimators
from twotemp.likelihood.queries import Completion, CompletionBatch, log_q
from twotemp.models.base import LanguageModel, refuse_without_mask
from twotemp.policies import spell
from twotemp.records import Policy, Problem, Sample
from twotemp.rl.knobs import Knobs, learnable, with_learned
from twotemp.rl.rollouts import collect

STEPS = "steps.jsonl"
ROWS = 128  # partly masked rows in one pass of the scoring


@dataclass(frozen=True)
class SearchSettings:
    """What a search does, and where it starts."""

    policy: Policy
    k: int  # the goal is pass@k
    length: int  # tokens of an answer
    block: int | None = None
    seed: int = 0
    chat: bool | None = None
    questions: int = 8  # a step
    rate: float = 0.1  # of Adam, on a log or logit scale

    def __post_init__(self) -> None:
        try:
            estimators.get("order").check(self.policy)
        except UserError:
            raise UserError(
                f"the order's likelihood is not known for {spell(self.policy)}; start from a budget (tlc, lc, "
                "alg-temp, margin, entropy, tpp), ct or tct, with t_token above 0 and no filters"
            ) from None
        if not learnable(self.policy):
            raise UserError(f"policy {spell(self.policy)} has no number to learn; set t_token above 0.01")

    @property
    def size(self) -> int:
        """Samples per question: more than k, so that wrong samples carry information as well."""
        return 2 * self.k


@dataclass(frozen=True)
class SearchStep:
    """The record of a step."""

    step: int  # from 1
    pass_at_k: float  # on the step's questions, with the numbers that it began with
    signal: float  # share of the questions whose samples differ in `pass_at_k_advantages`
    numbers: dict[str, float]  # that it began with
    spent: float  # NFE so far: those of the samples, and one for every scored row
    state: dict[str, list[float]]  # of the knobs after it


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    policy: Policy
    start: Policy
    steps: int
    spent: float  # NFE


def pass_at_k_advantages(rewards: Tensor, k: int) -> Tensor:
    """Return what each sample adds to the estimate of pass@k of its question, less what it would add by chance.

    With n graded samples, c of the others right, and r its own reward of 0 or 1, the estimate
    1 - C(n - right, k) / C(n, k) changes with r by C(n - 1 - c, k - 1) / C(n, k). So

        A = (r - c / (n - 1)) C(n - 1 - c, k - 1) / C(n, k),

    and sum A grad log p is an unbiased estimate of the gradient of pass@k, as the baseline does not depend on the
    sample. With n = k it is the leave-one-out reward max r - max of the others' r.

    Args:
        rewards: [questions, samples]; NaN: ungraded, worth 0.
        k: Of pass@k; a question with fewer graded samples gets 0.
    """
    graded = ~rewards.isnan()
    right = rewards.nan_to_num().double()
    n = graded.sum(1, keepdim=True).double()
    others = right.sum(1, keepdim=True) - right
    share = torch.where(n > 1, others / (n - 1).clamp_min(1), 0.0)
    change = (_log_choose(n - 1 - others, k - 1) - _log_choose(n, k)).exp()
    return torch.where(graded & (n >= k), (right - share) * change, 0.0)


def _log_choose(n: Tensor, k: int) -> Tensor:
    """Return log of the binomial coefficient, -inf for n < k."""
    inside = n.clamp_min(k)
    count = torch.lgamma(inside + 1) - torch.lgamma(inside - k + 1) - math.lgamma(k + 1)
    return torch.where(n < k, -torch.inf, count)


def search(
    model: LanguageModel,
    problems: Sequence[Problem],
    grader: Grader,
    settings: SearchSettings,
    out: Path,
    *,
    budget: float,
    batch_size: int | None = None,
    on_step: Callable[[SearchStep], None] = lambda step: None,
) -> SearchResult:
    """Search until the budget is spent; the same call continues a search that was stopped or killed.

    The policy found has the mean of the numbers over the last half of the steps.

    Args:
        model: Its weights stay as they are.
        problems: To search on; the steps cycle through them in this order.
        grader: Of their task.
        settings: What to optimize, and how.
        out: Its folder; receives run.json and steps.jsonl.
        budget: NFE, of samples and of scoring.
        batch_size: Rows decoded together.
        on_step: Is called after every step.
    """
    refuse_without_mask(model, "a search by gradient")
    if not problems:
        raise UserError("there are no questions to search on; give others (--subset, --data)")
    names = learnable(settings.policy)
    with only_writer(out):
        identity = {**vars(settings), "policy": settings.policy.to_dict(), "model": model.name}
        identity |= {"fingerprint": model.fingerprint, "grader": grader.name}
        claim(out, "search", {**identity, "problems": [problem.id for problem in problems]})
        log = Log(out / STEPS, keep=lambda row: True)
        done = [SearchStep(**row) for row in log.rows]
        knobs = Knobs(settings.policy, names, settings.rate, model.device)
        if done:
            knobs.restore(done[-1].state)
        backend = LocalBackend(model, batch_size=batch_size)
        while not done or done[-1].spent < budget:
            done.append(_step(backend, problems, grader, settings, knobs, done))
            log.add(vars(done[-1]))
            on_step(done[-1])
    half = done[len(done) // 2 :]
    mean = {name: [sum(step.state[name][0] for step in half) / len(half)] for name in names}
    return SearchResult(with_learned(settings.policy, mean), settings.policy, len(done), done[-1].spent)


def _step(
    backend: LocalBackend,
    problems: Sequence[Problem],
    grader: Grader,
    settings: SearchSettings,
    knobs: Knobs,
    done: Sequence[SearchStep],
) -> SearchStep:
    """Draw samples of the next questions, move the knobs, and return the record."""
    numbers: dict[str, Any] = knobs.numbers()
    first = len(done) * settings.questions
    chosen = [number % len(problems) for number in range(first, first + settings.questions)]
    rollouts = collect(
        backend,
        grader,
        {number: problems[number] for number in chosen},
        replace(settings.policy, **numbers),
        {correct: 1.0},
        size=settings.size,
        seed=settings.seed,
        length=settings.length,
        block=settings.block,
        chat=settings.chat,
    )
    advantage = pass_at_k_advantages(rollouts.rewards, settings.k)
    used = advantage.flatten() != 0
    samples = [rollouts.samples[index] for index in used.nonzero()[:, 0].tolist()]
    spent = float(sum(sample.nfe for sample in rollouts.samples))
    if samples:
        spent += _ascend(backend.text, samples, advantage.flatten()[used], settings, knobs)
    graded = ~rollouts.rewards.isnan()
    rates = metrics.pass_at_k(
        graded.sum(1).numpy(), rollouts.rewards.nan_to_num().sum(1).long().numpy(), [settings.k]
    )
    return SearchStep(
        len(done) + 1,
        float(rates.mean()),
        float((advantage != 0).any(1).double().mean()),
        numbers,
        (done[-1].spent if done else 0.0) + spent,
        knobs.state(),
    )


def _ascend(
    model: LanguageModel, samples: Sequence[Sample], advantage: Tensor, settings: SearchSettings, knobs: Knobs
) -> int:
    """Take an ascent step on sum A log p; return how many rows were scored."""
    batch = CompletionBatch.for_model(list(map(Completion.from_sample, samples)), model)
    queries = estimators.get("order")(batch)
    forbidden = torch.tensor(model.forbidden_ids, device=model.device)
    for part in queries.split(ROWS):
        # The weights are fixed: logits need no gradient, what is read from them does.
        terms = log_q(torch.no_grad()(model.logits), knobs.apply_to(part), forbidden)
        gain: Tensor = (advantage.to(model.device)[part.row] * part.totals(terms.double())).sum()
        torch.autograd.backward(-gain / settings.questions)
    knobs.step(lambda slope: slope)
    return len(queries)
