"""How the command line behaves when it is interrupted, misused, piped, or asked for lists."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from twotemp.cli import app, console
from twotemp.errors import UserError, unknown
from twotemp.folders import claim
from twotemp.graders import GRADERS
from twotemp.records import Grade

MAIN = [sys.executable, "-c", "from twotemp.cli import main; main()"]


@pytest.mark.parametrize("workers", [["--profile"], ["--workers", "2"]], ids=["here", "workers"])
def test_ctrl_c_says_what_is_kept_and_how_to_continue(micro_folder, tmp_path, workers, forked_processes):
    """Send SIGINT to the whole process group, as a terminal does."""
    run = tmp_path / "run"
    options = ["--tasks", "countdown-3", "--policies", "ar,tct", "--questions", "50", "-n", "64"]
    command = [*MAIN, "eval", "--model", str(micro_folder), *options, *workers, "--out", str(run)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while not glob.glob(f"{run}/*/samples-*"):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"stopped; finished work is kept in {run}, and the same command continues" in errors
    assert "Traceback" not in errors
    assert len(errors.splitlines()) <= 3, errors


@pytest.mark.parametrize("name", ["tasks", "graders", "policies"])
def test_lists_are_printed_as_tables_and_as_json(name):
    shown = CliRunner().invoke(app, [name])
    assert shown.exit_code == 0
    rows = json.loads(CliRunner().invoke(app, [name, "--json"]).stdout)
    assert {"tasks": "words-2", "graders": "maths", "policies": "tct"}[name] in rows


def test_grading_looks_for_the_file_before_it_loads_the_task(tmp_path, monkeypatch):
    monkeypatch.setattr("twotemp.tasks.get", lambda name: pytest.fail("the task was loaded first"))
    missing = str(tmp_path / "nope.jsonl")
    result = CliRunner().invoke(app, ["grade", missing, "--task", "gsm8k", "--out", "x"])
    assert isinstance(result.exception, UserError)
    assert f"there is no file {missing}" in str(result.exception)


def test_a_cache_that_does_not_exist_is_refused_before_it_is_announced(micro_folder):
    done = CliRunner().invoke(app, ["sample", "--model", str(micro_folder), "--cache", "foo", "3 7"])
    assert isinstance(done.exception, UserError)
    assert "approximate" not in done.stderr


def test_a_name_in_other_capitals_is_recognised():
    assert "did you mean 'tlc'?" in str(unknown("policy", "TLC", ["ar", "tlc"]))
    assert "did you mean 'Dream'?" in str(unknown("family", "dream", ["Dream", "llada"]))


def test_a_single_answer_has_zero_bits_not_minus_zero(micro_folder):
    done = CliRunner().invoke(app, ["sample", "--model", str(micro_folder), "--length", "4", "3 7"])
    assert "1 distinct of 1 (0.00 of 0.00 bits)" in done.stdout


def test_a_log_gets_lines_with_the_time_left(monkeypatch, capsys):
    """Without a terminal there is no bar, and hours of silence would look like a hang."""
    lines: list[str] = []
    times = iter([0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    monkeypatch.setattr(console, "say", lines.append)
    monkeypatch.setattr(console, "QUIET_SECONDS", 5.0)
    monkeypatch.setattr(console, "monotonic", lambda: next(times))
    with console.progress("work") as bar:
        bar.update(100, 300)  # samples of an earlier run
        bar.update(
            101, 300
        )  # the first new one: the wait for it, with the loading of the model, is not a rate
        bar.update(201, 300, "note")
        bar.update(1, 5)  # the next part of the work: the rate of the part before does not apply
        bar.update(2, 5)
        bar.update(3, 5)
    assert lines == [
        "work: 100 of 300",
        "work: 101 of 300",
        "work: 201 of 300, 0:00:10 left; note",
        "work: 1 of 5",
        "work: 2 of 5",
        "work: 3 of 5, 0:00:20 left",
    ]


@pytest.mark.parametrize(
    ("command", "work", "message"),
    [
        ("eval", "twotemp.cli.evaluate.run_plan", "stopped; finished work is kept in OUT, and the same"),
        ("export", "twotemp.cli.report.write_parquet", "stopped\n"),
        ("report", "twotemp.cli.report.write_report", "stopped\n"),
    ],
)
def test_only_resumable_commands_promise_to_continue(command, work, message, tmp_path, monkeypatch):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    out = tmp_path / "out"
    claim(tmp_path / "run", "evaluation", {})
    options = {
        "eval": ["--tasks", "countdown-3", "--out", str(out)],
        "export": [str(tmp_path / "run"), str(out)],
        "report": [str(tmp_path / "run"), "--out", str(out)],
    }
    monkeypatch.setattr(work, interrupted)
    result = CliRunner().invoke(app, [command, *options[command]])
    assert result.exit_code == 130
    assert result.stderr.startswith(message.replace("OUT", str(out)))


def test_eval_shows_the_grades_of_its_own_grader(micro_folder, tmp_path, monkeypatch):
    from twotemp.graders.puzzles import CountdownGrader

    def evaluated(*more: str) -> dict[str, object]:
        asked = [
            "eval",
            "--model",
            str(micro_folder),
            "--tasks",
            "countdown-3",
            "--questions",
            "2",
            "-n",
            "1",
        ]
        result = CliRunner().invoke(
            app, [*asked, "--policies", "lc", "--out", str(tmp_path), "--json", *more]
        )
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    class Generous(CountdownGrader):
        name = "generous 1"

        def grade(self, items):
            return (Grade("passed") for _ in items)

    monkeypatch.setitem(GRADERS, "generous", Generous)
    assert evaluated()["grader"] == "countdown 1"
    assert evaluated("--grader", "generous")["grader"] == "generous 1"
    monkeypatch.setattr(CountdownGrader, "name", "countdown 2")  # a new version judges an old run
    assert evaluated()["grader"] == "countdown 2"


def test_trace_refuses_a_file_that_is_not_text(tmp_path):
    (tmp_path / "x.png").write_bytes(b"\x89PNG\xff\n")
    result = CliRunner().invoke(app, ["trace", str(tmp_path / "x.png")])
    assert isinstance(result.exception, UserError)
    assert "line 1 is not a sample" in str(result.exception)


def test_a_line_separator_inside_a_text_does_not_shift_line_numbers(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a\u2028b"}, ensure_ascii=False) + "\n")
    result = CliRunner().invoke(app, ["trace", str(tmp_path / "x.jsonl")])
    assert isinstance(result.exception, UserError)
    assert "line 1 is not a sample" in str(result.exception)
    assert "Unterminated" not in str(result.exception)
