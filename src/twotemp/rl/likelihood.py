r"""How likely is a completion? Five estimators, each a set of questions to the denoiser.

A denoiser answers one kind of question: q(x^k | partly masked row). An estimator decides which partly masked
rows to show it and which positions to read; it never sees the model, so it is a pure function of the rows. The
estimate of a row's log-likelihood is the weighted sum of the answers,

    log p(x | prompt)  ~  sum over questions of  w * log q(x^k | row with some positions masked).

Every number read is one *term* of the objective, so a batch may be cut between any two questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twotemp import rng
from twotemp.errors import UserError, unknown
from twotemp.records import Sample

PROMPT_MASKING = 0.15  # d1's probability of hiding a prompt token
Logits = Callable[[Tensor, Tensor | None, Tensor], Tensor]  # `Denoiser.logits`


@dataclass(frozen=True)
class Completions:
    """Finished rows, as tensors [B, C]; column = position in the row, padded on the right."""

    ids: Tensor
    present: Tensor  # bool: False on padding
    generated: Tensor  # bool: what the sampler wrote
    scored: Tensor  # bool: what was written up to and including the first EOS; the rest is no answer
    steps: Tensor  # int64: the decoding step that wrote the position; -1 where none did
    keys: Tensor  # [B] int64: addresses the row's mask noise

    @classmethod
    def of(
        cls, samples: Sequence[Sample], eos_ids: Sequence[int], device: torch.device | str = "cpu"
    ) -> Completions:
        columns = max(max(len(s.prompt), s.positions[-1] + 1) for s in samples)
        shape = (len(samples), columns)
        ids, steps = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
        present, generated, scored = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
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
        keys = torch.tensor([rng.row_key(s.seed, s.request, s.index) for s in samples])
        return cls(*(tensor.to(device) for tensor in (ids, present, generated, scored, steps, keys)))

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

    def __getitem__(self, part: slice) -> Questions:
        """Some of the questions, without the columns that only longer rows have."""
        width = int(self.present[part].any(0).sum())
        names = ("ids", "present", "want", "target")
        cut = {name: getattr(self, name)[part, :width] for name in names}
        return replace(self, row=self.row[part], weight=self.weight[part], **cut)

    def terms(self) -> tuple[Tensor, Tensor]:
        """For every number read, in the order of `log_probs`: its row and its weight."""
        question = self.want.nonzero()[:, 0]
        return self.row[question], self.weight[question]


def d1(rows: Completions, mask_id: int, draw: int = 0, draws: int = 1) -> Questions:
    """The completion fully masked, prompt tokens masked with p = 0.15 (Zhao et al. 2025): 1 pass a row.

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

    log p = sum_s sum_{k in U_s} log q(x^k | x_s): exactly the probability of the tokens given the order of the
    trace. Equal to log p(x) where each step commits one position and q is consistent.
    """
    if bool((rows.scored & (rows.steps < 0)).any()):
        raise UserError("the trajectory likelihood needs each token's step; sample with trace=True")
    row, column = rows.scored.nonzero(as_tuple=True)
    row, step = torch.unique(torch.stack([row, rows.steps[row, column]]), dim=1)
    when = rows.steps[row]
    later = rows.generated[row] & ((when >= step[:, None]) | (when < 0))
    return _ask(rows, row, later, rows.scored[row] & (when == step[:, None]), mask_id)


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
    target = questions.target[questions.want]
    return z.index_fill(1, forbidden, -torch.inf).log_softmax(-1).gather(1, target[:, None])[:, 0]


def log_likelihood(logits: Logits, rows: Completions, questions: Questions, forbidden: Tensor) -> Tensor:
    """The estimate of each row's log-likelihood, [B]."""
    row, weight = questions.terms()
    total = torch.zeros(len(rows.ids), device=rows.ids.device)
    return total.index_add(0, row, weight * log_probs(logits, questions, forbidden))


def idle(mask_id: int, device: torch.device | str) -> Questions:
    """A question of weight 0: what a worker without rows computes while the others work."""
    ids = torch.full((1, 1), mask_id, device=device)
    yes, zero = torch.ones_like(ids, dtype=torch.bool), torch.zeros(1, device=device)
    return Questions(torch.zeros_like(ids[0]), ids, yes, yes, torch.zeros_like(ids), zero)


def _ask(rows: Completions, row: Tensor, hidden: Tensor, want: Tensor, mask_id: int) -> Questions:
    target = rows.ids[row]
    ids = target.masked_fill(hidden, mask_id)
    weight = torch.ones(len(row), device=row.device)
    return Questions(row, ids, rows.present[row], want, target, weight)


def _whole_rows(
    rows: Completions, hidden: Tensor, want: Tensor, mask_id: int, weight: float | Tensor
) -> Questions:
    """One question a row."""
    asked = _ask(rows, torch.arange(len(rows.ids), device=rows.ids.device), hidden, want, mask_id)
    return replace(asked, weight=asked.weight * weight)


def _join(parts: Sequence[Questions]) -> Questions:
    names = ("row", "ids", "present", "want", "target", "weight")
    return Questions(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
