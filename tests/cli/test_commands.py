"""The commands around evaluation, as a user types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import twotemp
from tests.helpers import benchmark_rows, tiny_checkpoints, toy_task
from twotemp.cli import app, console
from twotemp.cli.options import TaskOptions, split_policies
from twotemp.errors import UserError
from twotemp.evaluation import TaskChoice
from twotemp.evaluation.plan import read_experiment
from twotemp.models import load
from twotemp.models.checkpoint import save
from twotemp.policies import parse
from twotemp.report import figures
from twotemp.store import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _toy(toy_tasks, monkeypatch):
    monkeypatch.setattr(figures, "FORMATS", ("png",))


def call(*arguments: object) -> str:
    """Run a command and return its output (with --json only stdout); raise the UserError that it raises."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout if "--json" in arguments else result.output


# --- spelling -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("ar,lc,random", ["ar", "lc", "random"]),
        ("tct:t_pos=0.1,threshold=0.6,lc", ["tct:t_pos=0.1,threshold=0.6", "lc"]),
        ("tlc:t_pos=2;tlc:k=2,t_pos=0.5 , ar,", ["tlc:t_pos=2", "tlc:k=2,t_pos=0.5", "ar"]),
    ],
)
def test_a_comma_before_name_equals_value_does_not_separate(text, specs):
    assert split_policies(text) == tuple(parse(spec) for spec in specs)


def test_options_apply_to_one_task_or_to_all():
    asked = TaskOptions("gsm8k,mbpp", data=["gsm8k=a=b.jsonl"], prompt=["justgrpo"], grader=["gsm8k=d1"])
    assert asked.choices() == (
        TaskChoice("gsm8k", Path("a=b.jsonl"), "justgrpo", None, "d1"),
        TaskChoice("mbpp", None, "justgrpo", None, None),
    )
    assert TaskOptions("mbpp", data=["a=b.jsonl"]).choices()[0].data == Path("a=b.jsonl")
    with pytest.raises(UserError, match=r"--data TASK=x\.jsonl"):
        TaskOptions("gsm8k,mbpp", data=["x.jsonl"]).choices()


# --- one run, through every command ---------------------------------------------------------------------------


def test_evaluate_report_regrade_export(micro_folder, tmp_path):
    run = tmp_path / "run"
    command = (
        "eval",
        "--model",
        micro_folder,
        "--tasks",
        "toy,toy-b",
        "--policies",
        "ar,tlc:t_pos=1,lc",
        "--out",
        run,
    )
    text = call(*command, "--questions", 3, "-n", 2)
    assert "Autoregressive" in text
    assert "k = 2" in text
    rows = [json.loads(line) for line in call(*command, "--questions", 3, "-n", 4, "--json").splitlines()]
    assert [(r["task"], r["policy"], r["n"], r["questions"]) for r in rows] == [
        (task, policy, 4, 3) for task in ("toy", "toy-b") for policy in ("ar", "lc", "tlc")
    ]
    assert set(rows[0]["pass"]) == {"1", "2", "4"}
    assert rows[0]["pass"]["1"]["low"] is None, "three questions are too few for an interval"

    text = call("report", run, "-k", "1,4")
    assert "With 4 samples per question, TLC (t_pos=1)" in " ".join(text.split())
    assert {p.name for p in (run / "report").iterdir()} >= {
        "report.md",
        "passk.csv",
        "passk.tex",
        "pass_at_k.png",
    }
    with pytest.raises(UserError, match="pass@8 needs 8 graded samples"):
        call("report", run, "-k", "8")

    call("regrade", run, "--again")
    call("export", run, tmp_path / "run.parquet")
    import pyarrow.parquet as parquet

    assert parquet.read_table(tmp_path / "run.parquet").num_rows == 2 * 3 * 4 * 3


def test_grade_reads_a_file_of_generations(tmp_path):
    rows = [{"id": f"toy/{i}", "generation": str(i)} for i in range(12)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = call("grade", "--task", "toy", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl")
    problems = toy_task.load().problems
    right = [toy_task.right(problem, row["generation"]) for problem, row in zip(problems, rows)]
    assert f"({sum(right)} of 12;" in text
    verdicts = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [v["verdict"] == "passed" for v in verdicts] == right
    assert [v["id"] for v in verdicts] == [row["id"] for row in rows]


def test_grade_takes_a_data_file_and_another_grader(tmp_path):
    """d1 compares strings, so that 2/14 is not 1/7 to it."""
    problems = benchmark_rows.MADE_UP["math500"](4)
    data = benchmark_rows.write(tmp_path / "data.jsonl", problems)
    answers = [r"\frac{0}{7}", r"\frac{2}{14}", r"\frac27", "3/8"]
    rows = [
        {"id": row["unique_id"], "generation": rf"It is $\boxed{{{answer}}}$."}
        for row, answer in zip(problems, answers)
    ]
    file, out = benchmark_rows.write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    grade = ("grade", "--task", "math500", "--data", data, file, "--out", out)
    with pytest.raises(UserError, match="--allow-altered-data"):
        call(*grade)
    for grader, right in (("d1", [True, False, True, False]), ("maths", [True, True, True, False])):
        call(*grade, "--allow-altered-data", "--grader", grader)
        verdicts = benchmark_rows.read(out)
        assert [v["verdict"] == "passed" for v in verdicts] == right


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("eval", "--tasks", "toy", "--policies", "tlcc", "--out", "x"),
            "unknown policy 'tlcc'; did you mean 'tlc'",
        ),
        (("eval", "--tasks", "toy", "--policies", "tlc:tpos=1", "--out", "x"), "did you mean 't_pos'"),
        (("eval", "--tasks", "toi", "--out", "x"), "unknown task 'toi'"),
        (("eval", "--tasks", "toy", "--shard", "2", "--out", "x"), "--shard 2: write part I of N as I/N"),
        (("eval", "--tasks", "toy", "--model", "no-such-model", "--out", "x"), "no model 'no-such-model'"),
        (("report", "x"), "x is not a run"),
        (("report", "x", "-k", "one"), "whole numbers"),
        (("run", "no.yaml"), "no experiment file no.yaml"),
    ],
)
def test_mistakes_are_named_with_their_fix(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        call(*arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ("drift", "--questions"),
        ("eval", "--tasks", "toy", "--out", "x", "--questions"),
        ("forks", "--tasks", "toy", "--out", "x", "--questions"),
        ("run", "x.yaml", "--questions"),
        ("run", "x.yaml", "-n"),
        ("trace", "x.jsonl", "--each"),
        ("sample", "x", "--batch-size"),
        ("select", "x", "--batch-size"),
    ],
)
@pytest.mark.parametrize("number", ["0", "-3"])
def test_a_count_is_at_least_one(arguments, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text("title: t\nshows: s\nmodels: [tiny]\ntasks: [toy]\npolicies: [ar]\n")
    result = CliRunner().invoke(app, [*arguments, number])
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[-1]}'" in result.output


# --- caches ---------------------------------------------------------------------------------------------------


def test_an_approximate_cache_is_announced_and_recorded(micro_folder, tmp_path):
    options = ("--model", str(micro_folder), "--length", "8", "--block", "4", "--trace", "--json", "3 7")
    plain, cached = (
        CliRunner().invoke(app, ["sample", *more, *options]) for more in ((), ("--cache", "dual"))
    )
    assert "cache" not in plain.stderr
    assert "cache dual: approximate; `twotemp drift` measures by how much" in cached.stderr
    assert [json.loads(done.stdout)["cache"] for done in (plain, cached)] == [None, "dual"]
    (tmp_path / "dual.jsonl").write_text(cached.stdout)
    call("trace", tmp_path / "dual.jsonl", "--out", tmp_path / "page.html")  # reads such lines
    assert (tmp_path / "page.html").exists()


def test_an_exact_cache_is_announced(monkeypatch):
    lines = []
    monkeypatch.setattr(console.status, "print", lambda text, **_: lines.append(text))
    console.say_cache(tiny_checkpoints.random_model("sdar"), None)
    assert lines == ["cache block: exact"]


def test_evaluation_says_that_a_cache_is_approximate(micro_folder, tmp_path):
    options = ["--tasks", "toy", "--policies", "lc", "-n", "1", "--questions", "1", "--cache", "dual"]
    done = CliRunner().invoke(
        app, ["eval", "--model", str(micro_folder), "--out", str(tmp_path / "run"), *options]
    )
    assert "cache dual: approximate" in done.stderr


@pytest.fixture
def loads(monkeypatch) -> list[dict]:
    """Record the options that models are loaded with."""
    given: list[dict] = []
    honest = load.load

    def noting(source, *, compile=False, **options):
        given.append({"compile": compile, **options})
        return honest(source, **options)

    monkeypatch.setattr(twotemp, "load", noting, raising=False)  # the package looks it up on first use
    return given


def test_drift_takes_the_options_of_a_run(micro_folder, loads):
    options = ("--batch-size", 2, "--length", 4, "--block", 2, "--dtype", "float32", "--mask-id", 2)
    text = call(
        "drift",
        "--model",
        micro_folder,
        "--task",
        "toy",
        "--questions",
        3,
        "--policy",
        "lc",
        *options,
        "--json",
    )
    assert json.loads(text)["steps"] == 3 * 4
    assert loads == [
        {
            "compile": False,
            "device": None,
            "dtype": "float32",
            "revision": None,
            "mask_id": 2,
            "eos_ids": None,
            "block_size": None,
            "quantize": None,
            "device_map": None,
        }
    ]


def test_profile_prints_where_the_time_went(micro_folder, tmp_path):
    options = ["--tasks", "toy", "--policies", "lc", "-n", "2", "--questions", "1", "--profile"]
    done = CliRunner().invoke(
        app, ["eval", "--model", str(micro_folder), "--out", str(tmp_path / "run"), *options]
    )
    assert "bookkeeping" in done.stderr
    assert f"{toy_task.LENGTH} steps, {2 * toy_task.LENGTH} row-steps" in done.stderr


def test_evaluations_may_be_compiled(micro_folder, loads, tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text("title: t\nshows: s\nmodels: [tiny]\ntasks: [toy]\npolicies: [ar]\n")
    few = ("-n", 1, "--questions", 1, "--model", micro_folder, "--compile")
    call("eval", "--tasks", "toy", "--policies", "ar", "--out", tmp_path / "eval", *few)
    call("run", file, "--out", tmp_path / "run", *few)
    assert [given["compile"] for given in loads] == [True, True]


# --- experiments ----------------------------------------------------------------------------------------------


def test_every_experiment_file_is_runnable():
    """Check that its tasks, policies and embedded models exist."""
    from twotemp.models.load import EMBEDDED

    found = {path.stem: read_experiment(path) for path in (ROOT / "experiments").glob("*.yaml")}
    assert found
    # Most files ask for the same problems.
    for choice in {choice for experiment in found.values() for choice in experiment.plan().tasks}:
        assert choice.problems().problems, choice
    assert {model for experiment in found.values() for model in experiment.models} <= {*EMBEDDED}


def test_an_experiment_runs_and_reports(micro_folder, tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(
        "title: t\nshows: s\nmodels: [tiny]\ntasks: [toy]\npolicies: [ar, tlc]\nn: 64\nquestions: 9\n"
    )
    other = save(toy_task.micro_model("other", seed=1), tmp_path / "other")
    text = call(
        "run",
        file,
        "--model",
        micro_folder,
        "--model",
        other,
        "-n",
        2,
        "--questions",
        2,
        "--out",
        tmp_path / "out",
    )
    assert "micro" in text
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"micro", "other", "report"}
    assert (tmp_path / "out" / "report" / "models.png").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: t\nmodles: [tiny]", "unknown key in .*; did you mean 'models'"),
        ("title: t", "lacks models, policies, shows, tasks"),
        ("- a list", "must hold `key: value` lines"),
        ("title: [", "cannot be read as YAML"),
        ("title: t\nshows: s\nmodels: [tiny]\ntasks: [toy]\npolicies: [lcc]", "unknown policy 'lcc'"),
        ("title: t\nshows: s\nmodels: [tiny]\ntasks: toy\npolicies: [lc]", "tasks must be a list"),
        ("title: t\nshows: s\nmodels: [tiny]\ntasks: [toy]\npolicies: [lc]\nn: many", "n must be an integer"),
    ],
)
def test_a_mistake_in_an_experiment_file_is_found_when_it_is_read(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_experiment(tmp_path / "x.yaml")


def test_the_demo_is_an_evaluation_and_a_report(tmp_path, monkeypatch):
    from twotemp.cli import evaluate

    monkeypatch.setattr(evaluate, "DEMO_QUESTIONS", {"countdown-4": 2, "programs-2": 1})
    monkeypatch.setattr(evaluate, "DEMO_SAMPLES", 4)
    text = " ".join(call("demo", "--out", tmp_path / "demo").split())
    for name in (
        "Autoregressive",
        "Low confidence",
        "TLC (t_pos=0.5)",
        "TLC (t_pos=5)",
        "Fast-dLLM (CT) (threshold=0.9)",
        "TCT (threshold=0.9, t_pos=0.15)",
    ):
        assert name in text
    assert "With one sample per question, Low confidence and TLC (t_pos varies)" in text
    assert "With 4 samples per question, TLC (t_pos varies)" in text
    assert "For the NFE of one Autoregressive sample" in text
    made = {path.name for path in (tmp_path / "demo").iterdir()}
    assert {"run", "report.md", "pass_at_k.png", "pass_at_nfe.png"} <= made
    assert "2 questions, length 18, block 9" in (tmp_path / "demo" / "report.md").read_text()
    monkeypatch.setattr("twotemp.report.figures.available", lambda: False)  # they were drawn above
    again = " ".join(call("demo", "--out", tmp_path / "demo").split())
    assert again.startswith(text.partition(" figure: ")[0]), "started again it shows the same results"


# --- a real process -------------------------------------------------------------------------------------------


def test_a_killed_run_continues_with_the_same_command(micro_folder, tmp_path, forked_processes):
    """Kill a process while it draws, then run the same command to the end."""

    def contents(run: Path) -> dict:
        return {
            (cell.name, s.key): (replace(s, seconds=0.0), cell.grades("countdown 1").get(s.key))
            for cell in Store.open(run).cells()
            for s in cell.samples()
        }

    options = [
        "eval",
        "--model",
        micro_folder,
        "--tasks",
        "countdown-3",
        "--policies",
        "ar,tct",
        "--questions",
        4,
        "-n",
        40,
    ]
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        "from twotemp.cli import main; main()",
        *map(str, options),
        "--out",
        str(run),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(run.glob("*/samples-*")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(contents(run)) < 2 * 4 * 40
    call(*options, "--out", run)
    call(*options, "--out", tmp_path / "whole")
    assert contents(run) == contents(tmp_path / "whole")
