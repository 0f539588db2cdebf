"""Tables of short strings, the law of every path of a policy through them, and likelihoods to compare with it."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from math import prod

import numpy as np
import torch

from theory.anchor_fork import has
from theory.exact import commit_sets
from theory.strings import temper
from theory.table import TableModel
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.likelihood.queries import Completion, CompletionBatch, MaskedQueries, log_q
from twotemp.records import Policy, Sample, Trace

START, MASK = 2, 3
Step = tuple[tuple[int, int], ...]  # (position, token) of everything a step committed
Law = dict[tuple[Step, ...], float]


def table(length: int = 3, seed: int = 0, spread: float = 1.5) -> TableModel:
    """All strings over two letters, with weights that tie the positions together."""
    generator = torch.Generator().manual_seed(seed)
    strings = list(product(range(2), repeat=length))
    weights = (spread * torch.randn(len(strings), generator=generator)).exp().tolist()
    return TableModel([((START, *s), w) for s, w in zip(strings, weights)], vocab_size=4, mask_id=MASK)


def independent_pair() -> TableModel:
    """Two positions that know nothing of each other, each A with probability 0.7."""
    weights = {0: 0.7, 1: 0.3}
    return TableModel(
        [((START, a, b), weights[a] * weights[b]) for a, b in product((0, 1), repeat=2)], 4, MASK
    )


def predictions(model: TableModel, row: tuple[int, ...]) -> dict[int, np.ndarray]:
    """q at every masked position."""
    ids = torch.tensor([row])
    masked = ids == MASK
    q = model.logits(ids, None, masked).double().exp().numpy()
    return dict(zip(masked[0].nonzero()[:, 0].tolist(), q))


def law(model: TableModel, rule: Policy) -> Law:
    """P(trajectory), from the definition: every draw at all masked positions, every set committed given it."""
    length = model.sequences.shape[1] - 1
    unfinished: Law = {(): 1.0}
    done: Law = {}
    while unfinished:
        longer: Law = defaultdict(float)
        for path, p in unfinished.items():
            row = [START] + [MASK] * length
            for position, token in (pair for step in path for pair in step):
                row[position] = token
            q = predictions(model, tuple(row))
            drawn = {k: temper(q[k][:2], rule.t_token) for k in q}
            for tokens in product((0, 1), repeat=len(q)):
                x = dict(zip(q, tokens))
                probability = p * prod(drawn[k][x[k]] for k in q)
                for chosen, share in commit_sets(rule, {k: float(q[k][x[k]]) for k in q}).items():
                    if probability * share > 0:
                        longer[*path, tuple((k, x[k]) for k in q if has(chosen, k))] += probability * share
        done |= {path: p for path, p in longer.items() if sum(map(len, path)) == length}
        unfinished = {path: p for path, p in longer.items() if path not in done}
    return done


def as_sample(model: TableModel, rule: Policy, path: tuple[Step, ...]) -> Sample:
    steps, tokens, confidence = {}, {}, {}
    row = [START] + [MASK] * sum(map(len, path))
    for number, step in enumerate(path):
        q = predictions(model, tuple(row))
        for position, token in step:
            row[position] = tokens[position] = token
            steps[position], confidence[position] = number, float(np.float32(q[position][token]))
    at = tuple(sorted(tokens))
    trace = Trace(tuple(steps[k] for k in at), tuple(confidence[k] for k in at), (0.0,) * len(at))
    return Sample(
        "q", 0, 0, rule, (START,), at, tuple(tokens[k] for k in at), 1, 1, 1, 0.0, "length", trace=trace
    )


def build_queries(
    name: str, samples: list[Sample], eos: tuple[int, ...] = (), mask_id: int = MASK, block: int | None = None
) -> MaskedQueries:
    completions = [Completion.from_sample(sample) for sample in samples]
    return ESTIMATORS[name](CompletionBatch.pad(completions, eos_ids=eos, mask_id=mask_id, block=block))


def likelihoods(model: TableModel, rule: Policy, paths: Law, name: str) -> torch.Tensor:
    queries = build_queries(name, [as_sample(model, rule, path) for path in paths])
    terms = queries.totals(log_q(model.logits, queries, torch.tensor([MASK])))
    return torch.zeros(len(paths)).index_add(0, queries.row, terms).exp()
