"""Options that would have no effect are refused, and each option reaches the cells it is meant for."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from tests.helpers import toy_task
from twotemp import graders, plugins, tasks
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.records import Grade, Problem, Sample
from twotemp.store import Store
from twotemp.tasks import ProblemSet, Task

pytestmark = pytest.mark.usefixtures("toy_tasks")


def call(*arguments: object, stdin: str | None = None) -> str:
    """Run a command and return its stderr; raise the UserError that it raises."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stderr


class Picky(toy_task.ToyGrader):
    """A grader that can only judge answers of toy."""

    name = "picky 1"

    def grade(self, items):
        for problem, text in items:
            yield Grade("passed", {"toy": text}[problem.task])


@pytest.fixture
def run(micro_folder, tmp_path, monkeypatch):
    """Draw two tasks with one policy; `picky` can judge the first task but not the second."""
    monkeypatch.setitem(graders.GRADERS, "picky", Picky)
    few = ("--policies", "lc", "--questions", 2, "-n", 1)
    call("eval", "--model", micro_folder, "--tasks", "toy,toy-b", *few, "--out", tmp_path / "run")
    return tmp_path / "run"


def judges(run) -> dict[str, list[str]]:
    return {cell.name: cell.graders() for cell in Store.open(run).cells()}


# --- graders ------------------------------------------------------------------------------------------


def test_regrade_takes_a_grader_for_one_task(run):
    with pytest.raises(UserError, match=r"'picky 1' cannot grade answers of toy-b .*--grader"):
        call("regrade", run, "--grader", "toy=toy", "--grader", "toy-b=picky")
    assert "graded 2 samples in 1 cell" in call("regrade", run, "--grader", "toy=picky")
    assert judges(run) == {"toy@lc": ["picky 1", "toy 1"], "toy-b@lc": ["toy 1"]}


def test_import_grades_only_the_imported_cells(run, monkeypatch):
    from twotemp.integrations import imports
    from twotemp.policies import parse

    policy = parse("ar")
    origin = {"model": "m", "fingerprint": "0", "policy": policy.to_dict(), "block": None}
    found = imports.HarnessCell("lm-eval", "toy", {**origin, "cache": None, "compile": False})
    found.problems["toy/0/0"] = Problem("toy/0/0", "toy", "1 + 2 =")
    found.samples.append(Sample("toy/0/0", 0, 0, policy, (1,), (1,), (5,), 1, 1, 1, 0.0, "length", "3"))
    monkeypatch.setitem(imports.READERS, "lm-eval", lambda *given: iter([found]))
    call("import", "lm-eval", run, "--out", run, "--grader", "picky")
    assert judges(run) == {"toy@ar": ["picky 1"], "toy@lc": ["toy 1"], "toy-b@lc": ["toy 1"]}


def test_grade_names_a_grader_that_cannot_judge_the_task(tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "toy/0", "generation": "1"}) + "\n")
    command = ("grade", tmp_path / "in.jsonl", "--task", "toy", "--out", tmp_path / "out.jsonl")
    with pytest.raises(UserError, match=r"'countdown 1' cannot grade answers of toy \(KeyError.*--grader"):
        call(*command, "--grader", "countdown")
    assert not (tmp_path / "out.jsonl").exists()


# --- options without effect --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("regrade", "--data", "f.jsonl"), "--data TASK=f.jsonl"),
        (("regrade", "--data", "toi=/nonexistent"), "unknown task of this run 'toi'; did you mean 'toy'?"),
        (("regrade", "--grader", "toi=picky"), "with several tasks, name one"),
        (("select", "--data", "toi=/nonexistent"), "unknown task of this run 'toi'; did you mean 'toy'?"),
        (("select", "--by", "majority", "--rm", "verifier"), "--by majority uses no reward model"),
        (("select", "--by", "majority", "--rm-system", "x"), "--by majority uses no reward model"),
    ],
)
def test_options_that_do_not_fit_a_run_are_refused(arguments, message, run):
    command, *options = arguments
    with pytest.raises(UserError) as error:
        call(command, run, *options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--infill", "--length", "3", "3 7"), "leave --length and --chat out"),
        (("--infill", "--chat", "3 7"), "leave --length and --chat out"),
        (("-", "3 7"), "`-` reads all prompts from stdin"),
        (("3 7", "-"), "`-` reads all prompts from stdin"),
    ],
)
def test_sample_refuses_options_that_exclude_each_other(arguments, message, micro_folder):
    with pytest.raises(UserError) as error:
        call("sample", "--model", micro_folder, *arguments, stdin="1 2\n")
    assert message in str(error.value)


# --- the next command ----------------------------------------------------------------------------------------


def recommended(*options: object) -> list[str]:
    """Return the words of the command that a race recommends."""
    text = call("tune", "--at", "pass@1", "--policies", "lc:t_token=0.8,k=2", "--questions", 2, *options)
    return shlex.split(text.partition("test problems: ")[2])


def test_tune_recommends_the_settings_it_tuned_for(micro_folder, tmp_path, monkeypatch, forked_processes):
    monkeypatch.setattr("twotemp.report.figures.available", lambda: False)
    monkeypatch.setattr(plugins, "NAMED", [])
    (tmp_path / "of_a_race.py").write_text("")
    settings = ["--tasks", "countdown-3", "--length", "8", "--block", "4", "--cache", "dual", "--no-chat"]
    settings += ["--model", str(micro_folder), "--eos-id", "3", "--eos-id", "4"]
    plugin = ["--plugin", str(tmp_path / "of_a_race.py")]
    words = recommended(*settings, *plugin, "--out", tmp_path / "a b")
    begin, end = ["twotemp", "eval"], ["--policies", f"@{tmp_path / 'a b' / 'tuned.yaml'}", "--out", "RUN"]
    assert words[:2] == begin
    assert words[-6:] == end + plugin
    assert sorted(words[2:-6]) == sorted(settings)
    call(*words[1:-3], tmp_path / "run", "-n", 1, "--questions", 1)  # as it is, but for the folder
    (cell,) = Store.open(tmp_path / "run").cells()
    assert (cell.config.length, cell.config.block, cell.config.options["cache"]) == (8, 4, "dual")


@pytest.mark.slow
def test_the_tuning_file_is_not_recommended_for_the_test(
    micro_folder, tmp_path, monkeypatch, forked_processes
):
    def load(data=None, prompt=None, subset=None) -> ProblemSet:
        return toy_task.load()

    monkeypatch.setattr("twotemp.report.figures.available", lambda: False)
    monkeypatch.setitem(tasks.TASKS, "filed", Task("filed", "", "toy", 8, load, prompts=("a", "b")))
    options = ["--task", "filed", "--data", "tuning.jsonl", "--prompt", "b", "--model", micro_folder]
    words = recommended(*options, "--out", tmp_path / "run")
    assert words[words.index("--data") + 1] == "TEST_FILE"
    assert words[words.index("--prompt") + 1] == "b"
