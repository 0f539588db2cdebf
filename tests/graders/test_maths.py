"""Extraction rules, comparison, d1's string match, hostile text, and human verdicts on real generations."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import twotemp.graders
from tests.conftest import DataFile
from twotemp.errors import UserError
from twotemp.graders import maths
from twotemp.graders.d1 import D1Grader
from twotemp.graders.extraction import final_answer
from twotemp.graders.files import grade_file
from twotemp.graders.maths import MathsGrader
from twotemp.graders.workers import Child, ChildDied
from twotemp.records import Grade, Problem


def problem(answer: str, kind: str = "number") -> Problem:
    return Problem("p", "t", "", {"answer": answer, "kind": kind})


@pytest.fixture(scope="module")
def grader() -> Iterator[MathsGrader]:
    grader = MathsGrader(workers=1)
    yield grader
    grader.close()


def grade(grader: Any, gold: str, text: str, kind: str = "number") -> Grade:
    (verdict,) = grader.grade([(problem(gold, kind), text)])
    return verdict


@pytest.mark.parametrize(
    ("text", "answer", "rule"),
    [
        (r"so \boxed{18}.", "18", "boxed"),
        (r"\fbox{18}", "18", "boxed"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed"),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right.", "boxed"),
        (r"first \boxed{0} then \boxed{120}", "120", "boxed"),
        (r"<answer>\boxed{5}</answer> \boxed{6}", "5", "boxed"),
        (r"<answer>\boxed{10}</answer> so <answer>\boxed{8}</answer>", "8", "boxed"),
        # what follows the end of the text does not count
        (r"\boxed{1}<|eot_id|>\boxed{2}", "1", "boxed"),
        (r"\boxed{1}<|endoftext|>\boxed{2}", "1", "boxed"),
        (r"\boxed{1}<|im_end|>\boxed{2}", "1", "boxed"),
        # the placeholder of the prompt, copied
        (r"it is 26 <answer>\boxed{...}</answer>", None, "none"),
        (r"\boxed{7} <answer>\boxed{\dots}</answer>", "7", "boxed"),
        (r"\boxed{}", None, "none"),
        # broken boxes
        (r"<answer>" "\n" r"\boxed{2000" "\n</answer>", "2000", "repaired"),
        (r"<answer>\boxed{23><|eot_id|>", "23", "repaired"),
        ("<answer>\nboxed{255}\n</answer>", "255", "repaired"),
        (r"\.boxed{18}", "18", "repaired"),
        ("\\boxed{\nboxed{42}\n", "42", "repaired"),
        (r"\boxed{\frac{1}{2}", r"\frac{1}{2}", "repaired"),
        (r"\boxed{\frac{1}{2", r"\frac{1}{2}", "repaired"),
        (r"\boxed{60\text{ feet>", r"60\text{ feet}", "repaired"),
        ("\\boxed{803\n}", "803", "boxed"),
        ("answer>\n\\boxed{803\n</answer}", "803", "repaired"),
        # no box
        ("<answer>\n$400\n</answer>", "400", "tagged"),
        ("<answer>78 minutes</answer>", "78 minutes", "tagged"),
        (r"<answer>\boxed{}316</answer>", "316", "tagged"),
        ("<answer>one\ntwo</answer>", None, "none"),
        ("<answer>" + "word " * 40 + "</answer>", None, "none"),
        ("The answer is 5.", None, "none"),
        ("", None, "none"),
    ],
)
def test_extraction(text: str, answer: str | None, rule: str) -> None:
    found = final_answer(text)
    assert (found.answer, found.rule) == (answer, rule)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("18", "18", True),
        ("18", "18.00", True),
        ("18", "18.01", False),
        ("-10", "-10", True),
        ("10", "-10", False),
        ("43,500", "43500", True),
        ("43500", r"43{,}500", True),
        ("43500", r"\$43,500", True),
        ("12", "1,2", False),  # a list, not a number with a comma in it
        ("45", "45 fairies", True),
        ("45", r"45\text{ fairies}", True),
        ("50", r"\text{50 apples}", True),
        ("5", "5 changes/day", True),
        ("25", r"25\%", True),
        ("800", "80000", False),  # no scaling as a percentage
        ("800", "8", False),
        ("0.5", "50%", False),
        ("2", r"\frac{2}{3}", False),
        ("15", "45/3", True),
        ("16", r"\sqrt{16}", False),
        ("4", r"\sqrt{16}", True),
        ("3", "3 or 4", False),
        ("5", "not 5", False),
        ("5", r"\text{not }5", False),
        ("5", "more than 5", False),
        ("5", "5 or more", False),
        ("5", "it is no other than five apples", False),
    ],
)
def test_numbers(grader: MathsGrader, gold: str, answer: str, right: bool) -> None:
    assert grade(grader, gold, rf"\boxed{{{answer}}}").passed is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{448}{15625}", r"\frac{2240}{78125}", True),
        ("(a+5)(b+2)", "(a + 5)(b + 2)", True),
        (r"x \in [-2,7]", "[-2, 7]", True),
        (r"15\mbox{ cm}^2", "15", True),
        ("40", "4{10}", False),
        ("1,-2", "1,3", False),
        ("5x-7y+11z+4=0", "-20x-12y-4z+16=0", False),
        (r"\text{Evelyn}", "Carla", False),
        ("256", r"\sqrt{2^{16}}", True),
        (r"\pi", r"7 = \pi", False),
        (r"\pi", r"\pi = \frac{2\pi}{2}", True),
        # What is not read as a whole is no answer, whatever parts of it are.
        (r"\frac{1}{2}", r"7 \to \frac{1}{2}", False),
        (r"\frac{1}{2}", r"\frac{1}{3} \& \frac{1}{2}", False),
        (r"\frac{1}{2}", r"\neg \frac{1}{2}", False),
        (r"\frac{1}{2}", r"\begin{cases} 7 \\ \frac{1}{2} \end{cases}", False),
        ("(1,2)", "$7$ $(1,2)$", False),
        # Very small numbers differ, too.
        (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}", False),
        (r"\frac{1}{2^{98}}", r"2^{-98}", True),
        (r"\frac{1}{2^{98}}", r"\sqrt{0}", False),
        ("2^{98}", "2^{98} + 10^{-20}", False),
        (r"\sqrt{3 + 2\sqrt{2}}", r"1 + \sqrt{2}", True),
    ],
)
def test_latex(grader: MathsGrader, gold: str, answer: str, right: bool) -> None:
    assert grade(grader, gold, rf"\boxed{{{answer}}}", "latex").passed is right


HEDGES = r"""
1 or 2 or 3|1, 2, 3|1,2,3|1;2;3|1 and 2 and 3|1 / 2 / 3|1 2 3|1-3|1...3|1 \ldots 3
1 \text{ or } 2 \text{ or } 3|\{1,2,3\}|(1,2,3)|[1,3]|(0,4)|(-\infty,\infty)|\mathbb{R}|\mathbb{N}|x|x=x|n
\infty|nan|inf|\text{nan}|\frac{0}{0}|0/0|\emptyset|\text{any}|{}|\text{}|1=2=3|x=1=y=2|x=1, x=2, x=3
x=1 \lor x=2|a=1,b=2,c=3|2 \pm 1|\pm 1|1 \approx 2|0 \le x \le 4|x>0|x \neq 0|1<2<3|1 \to 2 \to 3
\begin{pmatrix}1\\2\\3\end{pmatrix}|\begin{cases}1\\2\\3\end{cases}|\{1\}\cup\{2\}\cup\{3\}|x \in \{1,2,3\}
k \in \mathbb{Z}|2k+1|1} \boxed{2} \boxed{3|\boxed{1}\boxed{2}\boxed{3}|$1$ or $2$ or $3$
1 \text{ dogs or } 2 \text{ cats}|1 (2, 3)|one or two|one two three|\max(1,2,3)|1:2:3|1|2|\text{one of }1,2,3
1\%|100\%|at least 1|not 1|0x+1|x^0|１|②|1 \pmod 2|\top|True|f(1)=2|x \mapsto 1
"""


@pytest.mark.parametrize("kind", ["number", "latex"])
@pytest.mark.parametrize("text", [r"\boxed{%s}", "<answer>%s</answer>", r"<answer>\boxed{%s"])
def test_no_answer_is_right_for_two_questions(grader: MathsGrader, kind: str, text: str) -> None:
    """A policy trained on these verdicts would learn an answer that hedges."""
    answers = [answer for line in HEDGES.strip().splitlines() for answer in line.split("|")]
    golds = ["1", "2", "3"]
    grades = iter(grader.grade((problem(gold, kind), text % a) for a in answers for gold in golds))
    passed = {answer: [gold for gold in golds if next(grades).passed] for answer in answers}
    assert {answer: right for answer, right in passed.items() if len(right) > 1} == {}
    assert passed["2"] == ["2"]


def test_same(grader: MathsGrader) -> None:
    assert grader.same(problem("0"), "1,200", r"\$1200")
    assert grader.same(problem("0", "latex"), "0.5", r"\frac{1}{2}")
    assert grader.same(problem("0", "latex"), r"\frac{1}{2}", "0.5")
    assert grader.same(problem("0"), "20 in total", "20 dollars")
    assert not grader.same(problem("0"), "1", "2")


def test_plain_numbers_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "_math_verify_version", lambda: None)
    grader = MathsGrader(workers=1)
    assert "plain numbers only" in grader.name
    assert grade(grader, "42", r"\boxed{ 42 }").passed
    assert grade(grader, "42", r"\boxed{43}").outcome == "failed"
    with pytest.raises(UserError, match=r"pip install 'twotemp\[eval\]'"):
        grade(grader, "42", r"\boxed{40 + 2}")
    grader.close()


def test_name_has_versions(grader: MathsGrader) -> None:
    assert grader.name.startswith("maths 4 / math-verify 0.")


def test_order_and_cache(grader: MathsGrader) -> None:
    parallel = MathsGrader(workers=2)
    texts = [rf"\boxed{{{n} + {n}}}" for n in range(6)] * 3
    verdicts = list(parallel.grade((problem("4", "latex"), text) for text in texts))
    assert [verdict.passed for verdict in verdicts] == ([False, False, True, False, False, False] * 3)
    assert len(parallel._verdicts) == 6
    parallel.close()


@pytest.mark.parametrize("bomb", ["9^{9^{9^9}}", "(10^9)!", "{" * 120 + "1" + "}" * 120])
def test_bombs_run_out_of_time(grader: MathsGrader, monkeypatch: pytest.MonkeyPatch, bomb: str) -> None:
    monkeypatch.setattr(maths, "SECONDS", 1.0)
    assert grade(grader, "12", rf"\boxed{{{bomb}}}", "latex").outcome == "timeout"
    monkeypatch.undo()
    assert grade(grader, "12", r"\boxed{3 \cdot 4}", "latex").passed, "no normal answer after a bomb"


def test_memory_is_limited(grader: MathsGrader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "MEMORY", 32 << 20)  # too little even to import sympy
    small = MathsGrader(workers=1)
    verdict = grade(small, "12", r"\boxed{3 \cdot 4}", "latex")
    assert verdict.outcome == "ungraded"
    assert "twice" in verdict.detail
    small.close()


def test_an_answer_that_ends_two_workers_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong answer must not hide as `ungraded`, which is left out of every mean."""
    deaths = []
    genuine = Child.ask

    def ask(self: Child, question: bytes, seconds: float) -> dict[str, Any]:
        if b"poison" in question:
            deaths.append(question)
            raise ChildDied("killed by a test")
        return genuine(self, question, seconds)

    monkeypatch.setattr(Child, "ask", ask)
    worker = maths._VerifyWorker()
    assert worker.ask(("1", "poison")).outcome == "failed"
    assert len(deaths) == 2
    worker.close()


def test_workers_are_recycled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "RECYCLE", 1)
    worker = maths._VerifyWorker()
    children = set()
    for answer in (r"\frac{1}{2}", r"\frac{2}{4}"):
        assert worker.ask(("0.5", answer)).outcome == "passed"
        children.add(worker._child)
    worker.close()
    assert len(children) == 2


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 200_000,
        "boxed{}" * 200_000,
        "boxed{..." * 200_000,
        "<answer>" * 200_000,
        "{" * 1_000_000,
        "\\boxed{" + "}" * 1_000_000,
        "\\boxed{" + "9" * 1_000_000 + "}",
        "\\boxed{" + "a" * 1_000_000,
        "\\" * 1_000_001 + "boxed{1}",
        "\0\ud800\udfff\\boxed{\0}",
        "`" * 1_000_000,
    ],
    ids=range(11),
)
def test_hostile_text_is_read_in_linear_time(grader: MathsGrader, text: str) -> None:
    began = time.process_time()
    assert grade(grader, "12", text).outcome == "failed"
    assert grade(D1Grader(), "12", text, "latex").outcome == "failed"
    assert grade(D1Grader(), "12", text).outcome == "failed"
    assert time.process_time() - began < 10


def test_bad_references() -> None:
    with pytest.raises(UserError, match="did you mean 'latex'"):
        list(MathsGrader(workers=1).grade([(problem("1", "latx"), "")]))
    with pytest.raises(UserError, match="needs `answer`"):
        list(MathsGrader(workers=1).grade([(Problem("p", "t", ""), "")]))


def test_a_child_that_dies_or_hangs() -> None:
    child = Child(["sh", "-c", "echo '{}'; read line; echo went wrong >&2"], environment={})
    child.ready(20)
    with pytest.raises(ChildDied, match="went wrong"):
        child.ask(b"x\n", 20)
    child.close()
    child = Child(["sleep", "100"], environment={})
    with pytest.raises(TimeoutError):
        child.ask(b"x" * (1 << 20), 0.2)  # more than a pipe holds: writing must not hang either
    child.close()


def test_graders_by_name() -> None:
    assert twotemp.graders.get("d1").name == "d1 1"
    maths_grader = twotemp.graders.get("maths", workers=1)
    maths_grader.close()
    with pytest.raises(UserError, match="did you mean 'maths'"):
        twotemp.graders.get("math")


@pytest.mark.parametrize(
    ("gold", "text", "kind", "right"),
    [
        ("16200", r"\boxed{16200} \boxed{3}", "number", True),  # the first box
        ("2", r"\boxed{\frac{2}{3}}", "number", True),  # cut at the first brace
        ("43500", r"\boxed{43,500}", "number", False),  # a comma ends a number
        ("-10", r"\boxed{-10}", "number", False),  # negative golds are lost
        ("7", "<answer>5 and 7</answer>", "number", True),
        (r"\frac{1}{2}", r"\boxed{1/2}", "latex", True),
        (r"\frac{1}{2}", r"\boxed{\frac12}", "latex", True),
        (r"\frac{1}{2}", r"\boxed{0.5}", "latex", True),
        (r"\frac{1}{2}", r"\boxed{\frac{2}{4}}", "latex", False),
        ("3", r"\boxed{x=3}", "latex", True),
        (r"\sqrt{3}", r"\boxed{\sqrt3}", "latex", True),
        ("12", r"\boxed{12\text{ cm}}", "latex", True),
        ("12", r"\boxed{12", "latex", False),
    ],
)
def test_d1(gold: str, text: str, kind: str, right: bool) -> None:
    assert grade(D1Grader(), gold, text, kind).passed is right


@pytest.mark.parametrize(("name", "kind"), [("gsm8k", "number"), ("math500", "latex")])
def test_verdicts_agree_with_people_and_d1(
    data_file: DataFile, grader: MathsGrader, name: str, kind: str
) -> None:
    with gzip.open(data_file("data/llada_generations") / f"{name}.jsonl.gz", "rt") as file:
        real = [json.loads(line) for line in file]
    pairs = [(problem(row["ground_truth"], kind), row["generation"]) for row in real]
    verdicts = list(grader.grade(pairs))
    # An answer that stands only in the reasoning counts as wrong.
    errors = [
        (row["id"], row["gen_length"], row["verdict"], verdict)
        for row, verdict in zip(real, verdicts)
        if verdict.passed != (row["verdict"] == "right")
    ]
    assert errors == []
    assert all(verdict.outcome != "ungraded" for verdict in verdicts)
    assert [verdict.passed for verdict in D1Grader().grade(pairs)] == [row["d1_correct"] for row in real]


PROBLEMS = [Problem(name, "t", "", {"answer": str(n)}) for n, name in enumerate(("a", "b", "c"))]


def write(path: Path, *lines: str) -> Path:
    data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_grade_file(tmp_path: Path, suffix: str) -> None:
    source = write(
        tmp_path / f"in.jsonl{suffix}",
        r'{"id": "b", "generation": "\\boxed{1}"}',
        r'{"index": 2, "generation": "<answer>2</answer>"}',
        "",
        r'{"id": "elsewhere/0", "index": 0, "generation": "\\boxed{1}"}',
        '{"id": "a", "generation": "\udcff\udcfe"}',  # two bytes that are no UTF-8
    )
    out = tmp_path / f"out.jsonl{suffix}"
    counts = grade_file(PROBLEMS, source, out, MathsGrader(workers=1))
    assert counts == {"passed": 2, "failed": 2}
    text = (gzip.decompress(out.read_bytes()) if suffix else out.read_bytes()).decode()
    verdicts = [json.loads(line) for line in text.splitlines()]
    assert [(v["verdict"], v["answer"], v["rule"]) for v in verdicts] == [
        ("passed", "1", "boxed"),
        ("passed", "2", "tagged"),
        ("failed", "1", "boxed"),
        ("failed", None, "none"),
    ]
    assert [(v.get("id"), v.get("index")) for v in verdicts] == [
        ("b", None),
        (None, 2),
        ("elsewhere/0", 0),
        ("a", None),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a"}', "needs the text"),
        ('{"id": "a", "generation": 5}', "needs the text"),
        ("[]", "needs the text"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"generation": ""}', "needs the `id` or the `index`"),
        ('{"id": "z", "generation": ""}', "no problem has the id 'z'"),
        ('{"index": 3, "generation": ""}', "not one of the 3 problems"),
        ('{"index": -1, "generation": ""}', "not one of the 3 problems"),
    ],
)
def test_grade_file_names_the_bad_line(tmp_path: Path, line: str, message: str) -> None:
    source = write(tmp_path / "in.jsonl", '{"id": "a", "generation": ""}', line)
    with pytest.raises(UserError, match=message) as caught:
        grade_file(PROBLEMS, source, tmp_path / "out.jsonl", MathsGrader(workers=1))
    assert "in.jsonl:2" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_grade_file_cannot_read_or_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        grade_file(PROBLEMS, tmp_path / "absent.jsonl", tmp_path / "out", MathsGrader(workers=1))
    truncated = tmp_path / "cut.jsonl.gz"
    truncated.write_bytes(gzip.compress(b'{"id": "a", "generation": ""}\n' * 1000)[:40])
    with pytest.raises(UserError, match="cannot read"):
        grade_file(PROBLEMS, truncated, tmp_path / "out", MathsGrader(workers=1))
    source = write(tmp_path / "in.jsonl", '{"id": "a", "generation": ""}')
    with pytest.raises(UserError, match="cannot write"):
        grade_file(PROBLEMS, source, tmp_path / "no folder" / "out", MathsGrader(workers=1))
