"""`tune --at diversity`: the rule on known texts and probabilities, and a run from the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from twotemp import metrics
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.evaluation import TaskChoice
from twotemp.policies import parse, policy, spell
from twotemp.records import Policy, Sample, Trace
from twotemp.report.tuning_diversity import recommendation
from twotemp.store import Store
from twotemp.tasks import SOURCES
from twotemp.tuning.diversity import DiversityGoal, TunedDiversity, standings, starting_policy

START, HOT, WILD = policy("lc"), policy("tlc", t_pos=0.5), policy("tlc", t_pos=5.0)


def sample(chosen: Policy, prompt: str, index: int, text: str, confidence: Sequence[float]) -> Sample:
    count = len(confidence)
    trace = Trace(tuple(range(count)), tuple(confidence), (0.0,) * count)
    tokens = tuple(range(10, 10 + count))
    steps, end = (count, count, count, 0.0), "length"
    at = tuple(range(2, 2 + count))
    return Sample(prompt, index, 0, chosen, (1, 2), at, tokens, *steps, end, text=text, trace=trace)


def drawn(
    chosen: Policy, texts: Sequence[str], confidence: float, prompts: int = 12
) -> dict[str, list[Sample]]:
    return {
        f"p{n}": [sample(chosen, f"p{n}", i, text, [confidence] * 3) for i, text in enumerate(texts)]
        for n in range(prompts)
    }


def choose(margin: float) -> list:
    pools = [
        drawn(START, ["a b c", "a b c", "a b d"], 0.9),
        drawn(HOT, ["a b c", "a d c", "e b d"], 0.9 * math.exp(-0.05)),
        drawn(WILD, ["a b c", "d e f", "g h i"], 0.9 * math.exp(-0.5)),
    ]
    return standings([START, HOT, WILD], pools, margin)


def test_the_most_diverse_candidate_within_the_margin_is_chosen():
    """A wider margin admits the wildest one, and none leaves the start."""
    assert [row.candidate for row in choose(0.1)] == [HOT, START, WILD]
    assert choose(1.0)[0].candidate == WILD
    assert choose(0.0)[0].candidate == START
    hot, start, wild = choose(0.1)
    assert [row.qualifies for row in (hot, start, wild)] == [True, True, False]
    assert wild.diversity[0] == 1.0 > hot.diversity[0] > start.diversity[0]
    assert hot.better[0] == pytest.approx(-0.05)
    assert start.better == start.more_diverse == (0.0, 0.0, 0.0)
    assert start.quality == pytest.approx(math.log(0.9))


def test_a_loss_that_could_exceed_the_margin_disqualifies():
    """The mean loss is within the margin, but not the lower end of its interval over prompts."""
    pool = drawn(HOT, ["a b c", "d e f", "g h i"], 0.9)
    for n, samples in enumerate(pool.values()):
        if n % 4 == 0:
            samples[:] = [
                sample(HOT, s.request, s.index, s.text, [0.9 * math.exp(-0.36)] * 3) for s in samples
            ]
    start, hot = standings([START, HOT], [drawn(START, ["a", "a", "b"], 0.9), pool], 0.1)
    assert start.candidate == START
    assert -0.1 < hot.better[0] < 0
    assert not hot.qualifies


def test_the_recommendation_says_when_the_start_stays():
    tuned = TunedDiversity(DiversityGoal(3, 0.0), TaskChoice("prompts"), "m", 1.0, 12, START, choose(0.0))
    assert recommendation(tuned).startswith("Stay with lc: of 2 other candidates none is more diverse")


def test_padding_is_left_out_of_the_losses():
    one = sample(START, "p", 0, "x", [0.5, 0.25, 0.1, 0.1])
    padded = [
        metrics.token_losses(Sample(**{**vars(one), "tokens": tokens}))
        for tokens in ((1, 2, 9, 9), (1, 9, 9, 9), (9, 9, 9, 9), (1, 2, 3, 4))
    ]
    assert [len(losses) for losses in padded] == [3, 2, 1, 4]
    assert padded[1] == pytest.approx([-math.log(0.5), -math.log(0.25)])


def test_goals_and_starts():
    assert DiversityGoal.parse("diversity", 0.1) == DiversityGoal(8, 0.1)
    assert str(DiversityGoal.parse("Diversity@16", 0.2)) == "diversity@16"
    assert DiversityGoal.parse("pass@16", 0.1) is None
    with pytest.raises(UserError, match="at least 2"):
        DiversityGoal.parse("diversity@1", 0.1)
    assert starting_policy("tlc:t_pos=0.5|1,t_token=0.8|1") == parse("tlc:t_pos=0.5,t_token=0.8")


@pytest.mark.parametrize("name", ["tiny", "tiny-uniform"])
def test_from_the_command_line(tmp_path: Path, name: str):
    """The numbers are those of the stored samples, and the same command changes nothing."""
    prompts = tmp_path / "prompts.txt"
    texts = [problem.prompt for problem in SOURCES["countdown-3"].task().problems().problems[:6]]
    prompts.write_text("\n".join(texts))
    out = tmp_path / "run"
    words = f"tune --model {name} --task prompts --data prompts={prompts} --at diversity@4 --length 12 --json".split()
    words += ["--policies", "lc:k=1,tlc:t_token=0.8,k=1,t_pos=0.5|2", "--out", str(out), "--margin", "0.3"]
    words[words.index("lc:k=1,tlc:t_token=0.8,k=1,t_pos=0.5|2")] = (
        "lc:t_token=0.8,k=1;tlc:t_token=0.8,k=1,t_pos=0.5|2"
    )
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["candidate"] for row in rows} == {"lc", "tlc:t_pos=0.5", "tlc:t_pos=2"}
    for cell in Store.open(out).cells():
        (row,) = (row for row in rows if row["candidate"] == spell(cell.config.policy))
        groups = [
            [s for s in cell.samples() if s.request == key] for key in {s.request for s in cell.samples()}
        ]
        assert len(groups) == 6
        distances = [metrics.overlap_distance([s.text for s in group]) for group in groups]
        assert row["diversity"][0] == pytest.approx(sum(distances) / 6)
        means = [sum(sum(metrics.token_losses(s)) for s in group) / sum(len(metrics.token_losses(s)) for s in group)
                 for group in groups]  # fmt: skip
        assert row["quality"] == pytest.approx(-sum(means) / 6)
    best = next(row for row in rows if row["qualifies"])
    assert best is rows[0]
    assert best["diversity"][0] == max(row["diversity"][0] for row in rows if row["qualifies"])
    listed = yaml.safe_load((out / "tuned.yaml").read_text())["policies"]
    assert listed == list(dict.fromkeys([best["candidate"], "lc"]))
    assert "report RUN --diversity" in " ".join(done.stderr.split())
    again = CliRunner().invoke(app, words)
    assert [json.loads(line) for line in again.stdout.splitlines()] == rows


def test_what_cannot_be_combined_is_refused(tmp_path: Path):
    words = [
        "tune",
        "--task",
        "countdown-3",
        "--at",
        "diversity",
        "--policies",
        "lc",
        "--out",
        str(tmp_path / "run"),
    ]
    for option, message in (
        ("--portfolio", "single policies"),
        ("--budget=10", "budget of 10 NFE is too small"),
    ):
        done = CliRunner().invoke(app, [*words, option])
        assert isinstance(done.exception, UserError), done.output
        assert message in str(done.exception)
