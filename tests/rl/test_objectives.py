"""Every objective against loops over its formula, and one optimizer step of each against plain autograd."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby

import pytest
import torch

from tests.helpers import rl_toys
from tests.helpers.rl_toys import rollouts_of
from twotemp.errors import UserError
from twotemp.likelihood.queries import MaskedQueries, log_q
from twotemp.rl.learner import Learner, RowNumbers
from twotemp.rl.objective import OBJECTIVES, Clip, advantages, signed_softmax
from twotemp.rl.parallel import accelerator

LOW, HIGH = 0.2, 0.3
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, math.nan, 0.0]])


class Row:
    """A row of the loops below: sums over its terms as Python numbers with gradients."""

    def __init__(self, advantage, tokens, group, terms) -> None:
        self.advantage, self.tokens, self.group, self.terms = advantage, tokens, group, terms

    def log_p(self, which: str) -> torch.Tensor:
        return sum(term["weight"] * term[which] for term in self.terms)

    def ratio(self) -> torch.Tensor:
        return ((self.log_p("new") - self.log_p("old")) / self.tokens).exp()


def clipped(ratio, advantage):
    return -min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage)


def loop(name: str, rows: list[Row], beta: float) -> torch.Tensor:
    """The sum of the objective, straight from its formula."""
    total = torch.zeros(())
    if name == "grpo":
        for row in rows:
            for term in row.terms:
                part = clipped((term["new"] - term["old"]).exp(), row.advantage)
                if beta:
                    gap = term["reference"] - term["new"]
                    part = part + beta * (gap.exp() - gap - 1)
                total = total + term["weight"] * part
    if name == "sequence":
        for row in rows:
            total = total + clipped(row.ratio(), row.advantage)
            if beta:
                total = total + beta * (row.log_p("new") - row.log_p("reference")) ** 2 / 2 / row.tokens
    if name == "stable":
        for _, members in groupby(rows, lambda row: row.group):
            members = list(members)
            bounded = [min(float(row.ratio()), 1 + HIGH) for row in members]
            for row, weight in zip(members, bounded):
                total = total - weight / sum(bounded) * row.advantage * row.log_p("new") / row.tokens
    if name == "wd1":
        for row in rows:
            total = total - row.advantage * row.log_p("new")
    if name == "spg":
        for row in rows:
            value = lower = row.log_p("new")
            if row.advantage < 0:
                columns = {term["column"] for term in row.terms}
                upper = 0.0
                for column in columns:
                    own = [t for t in row.terms if t["column"] == column]
                    upper = upper + sum(t["weight"] * t["new"].exp() ** 1.5 for t in own).log() / 1.5
                value = 0.5 * upper * row.tokens / len(columns) + 0.5 * lower
            total = total - row.advantage * value
    return total


def flat(batch: list[MaskedQueries], values: dict[str, torch.Tensor], rows: RowNumbers) -> list[Row]:
    """The same terms as lists, row by row."""
    terms: dict[int, list[dict]] = {row: [] for row in range(len(rows.advantage))}
    at = 0
    for queries in batch:
        for query, column in queries.queried.nonzero().tolist():
            one = {"weight": float(queries.weight[query]), "column": column}
            terms[int(queries.row[query])].append(one | {name: v[at] for name, v in values.items()})
            at += 1
    numbers = zip(rows.advantage.tolist(), rows.tokens.tolist(), rows.group.tolist())
    return [Row(*each, terms[row]) for row, each in enumerate(numbers)]


@pytest.mark.parametrize(
    ("name", "likelihood", "beta"),
    [
        *((name, "stratified", 0.0) for name in OBJECTIVES),
        *((name, "trajectory", 0.3) for name, entry in OBJECTIVES.items() if entry.kl),
        ("grpo", "order", 0.0),
    ],
)
def test_a_step_is_that_of_plain_autograd(name, likelihood, beta):
    """The second inner iteration, where ratios differ from 1, in micro-batches, with rows of several lengths."""
    settings = rl_toys.settings(
        objective=name, likelihood=likelihood, draws=2, iterations=2, beta=beta, epsilon=LOW, epsilon_high=HIGH,
        micro_batch=5, max_grad_norm=1e9,
    )  # fmt: skip
    model = rl_toys.micro_model()
    rollouts = rollouts_of(model)
    cut = tuple(
        replace(s, tokens=(*s.tokens[:2], model.eos_ids[0], *s.tokens[3:])) if n % 3 else s
        for n, s in enumerate(rollouts.samples)
    )
    rollouts = replace(rollouts, rewards=REWARDS, samples=cut)
    learner = Learner(model, settings, accelerator(cpu=True))
    learner.update(rollouts)  # away from the untrained model

    calls, iterate = [], learner._iteration

    def watched(given):
        batch, rows, old, reference = given.batch, given.rows, given.old, given.reference
        if calls:  # the second iteration: its gradient alone
            learner.optimizer.state.clear()
            learner.network.zero_grad()
            forbidden = torch.tensor(model.forbidden_ids)
            values = {"new": torch.cat([log_q(model.logits, queries, forbidden) for queries in batch])}
            values["old"] = torch.cat(old) if old is not None else values["new"].detach()
            if reference is not None:
                values["reference"] = torch.cat(reference)
            loss = loop(name, flat(batch, values, rows), beta) / rows.total
            parameters = learner._trained()
            gradients = torch.autograd.grad(loss, list(parameters.values()))
            calls.append((dict(zip(parameters, gradients)), rows))
        else:
            calls.append(None)
        return iterate(given)

    learner._iteration = watched
    update = learner.update(rollouts)
    _, (gradients, rows) = calls
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    assert largest > 1e-4
    moments = learner.moments()
    for parameter, gradient in gradients.items():
        found = moments[f"{parameter}/exp_avg"] / 0.1
        torch.testing.assert_close(found, gradient, atol=1e-5 * largest, rtol=1e-5)
    assert math.isfinite(update.loss)
    graded = int((~REWARDS.isnan()).sum())
    expected = {"rows": graded, "groups": 2}
    assert rows.total == expected.get(OBJECTIVES[name].per, rows.total)
    signal = 7 if name == "stable" else graded if beta else int((advantages(REWARDS, scale=False) != 0).sum())
    assert len(rows.advantage) == signal


def test_weights_of_wd1_are_two_softmaxes_over_the_graded():
    found = signed_softmax(REWARDS)
    a = [1 - 1.5 / 4, -1.5 / 4, -1.5 / 4, 0.5 - 1.5 / 4]
    up, down = ([math.exp(sign * x) for x in a] for sign in (1, -1))
    expected = [u / sum(up) - d / sum(down) for u, d in zip(up, down)]
    torch.testing.assert_close(found[0], torch.tensor(expected))
    assert (found[1] == 0).all()
    assert found[2, 2] == 0
    torch.testing.assert_close(found.sum(1), torch.zeros(3))


def test_an_outlier_cannot_outweigh_its_group_in_stable():
    """Where GRPO's clip lets a ratio of e^10 with a negative advantage through, its weight here is bounded."""
    new = torch.tensor([10.0, 0.0, 0.0, 0.0], requires_grad=True)
    advantage = torch.tensor([-0.75, 0.25, 0.25, 0.25])
    together = replace(
        rl_toys.terms_of(new, torch.zeros(4), None, advantage, torch.ones(4)), group=torch.zeros(4).long()
    )
    slopes = {}
    for name in ("grpo", "stable"):
        (slopes[name],) = torch.autograd.grad(OBJECTIVES[name].loss(together, Clip(0.2, 4.0, 0.0)).total, new)
    assert slopes["grpo"][0] > 1e4
    torch.testing.assert_close(slopes["stable"], -torch.tensor([5.0, 1.0, 1.0, 1.0]) / 8 * advantage)


def test_objectives_without_a_kl_refuse_one():
    with pytest.raises(UserError, match="has no KL; set beta=0"):
        rl_toys.settings(objective="wd1", beta=0.04)
    with pytest.raises(UserError, match="did you mean 'sequence'"):
        rl_toys.settings(objective="sequenc")
