"""Problems become requests, samples get their text, and graders read the whole turn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.helpers import toy_task
from tests.helpers.fake_workers import FreeText
from tests.helpers.tiny_checkpoints import EOS, MASK, random_model, word_tokenizer
from tests.helpers.toy import FixedModel
from twotemp.backends.local import LocalBackend
from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.graders.rewards import correct
from twotemp.policies import policy
from twotemp.records import Grade, Problem, Request, Sample
from twotemp.rl import rollouts
from twotemp.rl.results import evaluate
from twotemp.sampling import requests as sampling_requests
from twotemp.sampling.api import infill
from twotemp.sampling.requests import PlannedSample, assistant_turn, finish, problem_requests

AR = policy("ar")
PROBLEM = Problem("p/1", "t", "1 + 2 =", prefill="3")


class Counting(FreeText):
    def __init__(self):
        self.calls = []

    def encode(self, prompt, *, prefill="", chat=None):
        self.calls.append((prompt, prefill, chat))
        return [1, 2]


def test_requests_are_made_when_they_are_needed_and_a_problem_is_encoded_once():
    model = Counting()
    endless = (PlannedSample(PROBLEM, AR, index) for index in range(10**12))
    found = problem_requests(model, endless, length=4, block=2, seed=7, trace=True, chat=False)
    first, second = next(found), next(found)
    assert model.calls == [("1 + 2 =", "3", False)]
    assert (first.id, first.index, second.index) == ("p/1", 0, 1)
    assert (first.length, first.block, first.seed, first.trace, first.prompt) == (4, 2, 7, True, (1, 2))
    (named,) = problem_requests(model, [PlannedSample(PROBLEM, AR, id="another")], length=4)
    assert named.id == "another"


def sample_of(model, prompt, positions, tokens) -> Sample:
    (made,) = run(model, problem_requests(Counting(), [PlannedSample(PROBLEM, AR)], length=2))
    return replace(made, prompt=prompt, positions=positions, tokens=tokens)


def finished(model, sample: Sample, stop=()) -> Sample:
    length = len(sample.tokens) if sample.positions[0] >= len(sample.prompt) else 0
    return finish(model, Request("q", sample.prompt, AR, length, stop=stop, tag="mine"), sample)


def test_the_text_ends_at_the_first_end_that_was_generated():
    model = random_model("llada", word_tokenizer())
    inside = sample_of(model, (0, 4, MASK, MASK, 2), (2, 3), (1, 0))
    assert finished(model, inside).text == "a b a c", "the prompt's own end of turn cuts nothing"
    ended = replace(inside, tokens=(1, EOS))
    assert finished(model, ended).text == "a b"
    after = sample_of(model, (0, 4), (2, 3, 4), (1, EOS, 2))
    assert finished(model, after).text == "b", "the answer alone where nothing inside was filled"


def test_the_text_ends_before_the_first_stop_string():
    model = random_model("llada", word_tokenizer())
    found = sample_of(model, (0, 4), (2, 3, 4), (1, 2, 0))
    whole = finished(model, found)
    assert (whole.text, whole.finish, whole.tag) == ("b c a", found.finish, "mine")
    cut = finished(model, found, stop=(" a", "c"))
    assert (cut.text, cut.finish) == ("b ", "stop")
    uncut = finished(model, found, stop=("x",))
    assert (uncut.text, uncut.finish) == ("b c a", found.finish)


def test_without_a_tokenizer_the_text_is_the_token_ids():
    model = random_model("llada")
    assert finished(model, sample_of(model, (0, 4), (2, 3), (1, 2))).text == "1 2"


def test_a_request_is_checked_when_it_is_made():
    model = random_model("llada", word_tokenizer())
    with pytest.raises(UserError, match="exceed the context"):
        next(problem_requests(model, [PlannedSample(Problem("p", "t", "a b"), AR)], length=10**6))


def test_the_answer_is_the_whole_turn():
    assert assistant_turn(PROBLEM, " 4") == "3 4"
    assert assistant_turn(PROBLEM, "") == "3"


class Notes(toy_task.ToyGrader):
    """Keeps what it was given to grade."""

    def __init__(self):
        self.texts = []

    def grade(self, items):
        for _, text in items:
            self.texts.append(text)
            yield Grade("passed", text)


def test_grpo_encodes_and_grades_with_the_prefill():
    model, grader = toy_task.micro_model(), Notes()
    found = rollouts.collect(
        LocalBackend(model),
        grader,
        {0: PROBLEM},
        policy("tct"),
        {correct: 1.0},
        size=2,
        seed=0,
        length=4,
        block=None,
    )
    expected = tuple(model.encode(PROBLEM.prompt, prefill=PROBLEM.prefill))
    assert all(sample.prompt == expected for sample in found.samples)
    assert grader.texts == ["3" + sample.text for sample in found.samples]


class Alone:
    process_index, num_processes, device = 0, 1, "cpu"

    @staticmethod
    def reduce(table: torch.Tensor, how: str) -> torch.Tensor:
        return table


def test_the_evaluation_of_grpo_grades_with_the_prefill():
    model, grader = toy_task.micro_model(), Notes()
    evaluate(LocalBackend(model), grader, [PROBLEM], Alone(), length=4, block=None)  # type: ignore[arg-type]
    assert len(grader.texts) == 3
    assert all(text.startswith("3") for text in grader.texts)


def test_drift_asks_as_an_evaluation_does(monkeypatch):
    """The prompt with its prefill, under the problem's own id."""
    from typer.testing import CliRunner

    from twotemp.cli import app
    from twotemp.engine import observers

    seen = []
    monkeypatch.setattr(observers, "drift", lambda model, wanted, *args, **options: seen.extend(wanted))
    toy_task.install(monkeypatch)
    found = toy_task.load()
    problems = tuple(replace(problem, prefill="5") for problem in found.problems)
    monkeypatch.setattr(toy_task, "load", lambda **options: replace(found, problems=problems))
    toy_task.install(monkeypatch)
    CliRunner().invoke(app, ["drift", "--task", "toy", "--questions", "2", "--model", "tiny"])
    model = toy_task.micro_model()
    assert [request.id for request in seen] == ["toy/0", "toy/1"]
    assert seen[0].prompt == tuple(model.encode("0 + 1 =", prefill="5"))


def test_no_other_module_turns_problems_into_requests():
    """No other module of ours reads a problem's prefill."""
    from pathlib import Path

    root = Path(sampling_requests.__file__).parents[1]
    # The pages show a prefill, and the playground sends it back as the assistant's turn.
    allowed = {
        "sampling/requests.py",
        "records.py",
        "models/base.py",
        "serving/playground.py",
        "report/run_data.py",
    }
    users = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if ".prefill" in path.read_text() and not path.is_relative_to(root / "tasks")
    }
    assert users - allowed == set()


@pytest.mark.parametrize("n", [1, 3])
def test_an_infill_on_a_chat_text_keeps_what_was_filled_in(n):
    model = random_model("llada", word_tokenizer())
    model.logits = FixedModel(torch.eye(40)[[1] * 8], MASK).logits  # type: ignore[method-assign]
    row = [*model.encode("a c"), MASK, MASK]
    found = infill(model, row, "lc:t_token=0", n=n)
    assert [one.text for one in found] == ["a c b b"] * n
