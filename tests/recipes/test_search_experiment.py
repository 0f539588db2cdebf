"""The loop that search is compared in decodes what `twotemp.sample` decodes."""

from __future__ import annotations

import twotemp
from experiments import search
from twotemp import tasks
from twotemp.evaluation.comparison import block
from twotemp.policies import parse
from twotemp.sampling.requests import PlannedSample, problem_requests

TASK, POLICY = "countdown-4", "tlc:t_pos=5"  # hot, so that some rows are much likelier than others


def test_without_search_the_loop_draws_what_the_engine_draws() -> None:
    model = twotemp.load("tiny")
    problem = tasks.get(TASK).problems(subset="test").problems[0]
    planned = [PlannedSample(problem, parse(POLICY), index) for index in range(search.ROWS)]
    width = block(TASK)
    requests = list(problem_requests(model, planned, length=tasks.SOURCES[TASK].length, block=width))
    start = len(requests[0].prompt)
    rows = search.decode(model, requests)
    size = {"n": search.ROWS, "length": requests[0].length, "block": width}
    samples = twotemp.sample(model, list(requests[0].prompt), POLICY, ids=[problem.id], **size)
    assert rows.ids[:, start:].tolist() == [list(sample.tokens) for sample in samples]
    first_block = slice(start, start + width)
    replaced = search.decode(model, requests, after_step=search.smc(3)).ids[:, first_block]
    before = {tuple(row) for row in rows.ids[:, first_block].tolist()}
    after = {tuple(row) for row in replaced.tolist()}
    assert after < before, "some rows replaced others"
    beams = search.decode(model, requests, search.d5p4(1.0))
    siblings = beams.ids[::2] != beams.ids[1::2]
    assert (siblings.sum(1) <= 1).all(), "the candidates of a beam differ by their last token at most"
