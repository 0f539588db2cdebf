"""inspect_ai: a task of three samples on the embedded model, and the traps on the way."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import entry_points

import pytest

import twotemp
from tests.helpers.pages import run_page
from twotemp.errors import UserError

pytest.importorskip("inspect_ai", reason="needs the extra: pip install 'twotemp[inspect]'")

from inspect_ai import Epochs, Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, GenerateConfig, get_model
from inspect_ai.scorer import Score, accuracy, includes, scorer
from inspect_ai.solver import generate, solver
from inspect_ai.tool import ToolInfo

from twotemp.graders.puzzles import grade_chain
from twotemp.integrations import inspect_ai as plug

PUZZLES = {"a": ([3, 7, 12], 33), "b": ([4, 9, 2], 34), "c": ([5, 6, 10], 20)}
PROMPTS = {name: f"{' '.join(map(str, n))} -> {t}" for name, (n, t) in PUZZLES.items()}
EPOCHS, LENGTH, POLICY = 8, 12, "tlc:t_pos=1;t_token=1"


@scorer(metrics=[accuracy()])
def chain():
    async def score(state, target):
        grade = grade_chain(state.metadata["numbers"], state.metadata["target"], state.output.completion)
        return Score(value="C" if grade.passed else "I", answer=grade.answer)

    return score


def puzzles(solve=None, score=None) -> Task:
    samples = [
        Sample(
            id=name, input=PROMPTS[name], target=str(target), metadata={"numbers": numbers, "target": target}
        )
        for name, (numbers, target) in PUZZLES.items()
    ]
    return Task(
        samples,
        solver=solve or generate(),
        scorer=score or chain(),
        epochs=Epochs(EPOCHS, ["pass_at_1", "pass_at_8"]),
        name="puzzles",
    )


def run(tmp_path, task=None, model="twotemp/tiny", policy=POLICY, **options):
    (log,) = run_eval(
        task or puzzles(),
        model=model,
        model_args={"policy": policy},
        log_dir=str(tmp_path),
        display="none",
        **{"max_tokens": LENGTH, "seed": 3, **options},
    )
    assert log.status == "success", log.error
    return log


def texts(log) -> dict[tuple[str, int], str]:
    return {(s.id, s.epoch): s.output.completion for s in log.samples}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return run(tmp_path_factory.mktemp("logs"))


def test_epochs_are_the_samples_of_twotemp_under_the_same_ids(log):
    samples = twotemp.sample(
        twotemp.load("tiny"),
        list(PROMPTS.values()),
        POLICY.replace(";", ","),
        n=EPOCHS,
        length=LENGTH,
        seed=3,
        ids=[f"puzzles/{name}" for name in PUZZLES],
    )
    expected = {(s.request.removeprefix("puzzles/"), s.index + 1): s.text for s in samples}
    assert texts(log) == expected


def test_epochs_differ_and_a_second_run_is_identical(log, tmp_path):
    found = texts(log)
    for name in PUZZLES:
        assert len({found[name, epoch] for epoch in range(1, EPOCHS + 1)}) > 1
    assert texts(run(tmp_path)) == found
    assert texts(run(tmp_path, seed=4)) != found
    # The order of arrival does not matter: one connection at a time gives the same samples.
    assert texts(run(tmp_path, max_connections=1)) == found


def test_pass_at_k(log):
    (found,) = log.results.scores[:1]
    named = {score.reducer: score.metrics["accuracy"].value for score in log.results.scores}
    assert 0 <= named["pass_at_1"] <= named["pass_at_8"] <= 1, found


def test_connections_share_their_batches(tmp_path, monkeypatch):
    model = get_model("twotemp/tiny", policy=POLICY, memoize=False)
    assert model.api.max_connections() == model.api.slots == 32
    rows, forward = [], model.api.model.logits
    monkeypatch.setattr(
        model.api.model, "logits", lambda ids, *rest: rows.append(len(ids)) or forward(ids, *rest)
    )
    run_eval(puzzles(), model=model, log_dir=str(tmp_path), display="none", max_tokens=LENGTH)
    assert max(rows) > EPOCHS


def ask(prompt="3 7 12 -> 33", **config):
    """A call outside of any sample, of a provider of its own."""
    model = get_model("twotemp/tiny", policy=POLICY, memoize=False)

    async def twice():
        return [
            await model.generate(prompt, config=GenerateConfig(max_tokens=LENGTH, **config)) for _ in range(2)
        ]

    return asyncio.run(twice())


def test_choices_are_samples_of_their_own():
    drawn = [s.text for s in twotemp.sample(twotemp.load("tiny"), "3 7 12 -> 33", "tlc:t_token=1", 8, LENGTH)]
    first, second = ask(num_choices=4)
    assert [c.message.text for c in (*first.choices, *second.choices)] == drawn
    assert first.usage.output_tokens == 4 * LENGTH


def test_without_a_sample_calls_are_counted(tmp_path, monkeypatch, log):
    """inspect's state is private. Without it, epochs are still different samples, the same ones as a set."""
    first, second = ask()
    assert first.completion != second.completion
    monkeypatch.setattr(plug, "_active_sample", lambda: None)
    found = texts(run(tmp_path, model=get_model("twotemp/tiny", policy=POLICY, memoize=False)))
    drawn = twotemp.sample(
        twotemp.load("tiny"), list(PROMPTS.values()), POLICY.replace(";", ","), EPOCHS, LENGTH, seed=3
    )
    for number, name in enumerate(PUZZLES):
        mine = drawn[number * EPOCHS : (number + 1) * EPOCHS]
        assert sorted(found[name, e] for e in range(1, EPOCHS + 1)) == sorted(s.text for s in mine)


def test_a_release_that_hides_its_state_falls_back(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log._samples", None)
    assert plug._active_sample() is None


@solver
def again():
    """The same question twice in one sample."""

    async def solve(state, generate):
        model = get_model()
        first, second = (
            await model.generate(state.user_prompt.text),
            await model.generate(state.user_prompt.text),
        )
        state.metadata["both"] = [first.completion, second.completion]
        state.output = second
        return state

    return solve


def test_calls_of_one_sample_are_told_apart(tmp_path, log):
    found = run(tmp_path, puzzles(again()))
    model = twotemp.load("tiny")
    for one in found.samples:
        first, second = one.metadata["both"]
        assert first == texts(log)[one.id, one.epoch]
        drawn = twotemp.sample(
            model, PROMPTS[one.id], "tlc:t_token=1", EPOCHS, LENGTH, seed=3, ids=f"puzzles/{one.id}-2"
        )
        assert second == drawn[one.epoch - 1].text


def test_generation_options_of_inspect_apply_or_are_refused():
    whole = ask(seed=1)[0]
    assert whole.completion != ask(seed=2)[0].completion
    word = whole.completion.split()[-1]  # whatever the model writes
    cut = ask(seed=1, stop_seqs=[word])[0]
    assert cut.completion == whole.completion.partition(word)[0]
    assert cut.stop_reason == "stop"
    certain = ask(temperature=0.0, top_k=1)[0].metadata["twotemp"]["policy"]
    assert (certain["t_token"], certain["top_k"]) == (0.0, 1)
    with pytest.raises(UserError, match="logprobs"):
        ask(logprobs=True)
    with pytest.raises(UserError, match="hello"):
        ask("hello there")
    with pytest.raises(UserError, match="tools"):
        plug._check([ToolInfo(name="t", description="")], GenerateConfig())


def test_conversations():
    model = twotemp.load("tiny")
    turns = [ChatMessageUser(content="3 7 12 -> 33"), ChatMessageAssistant(content="3 * 7")]
    begun = plug._prompt(turns)
    assert model.encode(begun) == model.encode("3 7 12 -> 33", prefill="3 * 7")
    assert plug._prompt(turns[:1]) == "3 7 12 -> 33"


def test_import_then_report_and_select(log, tmp_path, monkeypatch):
    from twotemp import cli
    from twotemp.analysis import read
    from twotemp.store import Store

    def call(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["twotemp", *arguments])
        with pytest.raises(SystemExit) as done:
            cli.main()
        assert done.value.code in (0, None)

    out = str(tmp_path / "run")
    call("import", "inspect", log.location, "--out", out)
    call("report", out)
    call("select", out, "--by", "majority,oracle")
    (cell,) = Store.open(out).cells()
    assert {(s.request, s.index): s.text for s in cell.samples()} == {
        (f"puzzles/{name}", epoch - 1): text for (name, epoch), text in texts(log).items()
    }
    (series,) = read([out])
    assert series.grader == "recorded inspect chain"
    assert series.table.correct.sum() == sum(s.scores["chain"].value == "C" for s in log.samples)
    call("regrade", out, "--grader", "countdown")
    (ours,) = read([out], "countdown")
    assert (ours.table.correct == series.table.correct).all()


def test_a_scorer_must_be_chosen_where_there_are_several(tmp_path):
    from pathlib import Path

    from twotemp.integrations.imports import bring, inspect_ai

    log = run(tmp_path, puzzles(score=[chain(), includes()]))
    with pytest.raises(UserError, match="--metric"):
        bring(inspect_ai([Path(log.location)], None, True), tmp_path / "run")
    bring(inspect_ai([Path(log.location)], "includes", True), tmp_path / "run")


def test_the_entry_point_registers_the_provider():
    (point,) = {point for point in entry_points(group="inspect_ai") if point.name == "twotemp"}
    assert point.value == "twotemp.integrations.inspect_registry"
    assert isinstance(get_model("twotemp/tiny").api, plug.TwoTempAPI)


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path):
    run_page("inspect.md", tmp_path)
    assert "k = 8" in (tmp_path / "runs" / "puzzle" / "report" / "report.md").read_text()
    assert (tmp_path / "runs" / "puzzle" / "selection" / "selection.md").exists()
