"""The fork probe, held against the planted fork (where everything is known) and run end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from theory import planted
from theory.planted import ANCHORS, FORK, POPULATION, SAMPLE, WORDS
from theory.strings import entropy
from twotemp.cli import app
from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.evaluation import TaskChoice
from twotemp.folders import only_writer
from twotemp.forks import probe
from twotemp.forks.probe import Fork, LineFit, Settings, find, fit, measure
from twotemp.forks.study import Journal, Study, study
from twotemp.policies import policy
from twotemp.records import Grade, Problem, Request, Sample, Trace
from twotemp.report import forks as report
from twotemp.store import Store


class PlantedWords:
    """The planted model's tokens as text."""

    def decode(self, ids, **options) -> str:
        return "\n".join(WORDS[i] for i in ids if i < len(WORDS))


class RunsPrograms:
    """Grades planted programs by what they return: wanted is the sample deviation."""

    name = "planted"

    def __init__(self, fail_after: int | None = None) -> None:
        self.left = fail_after

    def grade(self, items):
        for _, text in items:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
            words = tuple(text.split("\n"))
            result = planted.outcome(planted.encode(words))
            yield Grade("passed" if result == SAMPLE else "failed", None if "Error" in result else result)

    def same(self, problem, a: str, b: str) -> bool:
        return a == b

    def close(self) -> None: ...


PROBLEM = Problem("q", "planted", "")


@pytest.fixture(scope="module")
def model():
    made = planted.model()
    made.tokenizer = PlantedWords()
    return made


@pytest.fixture(scope="module")
def completions(model) -> list[Sample]:
    request = [
        Request("q", (planted.START,), Settings().completion, length=5, block=5, index=i, trace=True)
        for i in range(12)
    ]
    return list(run(model, request))


def settings(**changes) -> Settings:
    return Settings(**{"quantile": 0.9, "block": 5, **changes})


# --- which positions are forks ------------------------------------------------------------------------------------


def traced(index: int, tokens: tuple[int, ...], entropies: tuple[float, ...]) -> Sample:
    at = tuple(range(2, 2 + len(tokens)))
    trace = Trace(tuple(range(len(tokens))), (0.5,) * len(tokens), entropies)
    return Sample("q", index, 0, policy("ar"), (7, 8), at, tokens, 1, 1, 1, 0.0, "length", trace=trace)


def test_forks_lie_above_the_quantile_of_the_answers_positions():
    first = traced(0, (3, 4, 1, 1), (0.9, 0.1, 0.4, 50.0))  # 1 is EOS: what follows it is not the answer
    second = traced(1, (3, 5, 6, 6), (0.9, 0.1, 0.2, 0.3))  # agrees up to the second position
    places, threshold = find([second, first], eos_ids=(1,), quantile=0.5)
    entropies = [0.9, 0.1, 0.4, 0.2, 0.3]  # (3), (3, x) and (3, 4, EOS) once each, then (3, 5, 6, 6)
    assert threshold == np.quantile(entropies, 0.5)
    assert [(p.name, p.left, p.entropy) for p in places] == [
        ("q/0/2", (7, 8), 0.9),
        ("q/0/4", (7, 8, 3, 4), 0.4),
    ]
    assert all((p.start, p.end) == (2, 6) for p in places)


def test_a_completion_without_trace_is_refused(completions):
    bare = traced(0, (3,), (0.1,)).to_dict() | {"trace": None}
    with pytest.raises(UserError, match="--trace"):
        find([Sample.from_dict(bare)], (), 0.5)


# --- the line -----------------------------------------------------------------------------------------------------


def test_fit_is_least_squares():
    rng = np.random.default_rng(0)
    x = np.arange(9)
    y = 2 - 0.3 * x + 0.2 * rng.normal(size=9)
    line = fit(x.tolist(), y.tolist())
    slope, _ = np.polyfit(x, y, 1)
    assert line.slope == pytest.approx(slope)
    assert line.r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)
    assert fit([0, 1, 2], [3.0, 2.0, 1.0]) == pytest.approx(LineFit(-1.0, 1.0))


def test_r2_is_nan_if_it_is_undefined():
    assert np.isnan(fit([0, 1], [1.0, 0.5]).r2)  # two points are always on a line
    assert fit([0, 1], [1.0, 0.5]).slope == -0.5
    assert np.isnan(fit([0, 1, 2], [1.0, 1.0, 1.0]).r2)
    assert np.isnan(fit([0], [1.0]).slope)


# --- both experiments on the planted fork -------------------------------------------------------------------------


def test_the_planted_fork_is_found_and_measured_exactly(model, completions):
    places = [p for p in find(completions, model.eos_ids, 0.3)[0] if p.position == 1]
    assert len(places) == 1  # the library: it is the same state in every completion
    assert places[0].entropy == pytest.approx(planted.exact(policy("ar")).fork_entropy, abs=1e-6)

    (fork,) = measure(model, places, {"q": PROBLEM}, RunsPrograms(), settings(t_token=0.0))
    # Greedy LC reveals the three anchors, surest first, then the library.
    state: list[int | None] = [None] * planted.LENGTH
    path = [entropy(planted.predict(tuple(state), FORK))]
    for _ in ANCHORS:
        best = max(
            (a for a in ANCHORS if state[a] is None), key=lambda a: planted.predict(tuple(state), a).max()
        )
        state[best] = int(planted.predict(tuple(state), best).argmax())
        path.append(entropy(planted.predict(tuple(state), FORK)))
    assert fork.revealed == (0, 1, 2, 3)
    assert fork.path == pytest.approx(path, abs=1e-6)
    assert fork.line.slope < 0
    assert fork.line.r2 > 0.9
    # Of its likeliest tokens only two are possible, and they lead to different programs.
    assert [WORDS[t] for t in fork.tokens] == ["numpy", "statistics"]
    assert fork.answers == (POPULATION, SAMPLE)
    assert (fork.distinct, fork.ungraded) == (2, 0)


def test_the_path_ends_with_the_entropy_the_engine_saw(model, completions):
    """Replayed states and the engine's own trace are two ways to the same number."""
    places, _ = find(completions, model.eos_ids, 0.5)
    chosen = settings(t_token=0.8)
    forks = measure(model, places, {"q": PROBLEM}, RunsPrograms(), chosen)
    assert len(forks) > 3
    for place, fork in zip(places, forks):
        lc = policy("lc", t_token=0.8)
        (again,) = run(model, [probe._fill(model, place, place.left, lc, chosen)])
        at = again.positions.index(place.position)
        assert again.trace is not None
        assert fork.path[-1] == pytest.approx(again.trace.entropy[at], abs=1e-5)
        assert len(fork.path) == again.trace.steps[at] + 1


def test_a_fork_at_the_last_position_needs_no_completion(model):
    left = (planted.START, *planted.encode(("statistics", "stdev", "x", "return")))
    place = probe.ForkCandidate("q", 0, 1, 6, left, 0.5)
    (fork,) = measure(model, [place], {"q": PROBLEM}, RunsPrograms(), settings())
    assert fork.revealed == (0,)
    assert fork.answers == (SAMPLE, SAMPLE)
    assert fork.distinct == 1


class OneTest:
    """A grader of programs, each a set of words, that passes the tests whose word it has."""

    name = "words"

    def grade(self, items):
        for problem, text in items:
            fails = [test for test in problem.reference["tests"] if test not in text.split()]
            yield Grade("failed" if fails else "passed", text, detail="SyntaxError" * ("(" in text))

    def same(self, problem, a: str, b: str) -> bool:
        raise AssertionError("programs are not compared by their text")


def test_programs_differ_by_the_tests_they_pass_and_not_by_their_text():
    judged = Problem("q", "programs", "", {"tests": ["one", "two"]})
    count = probe._count_distinct
    assert count(OneTest(), judged, ("one two", "two one", "one two three")) == 1
    assert (
        count(OneTest(), judged, ("one", "two", "", "one two", None)) == 4
    )  # both of the first fail as a whole


def test_a_program_that_does_not_compile_is_not_well_formed(model, completions):
    class NoStatistics(RunsPrograms):
        def grade(self, items):
            for (_, text), grade in zip(items, super().grade(items)):
                broken = "statistics" in text
                yield Grade("failed", text, detail="SyntaxError: no such word") if broken else grade

    places = [p for p in find(completions, model.eos_ids, 0.3)[0] if p.position == 1]
    (fork,) = measure(model, places, {"q": PROBLEM}, NoStatistics(), settings(t_token=0.0))
    assert fork.answers == (POPULATION, None)
    assert fork.distinct == 1


def test_prompts_are_chosen_at_random_and_addressed_by_the_seed():
    def chosen(count: int, seed: int | None) -> list[str]:
        problems = TaskChoice("countdown-3", shuffled=seed).problems().problems
        return [problem.id for problem in problems[:count]]

    first = chosen(100, None)
    assert chosen(20, 0) == chosen(100, 0)[:20]  # more prompts keep the ones before
    assert set(chosen(100, 0)) != set(chosen(100, 1))
    share = len(set(chosen(100, 0)) & set(first)) / 100
    assert share < 0.3  # 100 of the 1,000 problems, not the first 100
    assert sorted(chosen(1000, 0)) == sorted(chosen(1000, None))


# --- a study on disk ----------------------------------------------------------------------------------------------


def test_a_stopped_study_continues_and_ends_as_if_never_stopped(model, completions, tmp_path):
    arguments = (model, "planted", completions, {"q": PROBLEM})
    whole = study(*arguments, RunsPrograms(), settings(quantile=0.3), tmp_path / "whole")
    assert len(whole.forks) > 4
    with pytest.raises(KeyboardInterrupt):
        study(
            *arguments, RunsPrograms(fail_after=9), settings(quantile=0.3), tmp_path / "stopped", together=2
        )
    kept = [Fork.from_dict(row) for row in Journal(tmp_path / "stopped", _stored(tmp_path)).rows()]
    assert 0 < len(kept) < len(whole.forks)

    seen: list[tuple[int, int]] = []
    resumed = study(
        *arguments,
        RunsPrograms(),
        settings(quantile=0.3),
        tmp_path / "stopped",
        together=2,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert resumed == whole
    assert seen[0] == (len(kept), len(whole.forks))
    assert seen[-1] == (len(whole.forks), len(whole.forks))

    with pytest.raises(UserError, match=r"quantile: 0\.3, now 0\.9"):
        study(*arguments, RunsPrograms(), settings(), tmp_path / "whole")


def test_two_processes_do_not_measure_one_study(model, completions, tmp_path):
    with only_writer(tmp_path), pytest.raises(UserError, match="another process is writing"):
        study(model, "planted", completions, {"q": PROBLEM}, RunsPrograms(), settings(), tmp_path)
    assert not list(tmp_path.iterdir())


def _stored(tmp_path) -> dict:
    return json.loads((tmp_path / "stopped" / "run.json").read_text())


def fork(name: str, path: tuple[float, ...], distinct: int, ungraded: int = 0) -> Fork:
    return Fork(name, path[0], tuple(range(len(path))), path, (1, 2), ("a", None), distinct, ungraded)


def test_the_report_lists_the_medians_next_to_the_papers(tmp_path):
    forks = (
        fork("a", (2.0, 1.0, 0.0), 2),  # slope -1, R² 1
        fork("b", (1.0, 2.0, 1.0), 1),  # slope 0, R² 0
        fork("c", (1.0, 0.5), 3),  # slope -0.5, two points
        fork("d", (1.0,), 0, ungraded=1),  # committed at once
    )
    found = Study("planted", 0.9, forks)
    numbers = report.numbers(found)
    assert (numbers["forks"], numbers["with_anchors"], numbers["fitted"], numbers["graded"]) == (4, 3, 2, 3)
    assert numbers["median_slope"] == pytest.approx(-0.5)
    assert numbers["falling"] == pytest.approx(2 / 3)
    assert numbers["median_r2"] == pytest.approx(0.5)
    assert numbers["two_or_more"] == pytest.approx(2 / 3)
    x, mean, _, count = report.degradation(found)
    assert x.tolist() == [0, 1, 2]
    assert mean == pytest.approx([1.25, 3.5 / 3, 0.5])
    assert count.tolist() == [4, 3, 2]
    written = report.text([found, Study("empty", 0.9, ())], "facts")
    assert "about 0.7" in written
    assert "44 % (GSM8K) to 79 % (MATH)" in written
    assert "| planted | 4 | 0.90 | 3 | -0.50 | 67 % | 0.50 (of 2) | 67 % |" in written
    drawn = report.draw([found, Study("empty", 0.9, ())], tmp_path)
    assert [d.path.exists() for d in drawn] == [True, True]


def test_the_command_end_to_end(tmp_path, embedded_sized_model):
    out = tmp_path / "run"
    arguments = ["forks", "--model", str(embedded_sized_model), "--task", "countdown-3", "--out", str(out)]
    arguments += ["--questions", "12", "--quantile", "0.95", "--json"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    row = json.loads(first.stdout.splitlines()[0])
    assert row["task"] == "countdown-3"
    assert row["forks"] > 0
    for name in ("forks.md", "fork_entropy.png", "fork_outcomes.pdf"):
        assert (out / "report" / name).stat().st_size > 0
    kept = {s.request for cell in Store(out).cells() for s in cell.samples()}
    wanted = TaskChoice("countdown-3", shuffled=0).problems().problems[:12]
    assert kept == {problem.id for problem in wanted}
    again = CliRunner().invoke(app, arguments)
    assert json.loads(again.stdout.splitlines()[0]) == row
    page = tmp_path / "trace.html"
    shown = CliRunner().invoke(app, ["trace", str(out), "--out", str(page)])  # the completions are a run
    assert shown.exit_code == 0, shown.output
    assert '"name":"AR"' in page.read_text()


@pytest.fixture
def embedded_sized_model(tmp_path):
    """A random checkpoint that knows the words of the embedded tasks."""
    from recipes import tokenizer
    from tests.helpers.tiny_checkpoints import random_model
    from twotemp.models.checkpoint import save

    words = tokenizer.build()
    ids = {"mask_token_id": words.convert_tokens_to_ids(tokenizer.MASK), "eos_token_id": words.eos_token_id}
    made = random_model("llada", words, {"embedding_size": len(words), **ids})
    return save(made, tmp_path / "model")
