r"""How likely is a completion? Seven estimators, each a set of questions to the denoiser.

A denoiser answers one kind of question: q(x^k | partly masked row). An estimator decides which partly masked
rows to show it and which positions to read; it never sees the model, so it is a pure function of the rows. The
estimate of a row's log-likelihood is the weighted sum of the answers,

    log p(x | prompt)  ~  sum over questions of  w * log q(x^k | row with some positions masked).

Every number read is one *term* of the objective, so a batch may be cut between any two questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from twotemp import rng
from twotemp.errors import UserError, unknown
from twotemp.records import Policy, Sample

PROMPT_MASKING = 0.15  # d1's probability of hiding a prompt token
ROUNDING = 1e-6  # relative: two computations of one confidence may differ by this much
IMPOSSIBLE = -100.0  # the log of a probability that is none
Logits = Callable[[Tensor, Tensor | None, Tensor], Tensor]  # `Denoiser.logits`


@dataclass(frozen=True)
class Completions:
    """Finished rows, as tensors [B, C]; column = position in the row, padded on the right."""

    policies: tuple[Policy, ...]  # [B]
    ids: Tensor
    present: Tensor  # bool: False on padding
    generated: Tensor  # bool: what the sampler wrote
    scored: Tensor  # bool: what was written up to and including the first EOS; the rest is no answer
    steps: Tensor  # int64: the decoding step that wrote the position; -1 where none did
    confidence: Tensor  # float64: of what was written, when it was written
    block: Tensor  # int64: which decoding block the position belongs to
    keys: Tensor  # [B] int64: addresses the row's noise

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        eos_ids: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        block: int | None = None,
        origin: int | None = None,
    ) -> Completions:
        """block: the width the samples were decoded with (None: one block); origin: where the grid of blocks starts
        (None: at the first mask). Only `deferral` asks which positions were open at a step."""
        columns = max(max(len(s.prompt), s.positions[-1] + 1) for s in samples)
        shape = (len(samples), columns)
        ids, steps = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
        present, generated, scored = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
        confidence = torch.zeros(shape, dtype=torch.float64)
        for row, sample in enumerate(samples):
            at = torch.tensor(sample.positions)
            ids[row, : len(sample.prompt)] = torch.tensor(sample.prompt)
            ids[row, at] = torch.tensor(sample.tokens)
            present[row, : max(len(sample.prompt), sample.positions[-1] + 1)] = True
            generated[row, at] = True
            ended = next((n + 1 for n, token in enumerate(sample.tokens) if token in eos_ids), len(at))
            scored[row, at[:ended]] = True
            if sample.trace is not None:
                steps[row, at] = torch.tensor(sample.trace.steps)
                confidence[row, at] = torch.tensor(sample.trace.confidence, dtype=torch.float64)
        first = torch.tensor([s.positions[0] if origin is None else origin for s in samples])
        blocks = (torch.arange(columns) - first[:, None]) // (block or columns)
        keys = torch.tensor([rng.row_key(s.seed, s.request, s.index) for s in samples])
        tensors = (ids, present, generated, scored, steps, confidence, blocks, keys)
        return cls(tuple(s.policy for s in samples), *(tensor.to(device) for tensor in tensors))

    def noise(self, draw: int) -> Tensor:
        """Uniforms [B, C] of the draw-th mask; a row has the same in every batch and on every worker."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device).expand_as(self.ids)
        return rng.uniform(self.keys, torch.full_like(self.keys, draw), columns, rng.Stream.TRAIN)


@dataclass(frozen=True)
class Questions:
    """Partly masked rows [Q, C] and the positions to read in them."""

    row: Tensor  # [Q] int64: which completion the question is about
    ids: Tensor
    present: Tensor
    want: Tensor  # bool
    target: Tensor  # the completed row: what the answer is the probability of
    weight: Tensor  # [Q] float32

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, part: slice | Tensor) -> Self:
        """Some of the questions, without the columns that only longer rows have."""
        width = int(self.present[part].any(0).sum())
        whole = {field.name: getattr(self, field.name)[part] for field in fields(self)}
        return replace(self, **{name: t if t.dim() == 1 else t[:, :width] for name, t in whole.items()})

    def terms(self) -> tuple[Tensor, Tensor]:
        """For every number read, in the order of `log_probs`: its row and its weight."""
        question = self.want.nonzero()[:, 0]
        return self.row[question], self.weight[question]

    def read(self, z: Tensor) -> Tensor:
        """The answers, [terms], from the logits of every wanted position, [terms, V]."""
        return z.log_softmax(-1).gather(1, self.target[self.want][:, None])[:, 0]


@dataclass(frozen=True)
class Decisions(Questions):
    """What a threshold rule decided in one step: at some positions to commit the drawn token, at others not to."""

    committed: Tensor  # [Q, C] bool
    cut: Tensor  # [Q] float32: what a perturbed confidence had to exceed to be committed
    forced: Tensor  # [Q] bool: nothing exceeded lambda; the cut is the highest perturbed confidence itself
    t_token: Tensor  # [Q] float32
    t_pos: Tensor  # [Q] float32

    def read(self, z: Tensor) -> Tensor:
        """The log-probability of each decision; see `deferral`."""
        question = self.want.nonzero()[:, 0]
        cut, forced, t_token, t_pos = (
            tensor[question, None] for tensor in (self.cut, self.forced, self.t_token, self.t_pos)
        )
        c, drawn = z.float().softmax(-1), (z.float() / t_token).log_softmax(-1)
        hard = t_pos == 0
        margin = (cut - c) / torch.where(hard, 1.0, t_pos)
        passes = torch.where(c > cut * (1 + ROUNDING), IMPOSSIBLE, 0.0)
        deferred = (drawn + torch.where(hard, passes, logsigmoid(margin))).logsumexp(-1)
        # The density of the highest score where it was forced, else the chance to be above the cut.
        soft = logsigmoid(-margin) + torch.where(forced, logsigmoid(margin) - t_pos.log(), 0.0)
        written = (drawn + torch.where(hard, 0.0, soft)).gather(1, self.target[self.want][:, None])[:, 0]
        return torch.where(self.committed[self.want], written, deferred)


def d1(rows: Completions, mask_id: int, draw: int = 0, draws: int = 1) -> Questions:
    """The completion fully masked, prompt tokens masked with p = 0.15 (Zhao et al. 2025): 1 pass per row.

    log p(x) ~ sum_k log q(x^k | masked prompt, all masks). Biased: tokens count as independent of each other.
    More than one draw averages over prompt masks.
    """
    parts = []
    for number in range(draws):
        hidden_prompt = ~rows.generated & rows.present & (rows.noise(draw * draws + number) < PROMPT_MASKING)
        parts.append(_whole_rows(rows, rows.generated | hidden_prompt, rows.scored, mask_id, 1 / draws))
    return _join(parts)


def trajectory(rows: Completions, mask_id: int, draw: int = 0, draws: int = 1) -> Questions:
    """The states the sampler went through: 1 pass for each of its steps, nothing random.

    log p = sum_s sum_{k in U_s} log q(x^k | x_s). This is the likelihood of the tokens *given the order*, and of the
    whole trajectory only where the order does not depend on the tokens drawn (AR, random). LC, CT and TCT commit a
    token because of what it is and defer others because of what they were; this leaves both out (see `deferral`).
    """
    row, step = _steps(rows, rows.scored)
    when = rows.steps[row]
    return _ask(rows, row, _later(rows, row, step), rows.scored[row] & (when == step[:, None]), mask_id)


def fork(rows: Completions, mask_id: int, draw: int = 0, draws: int = 1) -> Questions:
    """`trajectory`, but only the steps that committed a single position (ForkGRPO, Frković et al. 2026).

    For policies whose fallback does not look at tokens (the leftmost mask) these are the forks.
    """
    row, step = _steps(rows, rows.scored)
    single = (rows.steps[row] == step[:, None]).sum(1) == 1
    return trajectory(rows, mask_id)[single]


def deferral(rows: Completions, mask_id: int, draw: int = 0, draws: int = 1) -> Questions:
    """`trajectory` for CT and TCT, with what it leaves out: 1 pass for each step, nothing random.

    Every masked position of the block draws v ~ q_T = softmax(z / T_token) and is committed if c(v) + T L > lambda,
    where c = softmax(z), T = T_pos and L is Logistic. So a step has the probability, as a product over positions,

        committed x:  q_T(x) sigma((c(x) - lambda) / T)        deferred:  sum_v q_T(v) sigma((lambda - c(v)) / T).

    Where none passes, the highest score is committed. Given that score, kappa, the step is a product again:

        committed x:  q_T(x) sigma'((kappa - c(x)) / T) / T    deferred:  sum_v q_T(v) sigma((kappa - c(v)) / T),

    a density in kappa <= lambda. Noise is addressed, so kappa is known: this is exactly the likelihood of the
    trajectory with its kappas, and summed and integrated over all of them it is 1. At T = 0 sigma is a step and
    kappa = c(x): no density. Every generated position counts, those after EOS too: they were decisions as well.
    """
    for policy in rows.policies:
        check_policy("deferral", policy)
    row, step = _steps(rows, rows.generated)
    when, masked = rows.steps[row], _later(rows, row, step)
    now = when == step[:, None]
    block = torch.where(now, rows.block[row], 0).amax(1, keepdim=True)
    asked = _ask(rows, row, masked, masked & (rows.block[row] == block), mask_id)

    def numbers(name: str) -> Tensor:
        values = [getattr(policy, name) for policy in rows.policies]
        return torch.tensor(values, dtype=torch.float64, device=row.device)[row]

    columns = torch.arange(now.shape[1], device=row.device).expand_as(now)
    noise = rng.logistic(rng.uniform(rows.keys[row], step, columns, rng.Stream.POSITION))
    threshold, t_pos = numbers("threshold"), numbers("t_pos")
    score = rows.confidence[row] + t_pos[:, None] * noise
    highest = torch.where(now, score, -inf).amax(1)
    cut = torch.minimum(highest, threshold)
    return Decisions(
        **vars(asked),
        committed=now,
        cut=cut.float(),
        forced=highest <= threshold,
        t_token=numbers("t_token").float(),
        t_pos=t_pos.float(),
    )


def check_policy(name: str, policy: Policy) -> None:
    """Can this estimator judge samples of that policy?"""
    if name in ("trajectory", "fork", "deferral"):
        _check_unedited(policy)
    if name == "deferral":
        _check_thresholded(policy)


def _check_unedited(policy: Policy) -> None:
    if policy.edit != "never":
        raise UserError(
            f"policy {policy.name!r} rewrites tokens, so that a sample's last writes are not the way it came "
            "about; use a likelihood that asks about the finished text: --likelihood d1, ar, elbo or stratified"
        )


def _check_thresholded(policy: Policy) -> None:
    numbers = {name: getattr(policy, name) for name in ("t_token", "t_pos", "threshold", "inclusive")}
    plain = Policy(policy.name, "confidence", "threshold", **numbers)
    if policy != plain or policy.t_token == 0 or policy.t_pos == inf:
        raise UserError(
            f"the deferral likelihood is that of ct and tct with t_token > 0, a finite t_pos and no filters, not of "
            f"{policy.name!r}; use --likelihood trajectory"
        )


def autoregressive(rows: Completions, mask_id: int, draw: int = 0, draws: int = 1) -> Questions:
    """Left to right: 1 pass for each token, nothing random (JustGRPO, Ni et al. 2026).

    log p(x) = sum_k log q(x^k | x^<k, masks): the exact likelihood of the model read as an AR model.
    """
    row, column = rows.scored.nonzero(as_tuple=True)
    columns = torch.arange(rows.ids.shape[1], device=rows.ids.device)
    later = rows.generated[row] & (columns >= column[:, None])
    return _ask(rows, row, later, columns == column[:, None], mask_id)


def elbo(rows: Completions, mask_id: int, draw: int = 0, draws: int = 1) -> Questions:
    """Monte-Carlo evidence lower bound: 1 pass a draw.

    With n scored tokens, l uniform on 1..n and S a uniform set of l of them, the expectation of
    (n / l) sum_{k in S} log q(x^k | S and all after EOS masked) is the mean over all orders of
    log p(x | order) <= log p(x) (Nie et al. 2025, eq. 6), with equality for a consistent q.
    """
    return _bound(rows, mask_id, draw, draws, strata=1)


def stratified(rows: Completions, mask_id: int, draw: int = 0, draws: int = 1) -> Questions:
    """`elbo` with l spread evenly over the draws: the same expectation, less noise.

    The range of l is cut into strata and each gets two draws, so that their differences give the standard error;
    with an odd number of draws each gets one.
    """
    return _bound(rows, mask_id, draw, draws, strata=draws // 2 if draws % 2 == 0 else draws)


def _bound(rows: Completions, mask_id: int, draw: int, draws: int, strata: int) -> Questions:
    """The ELBO's questions; draw i takes l from stratum i mod `strata`."""
    count = rows.scored.sum(1)
    parts = []
    for number in range(draws):
        u = rows.noise(draw * draws + number)
        # Uniforms of positions decide S; that of column -1, which no position has in any batch, decides l.
        nowhere = torch.full_like(rows.keys[:, None], -1)
        step = torch.full_like(rows.keys, draw * draws + number)
        level = rng.uniform(rows.keys, step, nowhere, rng.Stream.TRAIN)[:, 0]
        size = 1 + ((number % strata + level) / strata * count).long()
        rank = u.masked_fill(~rows.scored, 2.0).argsort(1).argsort(1)
        chosen = rows.scored & (rank < size[:, None])
        hidden = chosen | (rows.generated & ~rows.scored)
        parts.append(_whole_rows(rows, hidden, chosen, mask_id, count / size / draws))
    return _join(parts)


Estimator = Callable[[Completions, int, int, int], Questions]
ESTIMATORS: dict[str, Estimator] = {
    "d1": d1,
    "trajectory": trajectory,
    "deferral": deferral,
    "fork": fork,
    "ar": autoregressive,
    "elbo": elbo,
    "stratified": stratified,
}
RANDOM = ("d1", "elbo", "stratified")  # a new draw asks other questions; the others always ask the same


def estimator(name: str) -> Estimator:
    if name not in ESTIMATORS:
        raise unknown("likelihood estimator", name, ESTIMATORS)
    return ESTIMATORS[name]


def log_probs(logits: Logits, questions: Questions, forbidden: Tensor) -> Tensor:
    """log q of every token asked for, [terms], row-major; q has no mass on ids that are never written."""
    padded = not bool(questions.present.all())
    z = logits(questions.ids, questions.present if padded else None, questions.want)
    return questions.read(z.index_fill(1, forbidden, -torch.inf))


def log_likelihood(logits: Logits, rows: Completions, questions: Questions, forbidden: Tensor) -> Tensor:
    """The estimate of each row's log-likelihood, [B]."""
    row, weight = questions.terms()
    total = torch.zeros(len(rows.ids), device=rows.ids.device)
    return total.index_add(0, row, weight * log_probs(logits, questions, forbidden))


def idle(mask_id: int, device: torch.device | str) -> Questions:
    """A pass that reads nothing: what a worker without rows computes while the others work."""
    ids = torch.full((1, 1), mask_id, device=device)
    yes = torch.ones_like(ids, dtype=torch.bool)
    return Questions(torch.zeros_like(ids[0]), ids, yes, ~yes, ids, torch.ones(1, device=device))


def _steps(rows: Completions, which: Tensor) -> tuple[Tensor, Tensor]:
    """Row and number of every decoding step that wrote some of these positions."""
    for policy in rows.policies:
        _check_unedited(policy)
    if bool((rows.scored & (rows.steps < 0)).any()):
        raise UserError("this likelihood needs each token's step; sample with trace=True")
    row, column = (which & (rows.steps >= 0)).nonzero(as_tuple=True)
    row, step = torch.unique(torch.stack([row, rows.steps[row, column]]), dim=1)
    return row, step


def _later(rows: Completions, row: Tensor, step: Tensor) -> Tensor:
    """What was still masked when a step began."""
    when = rows.steps[row]
    return rows.generated[row] & ((when >= step[:, None]) | (when < 0))


def _ask(rows: Completions, row: Tensor, hidden: Tensor, want: Tensor, mask_id: int) -> Questions:
    target = rows.ids[row]
    ids = target.masked_fill(hidden, mask_id)
    weight = torch.ones(len(row), device=row.device)
    return Questions(row, ids, rows.present[row], want, target, weight)


def _whole_rows(
    rows: Completions, hidden: Tensor, want: Tensor, mask_id: int, weight: float | Tensor
) -> Questions:
    """One question per row."""
    asked = _ask(rows, torch.arange(len(rows.ids), device=rows.ids.device), hidden, want, mask_id)
    return replace(asked, weight=asked.weight * weight)


def _join(parts: Sequence[Questions]) -> Questions:
    names = ("row", "ids", "present", "want", "target", "weight")
    return Questions(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
