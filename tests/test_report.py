"""Tables, figures and sentences say what the data say, and only that."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from twotemp.report.series import Series, k_grid

from twotemp.errors import UserError
from twotemp.policies import PRESETS, parse
from twotemp.records import Grade, Sample
from twotemp.report import figures, findings, read, style, tables, write
from twotemp.store import Config, Key, Store

SIX = ("ar", "lc", "random", "tlc", "ct", "tct")
COSTS = {"ar": 30.0, "lc": 32.0, "random": 32.0, "tlc": 32.0, "ct": 8.0, "tct": 7.0}


def series(spec: str, correct, n: int = 8, model: str = "tiny", task: str = "countdown-3") -> Series:
    """Questions with these numbers of right samples out of n."""
    policy, right = parse(spec), np.asarray(correct)
    cost = tuple(np.full(n, COSTS.get(policy.name, 16.0)) for _ in right)
    return Series(
        model=model,
        task=task,
        policy=policy,
        grader="countdown 1",
        length=12,
        block=None,
        questions=tuple(f"{task}/{i}" for i in range(len(right))),
        n=np.full(len(right), n),
        correct=right,
        nfe=cost,
        forwards=cost,
        seconds=tuple(c / 100 for c in cost),
        tokens=tuple(np.full(n, 12) for _ in right),
    )


def spread(specs, tasks=("countdown-3",), models=("tiny",), questions: int = 12) -> list[Series]:
    """A little of everything: numbers that differ from one series to the next."""
    rng = np.random.default_rng(0)
    return [
        series(spec, rng.integers(0, 9, questions), model=model, task=task)
        for model in models
        for task in tasks
        for spec in specs
    ]


# --- from the store -------------------------------------------------------------------------------------------


def store_cell(store: Store, spec: str, verdicts: dict[str, str], task: str = "countdown-3"):
    """A cell whose questions have one sample a letter: p(assed), f(ailed), u(ngraded), w(aiting)."""
    policy = parse(spec)
    config = Config(task, "digest", "", None, "tiny", "mark", policy, 4, None, 0, version="1")
    cell = store.cell(f"{task}@{spec}", config)
    outcomes = {"p": "passed", "f": "failed", "u": "ungraded"}
    with cell.writer() as writer:
        for question, letters in verdicts.items():
            samples = [
                Sample(question, i, 0, policy, (1,), (1, 2), (5, 6), 3 + i, 4 + i, 9, 0.5, "length", "x")
                for i in range(len(letters))
            ]
            writer.samples(samples)
            judged = [(Key.of(s), Grade(outcomes[v])) for s, v in zip(samples, letters) if v in outcomes]  # type: ignore[arg-type]
            writer.grades("countdown 1", judged)
    return cell


def test_a_series_is_what_the_store_holds(tmp_path):
    store_cell(Store.create(tmp_path / "run"), "tlc", {"a": "pf", "b": "ffuw", "c": "pp"})
    (one,) = read([tmp_path / "run"])
    assert (one.questions, list(one.n), list(one.correct)) == (("a", "b", "c"), [2, 2, 2], [1, 0, 2])
    assert (one.ungraded, one.pending, one.grader) == (1, 1, "countdown 1")
    np.testing.assert_allclose(one.curve.mean, [0.5, 2 / 3])
    assert (one.cost("nfe"), one.cost("forwards"), one.cost("seconds")) == (3.5, 4.5, 0.5)
    assert one.tokens_per_forward == pytest.approx(2 / 4.5)


def test_order_is_tasks_then_policies_then_their_numbers(tmp_path):
    store = Store.create(tmp_path / "run")
    for spec in ("tlc", "tlc:t_pos=0.5", "random", "ar", "ct", "lc"):
        for task in ("words-2", "countdown-3"):
            store_cell(store, spec, {"a": "p"}, task)
    found = [(s.task, s.policy.name, s.policy.t_pos) for s in read([tmp_path / "run"])]
    policies = [("ar", 0.0), ("lc", 0.0), ("random", inf), ("tlc", 0.5), ("tlc", 1.0), ("ct", 0.0)]
    assert found == [(task, *p) for task in ("countdown-3", "words-2") for p in policies]


def test_the_same_cell_in_two_runs_is_refused(tmp_path):
    for name in ("one", "two"):
        store_cell(Store.create(tmp_path / name), "tlc", {"a": "p"})
    with pytest.raises(UserError, match=r"both hold tiny, countdown-3, tlc; report them apart"):
        read([tmp_path / "one", tmp_path / "two"])


def test_a_run_without_grades_says_what_to_do(tmp_path):
    Store.create(tmp_path / "run")
    with pytest.raises(UserError, match=r"twotemp eval.*twotemp regrade"):
        read([tmp_path / "run"])


# --- tables ---------------------------------------------------------------------------------------------------


def test_k_grid_is_the_papers():
    assert k_grid([series("ar", [1], n=64)]) == [1, 2, 4, 8, 16, 32, 64]
    assert k_grid([series("ar", [1], n=96)]) == [1, 2, 4, 8, 16, 32, 64, 96]
    assert k_grid([series("ar", [1], n=1)]) == [1]


def test_markdown_has_means_half_widths_and_the_best_in_bold():
    always, never, half = series("tlc", [8] * 5), series("lc", [0] * 5), series("ar", [8, 0] * 50)
    rows = tables.markdown([half, never, always], [1, 8]).splitlines()
    assert rows[0].split("|")[1:-1] == [
        f" {name} " for name in ("Dataset", "Method", "NFE", "forwards", "n", "k = 1", "k = 8")
    ]
    ar, lc, tlc = ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:])
    assert ar[:5] == ["countdown-3", "Autoregressive", "30.0", "30.0", "8"]
    assert lc[5:] == ["0.0 ± 0.0", "0.0 ± 0.0"]
    assert tlc[:2] == ["", "TLC (t_pos=1)"]
    assert tlc[5:] == ["**100.0 ± 0.0**", "**100.0 ± 0.0**"]
    mean, half_width = map(float, re.fullmatch(r"([\d.]+) ± ([\d.]+)", ar[5]).groups())
    # A question is right with 1/2: the mean of a hundred has a standard error of 0.5 / 10.
    assert mean == 50
    assert half_width == pytest.approx(9.8, rel=0.1)


def test_ties_are_all_best_and_a_lone_zero_is_the_best_there_is():
    text = tables.markdown([series("ar", [0, 0]), series("lc", [0, 0])], [1])
    assert text.count("**0.0 ± 0.0**") == 2


def test_fewer_samples_are_a_dash_and_fewer_questions_are_said():
    short = series("lc", [1, 2, 3, 4], n=4)
    holes = replace(series("ar", [4, 4, 4, 4]), n=np.array([8, 8, 8, 7]), ungraded=1)
    text = tables.markdown([holes, short], [4, 8])
    assert text.splitlines()[3].rstrip(" |").endswith("–")
    assert "(3 questions)" in text.splitlines()[2]
    assert "8 (1 ungraded)" in text
    assert "--" in tables.latex([holes, short], [4, 8]).splitlines()[-4]


def test_latex_rows_have_as_many_cells_as_columns():
    text = tables.latex(spread(SIX, ("countdown-3", "words-2"), ("tiny", "tiny-ar")), [1, 4, 8])
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1]
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(body) == 1 + 24
    assert all(line.count("&") == len(columns) - 1 for line in body)
    assert text.count(r"\textit{tiny") == 2
    assert text.count(r"\multirow{6}{*}{countdown-3}") == 2
    assert "maths_grader" not in tables.latex([replace(series("ar", [1]), grader="maths_grader")], [1])


def test_csv_has_every_number_in_full():
    one = series("tct:t_pos=0.25", [1, 5, 8])
    rows = list(csv.DictReader(io.StringIO(tables.as_csv([one], [1, 2, 8]))))
    assert [int(row["k"]) for row in rows] == [1, 2, 8]
    assert [float(row["pass"]) for row in rows] == pytest.approx(
        [one.curve.mean[k - 1] for k in (1, 2, 8)], rel=1e-5
    )
    assert {(row["policy"], row["t_pos"], row["n"], row["ungraded"]) for row in rows} == {
        ("tct", "0.25", "8", "0")
    }
    assert float(rows[0]["tokens_per_forward"]) == pytest.approx(12 / 7, rel=1e-5)


# --- sentences ------------------------------------------------------------------------------------------------


def test_a_clear_difference_is_said_with_its_sign():
    better, worse = series("tlc", [8] * 20), series("lc", [0] * 10 + [8] * 10)
    (found,) = findings.compare([worse, better])
    assert (found.mean, found.low > 0) == (50.0, True)
    assert "TLC (t_pos=1) solves 50.0 points more than Low confidence" in found.sentence
    (found,) = findings.compare([replace(worse, policy=better.policy), replace(better, policy=worse.policy)])
    assert "TLC (t_pos=1) solves 50.0 points fewer than Low confidence" in found.sentence


def test_no_difference_is_claimed_that_could_be_chance():
    rng = np.random.default_rng(0)
    noise = [series(spec, rng.integers(0, 2, 40) * 8) for spec in ("lc", "tlc")]
    (found,) = findings.compare(noise)
    assert found.low < 0 < found.high
    assert "cannot be told apart" in found.sentence


def test_differences_are_paired():
    """Questions differ far more than the policies do: only pairing sees the difference."""
    base = np.array([0, 8] * 30)
    gain = base.copy()
    gain[0:16:2] = 8
    first, second = series("tlc", gain), series("lc", base)
    (found,) = findings.compare([second, first])
    assert found.low > 0
    assert first.curve.low[-1] < second.curve.high[-1], "the unpaired intervals overlap"


def test_at_equal_cost_the_cheaper_policy_has_more_samples():
    ar, tct = series("ar", [2] * 10), series("tct", [2] * 10)
    cheap, found = findings.compare([ar, tct])
    # For one AR sample (30 NFE) there are 30 / 7 = 4.29 TCT samples.
    for_one = tct.passes[0, 3] + (30 / 7 - 4) * (tct.passes[0, 4] - tct.passes[0, 3])
    assert cheap.mean == pytest.approx(100 * (for_one - ar.passes[0, 0]))
    assert cheap.where == "for the NFE of one Autoregressive sample (30)"
    # 8 TCT samples cost 56 NFE; for them AR buys 56 / 30 = 1.87 samples.
    bought = ar.passes[0, 0] + (56 / 30 - 1) * (ar.passes[0, 1] - ar.passes[0, 0])
    assert found.mean == pytest.approx(100 * (tct.passes[0, 7] - bought))
    assert found.where == "for equal NFE (56 a question)"


def test_tasks_are_pooled_by_question_and_listed_apart():
    data = [
        series("lc", [0] * 10),
        series("tlc", [8] * 10),
        series("lc", [0] * 30, task="words-2"),
        series("tlc", [0] * 30, task="words-2"),
    ]
    (found,) = findings.compare(data)
    assert found.mean == 25.0
    assert found.tasks == (("countdown-3", 100.0), ("words-2", 0.0))


# --- figures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (spread(SIX), {"pass_at_k", "pass_at_nfe", "wall_clock"}),
        (spread(("ar", "lc")), {"pass_at_k"}),
        (spread(("ar", "ct")), {"pass_at_nfe", "wall_clock"}),
        (spread(("tlc",)), set()),
        (spread(("lc", "tlc:t_pos=0.5", "tlc:t_pos=2")), {"pass_at_k", "t_pos"}),
        (spread(("tct:t_pos=0.5", "tct:t_pos=0.1")), {"t_pos"}),
        (
            spread(("ar:t_token=0.5", "ar:t_token=1", "tlc:t_token=0.5", "tlc:t_token=1")),
            {"pass_at_k", "t_token"},
        ),
        (spread(("ar", "tlc"), models=("tiny", "org/LLaDA-8B")), {"pass_at_k", "models"}),
        (spread(("margin", "entropy", "klass")), {"pass_at_k"}),
    ],
    ids=lambda value: "+".join(sorted(value)) or "none" if isinstance(value, set) else "",
)
def test_a_figure_is_drawn_where_there_is_data_for_it(tmp_path, monkeypatch, data, names):
    monkeypatch.setattr(figures, "FORMATS", ("png",))  # the other one is slow
    drawn = figures.draw(data, tmp_path)
    assert {one.name for one in drawn} == names
    for one in drawn:
        assert one.path.read_bytes().startswith(b"\x89PNG")


def test_the_curves_are_the_tables_numbers():
    data = spread(("ar", "tct"))
    with figures.look():
        figure, _ = figures.pass_at_nfe(data)
    top, bottom = figure.axes
    for one, above, below in zip(data, top.lines, bottom.lines):
        np.testing.assert_allclose(above.get_ydata(), 100 * one.curve.mean)
        np.testing.assert_allclose(below.get_ydata(), 100 * one.curve.mean)
        np.testing.assert_allclose(above.get_xdata(), np.arange(1, 9))
        np.testing.assert_allclose(below.get_xdata(), np.arange(1, 9) * one.cost("nfe"))


def test_the_callers_matplotlib_settings_are_left_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    (drawn,) = figures.draw(spread(("ar", "lc")), tmp_path)
    assert dict(matplotlib.rcParams) == before
    assert drawn.path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_every_policy_has_a_look_and_the_papers_six_differ():
    looks = {name: style.line(preset.policy) for name, preset in PRESETS.items()}
    assert len({looks[name]["color"] for name in SIX}) == 6
    assert len({(v["color"], v["marker"], v["linestyle"]) for v in looks.values()}) == len(PRESETS)


def test_labels_say_what_tells_policies_apart():
    assert style.label(parse("tct:threshold=0.7"), plain=True) == "TCT (threshold=0.7, t_pos=0.1)"
    assert style.label(parse("tlc:t_pos=inf")) == r"TLC ($T_\mathrm{pos}=\infty$)"
    assert style.label(parse("ar:t_token=0.5"), hide=("t_token",)) == "Autoregressive"
    specs = ("tlc", "tlc:t_pos=2", "tlc:k=2", "lc", "lc:t_token=1", "lc:eos=last", "random")
    for plain in (True, False):
        assert len({style.label(parse(spec), plain=plain) for spec in specs}) == len(specs)


# --- the whole ------------------------------------------------------------------------------------------------


def test_the_page_embeds_what_was_drawn_and_says_how_it_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FORMATS", ("png",))
    data = [replace(s, ungraded=2, pending=1) for s in spread(SIX, ("countdown-3", "gsm8k"))]
    made = write(data, tmp_path / "report")
    page = made.path.read_text()
    for one in made.figures:
        assert f"({one.path.name})" in page
    for found in made.findings:
        assert found.sentence in page
    assert "grader countdown 1" in page
    assert "24 samples could not be graded" in page
    assert "12 samples are not graded yet: `twotemp regrade RUN`" in page
    assert {"passk.md", "passk.csv", "passk.tex", "report.md"} <= {p.name for p in made.path.parent.iterdir()}


def test_a_k_beyond_every_series_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"pass@16 needs 16 graded samples a question and the run has 8.*-n 16"
    ):
        write(spread(("ar", "lc")), tmp_path / "report", [1, 16])
    assert not (tmp_path / "report").exists()
