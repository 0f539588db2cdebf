"""The report about samples without verdicts, from a file of prompts to its table."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from twotemp import metrics, tasks
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.report.diversity import measure, on_frontier
from twotemp.store import Store

POLICIES = "lc,tlc:t_pos=1"


def twotemp(*arguments: str) -> str:
    ran = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_prompts_without_answers_are_sampled_and_compared(tmp_path: Path) -> None:
    """The numbers of the table are those of the stored texts; order changes them, seeds are told."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("3 7 12 -> 33\n\n20 10 15 -> 45\n3 7 12 -> 33\n")
    run = tmp_path / "run"
    options = ("--tasks", "prompts", "--data", f"prompts={prompts}", "--policies", POLICIES, "-n", "4")
    twotemp("eval", *options, "--length", "12", "--trace", "--out", str(run))
    shown = twotemp("report", str(run), "--diversity")
    assert shown == twotemp("report", str(run))
    assert "prompts: 2 prompts, the first 4 samples of each" in shown
    rows = list(csv.DictReader((run / "report" / "diversity.csv").open()))
    for one in measure([run]):
        by_prompt: dict[str, list[str]] = {}
        for sample in one.cell.samples():
            by_prompt.setdefault(sample.request, []).append(sample.text)
        bleu = sum(map(metrics.self_bleu, by_prompt.values())) / 2
        (row,) = (
            r
            for r in rows
            if float(r["t_pos"]) == one.cell.config.policy.t_pos and r["measure"] == "self-BLEU"
        )
        assert float(row["mean"]) == pytest.approx(bleu, rel=1e-4)
        assert float(row["perplexity"]) >= 1
        assert (row["seed"], row["n"], row["nfe"]) == ("0", "4", "12")
    assert len(Store.open(run).cells()) == 2
    sure, other = sorted(measure([run]), key=lambda one: one.perplexity)
    assert on_frontier(sure, [sure, other])
    assert not on_frontier(replace(sure, perplexity=99), [sure, replace(sure, perplexity=98)])
    assert on_frontier(replace(sure, cell=other.cell), [sure])


def test_errors_name_the_missing_file_prompt_or_option(tmp_path: Path) -> None:
    task = tasks.get("prompts")
    with pytest.raises(UserError, match="--data prompts=FILE"):
        task.problems()
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="has no prompt"):
        task.problems(data=tmp_path / "empty")
    with pytest.raises(UserError, match="cannot be read"):
        task.problems(data=tmp_path / "nothing")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("3 7 12 -> 33\n")
    run = str(tmp_path / "run")
    options = ("--tasks", "prompts", "--data", f"prompts={prompts}", "--policies", "lc", "--length", "12")
    twotemp("eval", *options, "-n", "1", "--out", run)
    with pytest.raises(UserError, match="draw more with -n"):
        measure([Path(run)])
