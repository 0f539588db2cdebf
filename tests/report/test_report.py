"""Tables, figures and pages say what the data say, and only that."""

from __future__ import annotations

import csv
import errno
import io
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.graded_cells import graded, spread, store_cell
from twotemp.errors import UserError
from twotemp.policies import PRESETS, parse
from twotemp.report import figures, style, tables, write
from twotemp.store import Store

SIX = ("ar", "lc", "random", "tlc", "ct", "tct")

# --- tables ---------------------------------------------------------------------------------------------------


def test_markdown_has_means_intervals_and_the_best_in_bold():
    always, never, half = graded("tlc", [8] * 100), graded("lc", [0] * 100), graded("ar", [8, 0] * 50)
    rows = tables.markdown([half, never, always], [1, 8]).splitlines()
    assert rows[0].split("|")[1:-1] == [
        f" {name} " for name in ("Dataset", "Method", "NFE", "forwards", "n", "k = 1", "k = 8")
    ]
    ar, lc, tlc = ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:])
    assert ar[:5] == ["countdown-3", "Autoregressive", "30.0", "30.0", "8"]
    assert re.fullmatch(r"0\.0 \(0\.0–[34]\.\d\)", lc[5])
    assert tlc[:2] == ["", "TLC (t_pos=1)"]
    assert re.fullmatch(r"\*\*100\.0 \(9[67]\.\d–100\.0\)\*\*", tlc[5])
    mean, low, high = map(float, re.fullmatch(r"([\d.]+) \(([\d.]+)–([\d.]+)\)", ar[5]).groups())
    # A question is right with 1/2: the mean of a hundred has a standard error of 0.5 / 10.
    assert mean == 50
    assert [low, high] == pytest.approx([50 - 9.8, 50 + 9.8], abs=1)


def test_ties_are_all_best_and_too_few_questions_have_no_interval():
    text = tables.markdown([graded("ar", [0, 0]), graded("lc", [0, 0])], [1])
    assert text.count("**0.0**") == 2


def test_only_means_over_the_same_questions_compete_for_the_best():
    whole, part = graded("ar", [4] * 12), graded("lc", [8] * 9)
    text = tables.markdown([whole, part], [1])
    assert "**" not in text
    assert "100.0 (9 questions)" in text
    assert tables.markdown([whole, graded("lc", [8] * 12)], [1]).count("**100.0") == 1


def test_fewer_samples_are_a_dash_and_fewer_questions_are_noted():
    short = graded("lc", [1, 2, 3, 4], n=4)
    holes = graded("ar", [4, 4, 4, 4], n=[8, 8, 8, 7], ungraded=1)
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
    assert "maths_grader" not in tables.latex([replace(graded("ar", [1]), grader="maths_grader")], [1])


def test_latex_reads_the_name_of_a_plug_ins_policy():
    one = graded("tlc", [3] * 12)
    named = replace(one, config=replace(one.config, policy=replace(one.policy, name="my_policy#2")))
    assert r"& my\_policy\#2 &" in tables.latex([named], [1])
    assert r"& \textbf{TLC} ($T_\mathrm{pos}=1$) &" in tables.latex([one], [1])


def test_csv_has_every_number_in_full():
    one = graded("tct:t_pos=0.25", [1, 5, 8])
    rows = list(csv.DictReader(io.StringIO(tables.as_csv([one], [1, 2, 8]))))
    assert [int(row["k"]) for row in rows] == [1, 2, 8]
    assert [float(row["pass"]) for row in rows] == pytest.approx(
        [one.curve.mean[k - 1] for k in (1, 2, 8)], rel=1e-5
    )
    assert {(row["policy"], row["t_pos"], row["n"], row["ungraded"]) for row in rows} == {
        ("tct", "0.25", "8", "0")
    }
    assert float(rows[0]["tokens_per_forward"]) == pytest.approx(12 / 7, rel=1e-5)


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
def test_a_figure_is_drawn_if_there_is_data_for_it(tmp_path, monkeypatch, data, names):
    monkeypatch.setattr(figures, "FORMATS", ("png",))  # the other one is slow
    drawn = figures.draw(data, tmp_path)
    assert {one.name for one in drawn} == names
    for one in drawn:
        assert one.path.read_bytes().startswith(b"\x89PNG")


def test_the_curves_are_the_tables_numbers():
    data = spread(("ar", "tct"))
    with figures.styled():
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


def test_every_policy_has_a_style_and_the_papers_six_differ():
    looks = {name: style.line(preset.policy) for name, preset in PRESETS.items()}
    assert len({looks[name]["color"] for name in SIX}) == 6
    assert len({(v["color"], v["marker"], v["linestyle"]) for v in looks.values()}) == len(PRESETS)


def test_labels_distinguish_policies():
    assert style.label(parse("tct:threshold=0.7"), plain=True) == "TCT (threshold=0.7, t_pos=0.1)"
    assert style.label(parse("tlc:t_pos=inf")) == r"TLC ($T_\mathrm{pos}=\infty$)"
    assert style.label(parse("ar:t_token=0.5"), hide=("t_token",)) == "Autoregressive"
    specs = ("tlc", "tlc:t_pos=2", "tlc:k=2", "lc", "lc:t_token=1", "lc:eos=last", "random")
    for plain in (True, False):
        assert len({style.label(parse(spec), plain=plain) for spec in specs}) == len(specs)


# --- the whole ------------------------------------------------------------------------------------------------


def test_the_page_embeds_the_figures_and_describes_the_measurement(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FORMATS", ("png",))
    data = spread(SIX, ("countdown-3", "gsm8k"))
    data = [replace(one, table=replace(one.table, ungraded=2)) for one in data]
    made = write(data, tmp_path / "report")
    page = made.path.read_text()
    for one in made.figures:
        assert f"({one.path.name})" in page
    for sentence in made.sentences:
        assert sentence in page
    assert "grader countdown 1" in page
    assert "could not be graded: 24 samples." in page
    assert {"passk.md", "passk.csv", "passk.tex", "report.md"} <= {p.name for p in made.path.parent.iterdir()}


def test_a_k_that_no_cell_reaches_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"pass@16 needs 16 graded samples per question and the run has 8.*-n 16"
    ):
        write(spread(("ar", "lc")), tmp_path / "report", [1, 16])
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("ks", [[0, 1], [-1]])
def test_a_wrong_k_is_refused(tmp_path, ks):
    """Not: the last column of the curve, under another name."""
    with pytest.raises(UserError, match="k must be integers >= 1"):
        write([graded("tlc", [4, 4])], tmp_path, ks)


def test_numbers_of_questions_are_given_as_a_range(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)
    page = write([graded("lc", [4] * 3), graded("tlc", [4] * 4), graded("ar", [4] * 5)], tmp_path)
    assert "countdown-3: 3–5 questions" in page.path.read_text("utf-8")


def test_gaps_stand_at_the_top_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)
    page = write(spread(("ar", "lc")), tmp_path, gaps=["the cell x is damaged"]).path.read_text()
    assert page.index("the cell x is damaged") < page.index(
        "## What it shows" if "## What" in page else "## pass@k"
    )


def test_without_matplotlib_there_are_tables_and_a_note(tmp_path):
    """As a user without it sees it: in an interpreter that cannot import it."""
    store = Store.create(tmp_path / "run")
    for spec in ("lc", "tlc"):
        store_cell(store, spec, {f"q{i}": "pf" for i in range(12)})
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from importlib import util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest)\n"
        f"sys.argv = ['twotemp', 'report', {str(tmp_path / 'run')!r}]\n"
        "from twotemp.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run" / "report"
    assert {"passk.md", "passk.csv", "passk.tex", "report.md"} <= {p.name for p in folder.iterdir()}
    for text in (done.stderr, (folder / "report.md").read_text()):
        assert "pip install 'twotemp[plots]'" in " ".join(text.split())


def test_a_folder_that_cannot_be_written_is_an_error_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file.out"):
        write(spread(("ar", "lc")), tmp_path / "file" / "out")


def test_a_full_disk_is_an_error_with_the_folders_name(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figures, "available", lambda: False)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"cannot write .*report: No space left"):
        write(spread(("ar", "lc")), tmp_path / "report")


def test_ticks_of_a_cost_axis_stand_side_by_side():
    """Costs within one decade, where matplotlib would also label the minor ticks."""
    cells = [graded(spec, [2] * 12, n=2, cost=cost) for spec, cost in (("ar", 30), ("ct", 20), ("tct", 17))]
    with figures.styled():
        figure, _ = figures.wall_clock(cells)
        figure.canvas.draw()
        for axis in figure.axes:
            labels = axis.xaxis.get_ticklabels(which="both")
            boxes = [label.get_window_extent() for label in labels if label.get_text()]
            inside = [b for b in boxes if axis.bbox.x0 <= (b.x0 + b.x1) / 2 <= axis.bbox.x1]
            visible = sorted(inside, key=lambda box: box.x0)
            assert len(visible) >= 2
            assert all(a.x1 < b.x0 for a, b in pairwise(visible))


@pytest.mark.parametrize(
    ("samples", "labels"), [(16, "1 2 4 8 16"), (19, "1 2 4 8 19"), (30, "1 2 4 8 16 30")]
)
def test_tick_labels_of_k_do_not_overlap(samples, labels):
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    figures.power_ticks(axis, [graded("lc", [samples] * 4, n=samples)])
    assert " ".join(label.get_text() for label in axis.get_xticklabels()) == labels
