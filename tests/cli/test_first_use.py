"""First use of the command line: help with examples, mistakes answered with their fix, no noise."""

from __future__ import annotations

import ast
import json
import logging
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.helpers.graded_cells import store_cell
from twotemp import cli
from twotemp.analysis import read
from twotemp.cli import app, console, serve, trace, workers
from twotemp.cli.commands import COMMANDS, load_command
from twotemp.errors import UserError
from twotemp.models import load, weight_loading
from twotemp.models.summary import summarize
from twotemp.policies import parse
from twotemp.records import Grade
from twotemp.store import Key, Store

CLI = Path(cli.__file__).parent


def refused(*arguments: object) -> str:
    """Return the message of the UserError that a command raises."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


# --- the group and its help -----------------------------------------------------------------------------------


def test_help_imports_no_command():
    code = (
        "import sys; from twotemp import cli; sys.argv = ['twotemp', '--help']\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.startswith('twotemp.cli.')), 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['twotemp.cli.commands'] False"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_repeats_the_first_line_of_a_command_and_its_help_has_an_example(name):
    text = load_command(name).help
    assert text.splitlines()[0] == COMMANDS[name].summary
    assert f"      twotemp {name}".strip() in text


def test_imports_in_functions_are_of_torch_or_optional_packages():
    """Everything else stands at the top: a command's module is imported only when that command is used."""
    heavy = ("torch", "lm_eval", "twotemp.engine", "twotemp.models", "twotemp.sampling", "twotemp.serving")
    heavy += (
        "twotemp.cli.model_checks",
        "twotemp.cli.dry_run",
        "twotemp.integrations.lm_eval",
        "twotemp.backends",
        "twotemp.rl",
    )
    for path in CLI.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.ImportFrom):
                        assert str(node.module).startswith(heavy), (path.name, node.lineno)


def test_a_missing_argument_is_answered_with_an_example():
    result = CliRunner().invoke(app, ["report"])
    assert result.exit_code == 2
    assert "Example: twotemp report runs/first" in " ".join(result.output.split())


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "twotemp.cli.grpo", None)
    assert refused("grpo", "--help").endswith("pip install 'twotemp[train]'")


# --- policies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["tlc:t_pos=1,t_pos=2", "tlc:t_pos=1, t_pos=1"])
def test_a_parameter_given_twice_in_a_policy_is_refused(spec):
    with pytest.raises(UserError, match="t_pos is given twice"):
        parse(spec)


@pytest.mark.parametrize(
    ("policy", "option", "name"),
    [
        ("tct", "--t-pos", "t_pos"),
        ("tct", "--t-token", "t_token"),
        ("lc", "-k", "k"),
        ("tct", "--threshold", "threshold"),
    ],
)
def test_a_parameter_given_by_policy_and_by_option_is_refused(policy, option, name):
    message = refused("sample", "--policy", f"{policy}:{name}=1", option, "1", "3 7")
    assert f"{name} is given twice" in message
    assert option in message


# --- mistakes -------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_yaml_is_named_in_one_line(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    message = refused("run", tmp_path / "bad.jsonl")
    assert message == (
        f"{tmp_path / 'bad.jsonl'}, line 2 cannot be read as YAML; fix it, or give the path of a YAML experiment file"
    )


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_folder_that_cannot_be_created_is_not_suggested(toy_tasks):
    message = refused("eval", "--tasks", "toy", "--out", "/proc/x/y")
    assert message == "cannot create /proc/x/y: its file system refuses; choose another folder (--out)"


@pytest.fixture
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_serve_on_a_taken_port_names_the_option(taken_port):
    assert f"--port {taken_port + 1}" in refused("serve", "--port", taken_port)


def test_play_on_a_taken_port_takes_the_next_free_one(taken_port, monkeypatch):
    started = []
    monkeypatch.setattr(serve, "_serve", lambda loading, options, *rest, **more: started.append(options.port))
    result = CliRunner().invoke(app, ["play", "--port", str(taken_port), "--no-browser"])
    assert result.exit_code == 0, result.output
    assert started[0] > taken_port
    assert f"port {taken_port} is in use: taking {started[0]}" in result.stderr


# --- noise ----------------------------------------------------------------------------------------------------


def test_a_log_message_is_printed_once(monkeypatch):
    lines = []
    monkeypatch.setattr(console.status, "print", lambda text, **_: lines.append(text))
    console.show_log()
    for _ in range(2):
        logging.getLogger("twotemp.engine").info("batch size %d", 64)
    assert len(lines) == 1


def test_what_torchao_logs_while_it_is_imported_is_not_printed():
    code = (
        "import logging, sys; from twotemp import cli; sys.argv = ['twotemp', '--version']\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "import torch\n"
        "for name in 'torchao', 'torch.utils._pytree': logging.getLogger(name).warning('noise')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "noise" not in done.stderr


def test_a_report_counts_ungraded_samples_only_if_there_are_any(tmp_path):
    for name, letters in (("graded", "pf"), ("one", "pu")):
        store_cell(Store.create(tmp_path / name), "lc", {"a": letters, "b": "pf"})
        CliRunner().invoke(app, ["report", str(tmp_path / name)])
    texts = [
        "\n".join((tmp_path / name / "report" / file).read_text() for file in ("report.md", "passk.tex"))
        for name in ("graded", "one")
    ]
    assert "graded and" not in texts[0]
    assert "could not be graded: 1 sample." in texts[1]
    assert "1 sample ungraded" in texts[1]


def test_of_two_versions_of_a_grader_the_newer_one_is_reported(tmp_path):
    cell = store_cell(Store.create(tmp_path / "run"), "lc", {"a": "p", "b": "p"})
    with cell.writer() as writer:
        for version in ("countdown 9", "countdown 10"):
            outcome = "failed" if version == "countdown 10" else "passed"
            writer.grades(version, [(Key(question, 0, 0), Grade(outcome)) for question in "ab"])
    (graded,) = read([tmp_path / "run"])
    assert graded.grader == "countdown 10"
    assert graded.table.correct.sum() == 0


# --- workers, memory, files from elsewhere --------------------------------------------------------------------


@pytest.mark.parametrize(("size", "count", "threads"), [(10, 1, 1), (10, 2, 1), (10**9, 1, 8), (10**9, 2, 4)])
def test_a_worker_of_a_small_model_has_one_thread(size, count, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "usable_cpus", lambda: 8)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    assert workers.threads_per_worker(str(tmp_path), count) == threads


def test_one_worker_says_that_it_has_one_thread(micro_folder, tmp_path, toy_tasks, monkeypatch):
    monkeypatch.setattr(workers, "usable_cpus", lambda: 8)
    monkeypatch.setattr(
        workers.Workload, "pool", lambda *given, **options: (_ for _ in ()).throw(UserError("started"))
    )
    asked = ["eval", "--model", str(micro_folder), "--tasks", "toy", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*asked, "--workers", "1"])
    assert "drawing with 1 worker, 1 thread each" in result.stderr


@pytest.mark.parametrize(
    ("free", "fix"),
    [
        (0.6, "--dtype bfloat16"),
        (0.45, "--quantize int8"),
        (0.01, "use a machine with more"),
    ],
)
def test_a_model_that_cannot_fit_is_refused_before_it_is_read(free, fix, micro_folder, monkeypatch):
    model = load.load(str(micro_folder))
    size = weight_loading.weight_bytes(model.module)
    if fix == "--quantize int8":  # the micro model's embedding is most of it
        monkeypatch.setattr(weight_loading, "quantized_bytes", lambda module: int(0.3 * size))
    monkeypatch.setattr(weight_loading, "free_bytes", lambda device: int(free * size))
    monkeypatch.setattr(
        "twotemp.models.weight_loading.read_tensors", lambda files: pytest.fail("weights were read")
    )
    message = refused("sample", "--model", micro_folder, "3 7")
    assert "the weights take" in message
    assert fix in message


def test_weights_in_eight_bits_are_counted_as_such():
    module = load.load("tiny").module
    whole, small = weight_loading.weight_bytes(module), weight_loading.weight_bytes(module, "int8")
    assert whole == sum(weight.numel() * 4 for weight in module.parameters())
    assert summarize("tiny").int8 == small


def test_doctor_names_every_format_that_fits(monkeypatch):
    tiny = summarize("tiny")
    monkeypatch.setattr(weight_loading, "free_bytes", lambda device: int(tiny.parameters * 2.5))
    result = CliRunner().invoke(app, ["doctor", "--model", "tiny"])
    assert "fits only in bfloat16 or int8 (quantize)" in result.stdout


def test_a_missing_tokenizer_file_is_named(micro_folder, tmp_path):
    folder = shutil.copytree(micro_folder, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    result = CliRunner().invoke(app, ["doctor", "--model", str(folder)])
    assert f"{folder} has no tokenizer.json" in result.stdout
    assert "sentencepiece" not in result.stdout


def test_trace_does_not_ask_the_hub_for_the_model_that_a_run_names(monkeypatch, capsys):
    calls = []

    def snapshot_download(name, *, local_files_only, allow_patterns, **options):
        from huggingface_hub.errors import LocalEntryNotFoundError

        calls.append((local_files_only, "*.safetensors" in allow_patterns))
        raise LocalEntryNotFoundError("not here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert trace.tokenizer_of(None, "someone/else") is None
    assert "the page shows token ids" in capsys.readouterr().err
    with pytest.raises(UserError, match="could not be downloaded from the hub"):
        trace.tokenizer_of("someone/else", None)
    assert calls == [(True, False), (False, False)], (
        "local files, unless the user names the model; never weights"
    )


def test_the_last_line_of_a_command_says_what_to_do_next(micro_folder, tmp_path, toy_tasks, monkeypatch):
    monkeypatch.setattr("twotemp.report.figures.available", lambda: False)
    run = tmp_path / "run"
    eval_ = ["eval", "--model", micro_folder, "--tasks", "toy", "--policies", "lc", "-n", 2, "--questions", 2]
    eval_ += ["--trace"]
    rows = [{"id": "toy/0", "generation": "1"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for command, last in [
        ([*eval_, "--out", run], "choose one answer from many: twotemp select"),
        (["report", run], "next: open"),
        (["regrade", run], f"next: twotemp report {run}"),
        (["export", run, tmp_path / "x.parquet"], "pandas.read_parquet"),
        (["select", run, "--by", "majority,oracle"], "next: open"),
        (["grade", tmp_path / "in.jsonl", "--task", "toy", "--out", tmp_path / "out.jsonl"], "verdicts: "),
        (["trace", run, "--out", tmp_path / "x.html"], "open it in a browser"),
        (["sample", "--model", micro_folder, "--length", 4, "3 7"], "next: "),
        (["tasks"], "next: twotemp eval"),
        (["graders"], "next: twotemp regrade"),
        (["policies"], "next: twotemp sample"),
    ]:
        result = CliRunner().invoke(app, [str(word) for word in command])
        assert result.exit_code == 0, result.output
        assert last in result.output.strip().splitlines()[-1], command
