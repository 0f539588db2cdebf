"""The seam between problems and samples: requests, the text of a sample, and what is graded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests import toy_task
from tests.tiny_checkpoints import EOS, MASK, random_model, word_tokenizer
from tests.toy import FixedModel
from twotemp import asking, sampling
from twotemp.asking import Ask, answer, finish, requests
from twotemp.engine import run
from twotemp.policies import policy
from twotemp.records import Grade, Problem, Sample
from twotemp.rl import rewards, rollouts
from twotemp.rl.evaluation import evaluate

AR = policy("ar")
PROBLEM = Problem("p/1", "t", "1 + 2 =", prefill="3")


class Counting:
    def __init__(self):
        self.calls = []

    def encode(self, prompt, *, prefill="", chat=None):
        self.calls.append((prompt, prefill, chat))
        return [1, 2]


def test_requests_are_made_when_they_are_needed_and_a_problem_is_encoded_once():
    model = Counting()
    endless = (Ask(PROBLEM, AR, index) for index in range(10**12))
    found = requests(model, endless, length=4, block=2, seed=7, trace=True, chat=False)
    first, second = next(found), next(found)
    assert model.calls == [("1 + 2 =", "3", False)]
    assert (first.id, first.index, second.index) == ("p/1", 0, 1)
    assert (first.length, first.block, first.seed, first.trace, first.prompt) == (4, 2, 7, True, (1, 2))
    (named,) = requests(model, [Ask(PROBLEM, AR, id="another")], length=4)
    assert named.id == "another"


def sample_of(model, prompt, positions, tokens) -> Sample:
    (made,) = run(model, requests(Counting(), [Ask(PROBLEM, AR)], length=2))
    return replace(made, prompt=prompt, positions=positions, tokens=tokens)


def test_the_text_ends_at_the_first_end_that_was_generated():
    model = random_model("llada", word_tokenizer())
    inside = sample_of(model, (0, 4, MASK, MASK, 2), (2, 3), (1, 0))
    assert finish(model, inside).text == "a b a c", "the prompt's own end of turn cuts nothing"
    ended = replace(inside, tokens=(1, EOS))
    assert finish(model, ended).text == "a b"
    after = sample_of(model, (0, 4), (2, 3, 4), (1, EOS, 2))
    assert finish(model, after).text == "b", "the answer alone where nothing inside was filled"


def test_the_text_ends_before_the_first_stop_string():
    model = random_model("llada", word_tokenizer())
    found = sample_of(model, (0, 4), (2, 3, 4), (1, 2, 0))
    assert finish(model, found).text == "b c a"
    assert finish(model, found, stop=(" a", "c")).text == "b "
    assert finish(model, found, stop=("x",)).text == "b c a"


def test_without_a_tokenizer_there_is_no_text():
    model = random_model("llada")
    assert finish(model, sample_of(model, (0, 4), (2, 3), (1, 2))).text is None


def test_the_answer_is_the_whole_turn():
    assert answer(PROBLEM, " 4") == "3 4"
    assert answer(PROBLEM, None) == "3"


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
        model,
        grader,
        {0: PROBLEM},
        policy("tct"),
        {rewards.correct: 1.0},
        size=2,
        seed=0,
        length=4,
        block=None,
        draw=lambda wanted: run(model, wanted),
    )
    expected = tuple(model.encode(PROBLEM.prompt, prefill=PROBLEM.prefill))
    assert all(sample.prompt == expected for sample in found.samples)
    assert grader.texts == ["3" + (sample.text or "") for sample in found.samples]


class Alone:
    process_index, num_processes, device = 0, 1, "cpu"

    @staticmethod
    def reduce(table: torch.Tensor, how: str) -> torch.Tensor:
        return table


def test_the_evaluation_of_grpo_grades_with_the_prefill():
    model, grader = toy_task.micro_model(), Notes()
    evaluate(model, grader, [PROBLEM], Alone(), length=4, block=None, draw=lambda wanted: run(model, wanted))  # type: ignore[arg-type]
    assert len(grader.texts) == 3
    assert all(text.startswith("3") for text in grader.texts)


def test_drift_asks_as_an_evaluation_does(monkeypatch):
    """The prompt with its prefill, under the problem's own id."""
    from typer.testing import CliRunner

    from twotemp.cli import app
    from twotemp.engine import drift

    seen = []
    monkeypatch.setattr(drift, "drift", lambda model, wanted, *args, **options: seen.extend(wanted))
    toy_task.install(monkeypatch)
    found = toy_task.load()
    problems = tuple(replace(problem, prefill="5") for problem in found.problems)
    monkeypatch.setattr(toy_task, "load", lambda **options: replace(found, problems=problems))
    toy_task.install(monkeypatch)
    CliRunner().invoke(app, ["drift", "--task", "toy", "--questions", "2", "--model", "tiny"])
    model = sampling.language_model(toy_task.micro_model())
    assert [request.id for request in seen] == ["toy/0", "toy/1"]
    assert seen[0].prompt == tuple(model.encode("0 + 1 =", prefill="5"))


def test_nobody_else_turns_problems_into_requests():
    """Outside the seam no module of ours reads a problem's prefill."""
    from pathlib import Path

    root = Path(asking.__file__).parent
    # A worker passes on what it was asked to encode; the page sends a problem's prefill back as the assistant's turn.
    allowed = {"asking.py", "records.py", "models/base.py", "executors/worker.py", "serving/playground.py"}
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
    found = sampling.infill(model, row, "lc:t_token=0", n=n)
    assert [one.text for one in found] == ["a c b b"] * n
