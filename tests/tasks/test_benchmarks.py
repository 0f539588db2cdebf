"""Benchmarks: the published rows, checked by hash; prompts to the letter; errors that name a bad file."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DataFile
from tests.helpers.benchmark_rows import MADE_UP, Row, read, write
from twotemp import tasks
from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.tasks import benchmarks, data

PUBLISHED = {name: getattr(benchmarks, name.upper()) for name in ("gsm8k", "math500", "humaneval", "mbpp")}
FILES = {name: f"{name}_test.jsonl" if name == "gsm8k" else f"{name}.jsonl" for name in PUBLISHED}
CONTAINERS = ("gz", "json", "parquet", "shuffled keys")


def as_published(name: str, rows: list[Row]) -> data.Published:
    """The benchmark's record, as if these rows were all its authors published."""
    return replace(PUBLISHED[name], rows=len(rows), sha256="0" * 64, rows_sha256=data.digest_rows(rows))


def contain(folder: Path, rows: list[Row], container: str) -> Path:
    """The rows in a file of another kind."""
    if container == "gz":
        path = folder / "x.jsonl.gz"
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    elif container == "json":
        path = folder / "x.json"
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    elif container == "parquet":
        pa = pytest.importorskip("pyarrow", reason="needs the extra: pip install 'twotemp[analysis]'")
        from pyarrow.parquet import write_table

        path = folder / "x.parquet"
        write_table(pa.Table.from_pylist(rows), path)
    else:
        path = write(folder / "x.jsonl", [dict(reversed(row.items())) | {"more": 1} for row in rows])
    return path


def problems(folder: Path, name: str, rows: list[Row], **options: Any) -> tuple[Problem, ...]:
    path = write(folder / "rows.jsonl", rows)
    return tasks.get(name).problems(data=path, allow_altered=True, **options).problems


@pytest.fixture
def row() -> Row:
    """One made-up row of GSM8K."""
    return {"question": "How many are two and three?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}


# --- the rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_published_files_load_and_are_recognised(data_file: DataFile, tmp_path: Path, name: str):
    """In every container, under every prompt; what is special about one benchmark's rows is checked with it."""
    task, path = tasks.get(name), data_file(f"data/{FILES[name]}")
    found, rows = task.problems(data=path), read(path)
    assert len(found.problems) == PUBLISHED[name].rows
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.source == FILES[name]
    assert len({p.id for p in found.problems}) == len(found.problems)
    assert {p.task for p in found.problems} == {name}
    for prompt in task.prompts:
        again = task.problems(data=path, prompt=prompt)
        assert [(p.id, p.reference) for p in again.problems] == [(p.id, p.reference) for p in found.problems]
        assert all(p.prompt.strip() for p in again.problems)
    for container in CONTAINERS:
        again = task.problems(data=contain(tmp_path, rows, container))
        assert again.digest == PUBLISHED[name].sha256
        assert again.problems == found.problems
    {"gsm8k": real_gsm8k, "mbpp": real_mbpp}.get(name, lambda *_: None)(found.problems, rows)
    first = {
        "gsm8k": ("gsm8k/test/0", {"answer": "18", "kind": "number"}),
        "math500": (
            "test/precalculus/807.json",
            {"answer": r"\left( 3, \frac{\pi}{2} \right)", "kind": "latex"},
        ),
        "humaneval": (
            "HumanEval/0",
            {"kind": "humaneval", **{key: rows[0].get(key) for key in ("prompt", "test", "entry_point")}},
        ),
        "mbpp": ("11", {"kind": "mbpp", "tests": rows[0].get("test_list"), "setup": "", "timeout": None}),
    }
    assert (found.problems[0].id, found.problems[0].reference) == first[name]


def real_gsm8k(found: tuple[Problem, ...], _: list[Row]) -> None:
    golds = [problem.reference["answer"] for problem in found]
    assert all(float(gold) == float(gold) and "," not in gold and gold == gold.strip() for gold in golds)
    assert sum(gold.startswith("-") for gold in golds) == 2  # the two that d1's loader loses


def real_mbpp(found: tuple[Problem, ...], rows: list[Row]) -> None:
    by_id = {problem.id: problem for problem in found}
    assert list(by_id) == [str(i) for i in range(11, 511)]
    assert by_id["123"].reference["timeout"] == 20
    assert [i for i, p in by_id.items() if p.reference["setup"]] == ["367"]
    for row in rows:
        name, count = benchmarks.mbpp_signature(row)
        prompt = by_id[str(row["task_id"])].prompt
        assert f"{name}({', '.join(f'input_param_{i + 1}' for i in range(count))}):" in prompt
        assert all(test in prompt for test in row["test_list"])


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", FILES)
def test_the_container_does_not_matter(tmp_path: Path, name: str, container: str):
    rows = MADE_UP[name](5)
    found = data.load_rows(as_published(name, rows), contain(tmp_path, rows, container))
    assert (found.digest, found.rows) == ("0" * 64, rows)


def test_references_are_what_the_graders_read(tmp_path: Path):
    first = {name: problems(tmp_path, name, MADE_UP[name](2))[1] for name in FILES}
    assert first["gsm8k"].reference == {"answer": "4", "kind": "number"}
    assert first["gsm8k"].id == "gsm8k/test/1"
    assert first["math500"].reference == {"answer": r"\frac{1}{7}", "kind": "latex"}
    assert first["math500"].id == "test/algebra/1.json"
    row = MADE_UP["humaneval"](2)[1]
    expected = {key: row[key] for key in ("prompt", "test", "entry_point")}
    assert first["humaneval"].reference == {"kind": "humaneval", **expected}
    assert first["humaneval"].id == "HumanEval/1"
    tests = MADE_UP["mbpp"](2)[1]["test_list"]
    assert first["mbpp"].reference == {"kind": "mbpp", "tests": tests, "setup": "", "timeout": None}
    assert [tasks.get(name).grader for name in FILES] == ["maths", "maths", "programs", "programs"]


def test_gold_numbers_are_plain(tmp_path: Path):
    rows = [{"question": "?", "answer": f"#### {gold}"} for gold in ("1,234", "-5", " 7 ")]
    assert [p.reference["answer"] for p in problems(tmp_path, "gsm8k", rows)] == ["1234", "-5", "7"]


def test_a_file_with_all_splits_of_mbpp_is_cut_to_the_test_split(tmp_path: Path):
    rows = MADE_UP["mbpp"](3)
    others = [{**rows[0], "task_id": i} for i in (1, 10, 511, 974)]
    path = write(tmp_path / "mbpp_full.jsonl", [*others[:2], *rows, *others[2:]])
    assert data.load_rows(as_published("mbpp", rows), path).rows == rows


# --- subsets --------------------------------------------------------------------------------------------------


def test_d1_subset_is_the_one_on_record(tmp_path: Path):
    """What `np.random.seed(42); np.random.choice(1319, 300, replace=False)` gave when d1 was run."""
    rows = MADE_UP["gsm8k"](benchmarks.GSM8K.rows)
    found = problems(tmp_path, "gsm8k", rows, subset="d1_seed42")
    places = [int(p.id.removeprefix("gsm8k/test/")) for p in found]
    assert (places[:5], len(places)) == ([677, 1046, 610, 49, 1284], 300)
    assert hashlib.sha256(json.dumps(places).encode()).hexdigest() == (
        "1f01a923b18c8ae0eb17d1ba21b2b5c520f5a0b403b00b8c90a1cb3f08271c7f"
    )
    whole = problems(tmp_path, "gsm8k", rows, subset="full")
    assert found[0] == whole[677]  # the same question under the same name, whatever the subset
    assert problems(tmp_path, "gsm8k", rows, subset="first300") == whole[:300]


def test_training_questions(data_file: DataFile):
    path = data_file("data/gsm8k_train.jsonl.gz")
    train = tasks.get("gsm8k").problems(data=path, subset="train")
    assert len(train.problems) == 7473
    assert train.problems[0].id == "gsm8k/train/0"
    assert train.digest == hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()


def test_test_questions_do_not_pass_for_training_questions(tmp_path: Path):
    path = write(tmp_path / "x.jsonl", MADE_UP["gsm8k"](benchmarks.GSM8K.rows))
    with pytest.raises(UserError, match=r"1319 rows \(published: 7473\)"):
        tasks.get("gsm8k").problems(data=path, subset="train")


# --- prompts --------------------------------------------------------------------------------------------------


def test_d1_prompts_to_the_letter(tmp_path: Path):
    start = "You are a math expert. You will be given a question to solve. Solve it step by step. "
    start += "Wrap the final answer in a "
    form = "Respond in the following format:\n<reasoning>\nYour reasoning here\n</reasoning>\n"
    form += "<answer>\n\\boxed{...}\n</answer>"
    (row,) = MADE_UP["gsm8k"](1)
    (problem,) = problems(tmp_path, "gsm8k", [row], prompt="d1")
    assert problem.prompt == f"{start}\\boxed{{}}. \n{form}\n\n{row['question']}"
    assert problem.prefill == "<reasoning>"
    (row,) = MADE_UP["math500"](1)
    (problem,) = problems(tmp_path, "math500", [row], prompt="d1")
    assert problem.prompt == f'{start}\\boxed{{}}.\n{form}" \n\n\n{row["problem"]}'
    assert problem.prefill == "<reasoning>"


def test_prompt_variants_are_those_of_their_papers(tmp_path: Path):
    def first(name: str, prompt: str):
        rows = MADE_UP[name](1)
        return problems(tmp_path, name, rows, prompt=prompt)[0], rows[0]

    problem, row = first("gsm8k", "justgrpo")
    assert (problem.prompt, problem.prefill) == (row["question"], "")
    problem, row = first("math500", "justgrpo")
    assert problem.prompt.startswith(row["problem"])
    assert r"(Please put the final answer in \boxed{} tag, i.e. $\boxed{answer here}$)" in problem.prompt
    problem, row = first("math500", "llada_oc")
    assert r"Please reason step by step, and put your final answer within \boxed{}." in problem.prompt
    problem, row = first("humaneval", "justgrpo")
    assert "complete the implementation of a function named `add_0`." in problem.prompt
    assert f"```python\n{row['prompt']}```" in problem.prompt
    problem, row = first("humaneval", "llada_oc")
    assert problem.prompt == "Complete the following python code:\n" + row["prompt"]
    problem, row = first("humaneval", "dream_lmeval")
    assert problem.prefill == "Here is the completed function:\n```python\n" + row["prompt"]
    problem, row = first("mbpp", "justgrpo")
    assert "** TARGET FUNCTION **\n" + row["text"] in problem.prompt
    assert (
        "** UNIT TESTS **\nYour code should pass unit tests like:\n" + row["test_list"][0] in problem.prompt
    )
    stub = problem.prompt.split("```python\n")[1].split("```")[0]
    assert ast.unparse(ast.parse(stub)).startswith("def scale_0(input_param_1, input_param_2):")


def test_defaults_are_the_first_names():
    assert [tasks.get(name).prompts[0] for name in FILES] == ["d1", "d1", "justgrpo", "justgrpo"]
    assert [tasks.get(name).length for name in FILES] == [256] * 4


# --- what can be wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_an_altered_row_is_noticed(tmp_path: Path, name: str):
    rows = MADE_UP[name](9)
    published = as_published(name, rows)
    field = {"gsm8k": "question", "math500": "answer", "humaneval": "test", "mbpp": "text"}[name]
    rows[7][field] += " "
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(UserError, match=r"not .* as published") as caught:
        data.load_rows(published, path)
    assert published.rows_sha256 in str(caught.value)
    assert data.digest_rows(rows) in str(caught.value)
    assert "--allow-altered-data" in str(caught.value)
    allowed = data.load_rows(published, path, allow_altered=True)
    assert allowed.digest == hashlib.sha256(path.read_bytes()).hexdigest() != published.sha256
    assert allowed.source == "x.jsonl (altered)"


def test_rows_that_are_not_the_published_ones_are_noticed(tmp_path: Path):
    """By the tasks themselves, which know the published hash; allowed, they load."""
    path = write(tmp_path / "x.jsonl", MADE_UP["math500"](20))
    with pytest.raises(UserError, match=r"20 rows \(published: 500\)"):
        tasks.get("math500").problems(data=path)
    assert len(tasks.get("math500").problems(data=path, allow_altered=True).problems) == 20


def test_reordered_rows_are_noticed(tmp_path: Path):
    """Names of GSM8K's questions are their places: another order would be other questions."""
    rows = MADE_UP["gsm8k"](6)
    path = write(tmp_path / "x.jsonl", rows[::-1])
    with pytest.raises(UserError, match="as published"):
        data.load_rows(as_published("gsm8k", rows), path)


def test_renamed_and_missing_fields_are_named(tmp_path: Path, row: Row):
    path = write(tmp_path / "x.jsonl", [row, {"problem": "?", "answer": "#### 1"}])
    with pytest.raises(
        UserError, match=r"row 2: no field question \(there are problem, answer\); use .*question, answer"
    ):
        tasks.get("gsm8k").problems(data=path)
    with pytest.raises(UserError, match="no field"):
        tasks.get("gsm8k").problems(data=path, allow_altered=True)


def test_rows_end_at_line_breaks_only(tmp_path: Path, row: Row):
    """Other characters that Unicode counts as line ends may stand inside a JSON string."""
    row["question"] = "one\u2028two\x85three"
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n")
    (problem,) = tasks.get("gsm8k").problems(data=path, prompt="justgrpo", allow_altered=True).problems
    assert problem.prompt == row["question"]


def test_repeated_names_are_refused(tmp_path: Path):
    rows = MADE_UP["humaneval"](5)
    path = write(tmp_path / "x.jsonl", [*rows, rows[3]])
    with pytest.raises(UserError, match="rows 4 and 6 have the same task_id 'HumanEval/3'"):
        tasks.get("humaneval").problems(data=path, allow_altered=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"", "is empty"),
        ("x.jsonl", b"{", "cannot be read"),
        ("x.jsonl", b"[1, 2]", "row 1: not a JSON object"),
        ("x.jsonl", b"\xff\xfe", "cannot be read"),
        ("x.jsonl.gz", b"not gzip", "cannot be read"),
        ("x.parquet", b"not parquet", "cannot be read"),
        ("x.jsonl", b'{"question": "?", "answer": "five"}', "#### number"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        tasks.get("gsm8k").problems(data=tmp_path / name, allow_altered=True)


def test_a_missing_file_and_unknown_names(tmp_path: Path, row: Row):
    with pytest.raises(UserError, match=r"there is no data file .*--data"):
        tasks.get("gsm8k").problems(data=tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="unknown prompt of gsm8k 'justgrop'; did you mean 'justgrpo'"):
        tasks.get("gsm8k").problems(prompt="justgrop")
    with pytest.raises(UserError, match="unknown subset of gsm8k 'first30'; did you mean 'first300'"):
        tasks.get("gsm8k").problems(subset="first30")
    for name in ("math500", "humaneval", "mbpp"):
        with pytest.raises(UserError, match=f"unknown subset of {name}"):
            tasks.get(name).problems(subset="first300")
    with pytest.raises(UserError, match="unknown task 'gsm8'; did you mean 'gsm8k'"):
        tasks.get("gsm8")
    path = write(tmp_path / "x.jsonl", [row])
    with pytest.raises(UserError, match="needs all 1319 questions of gsm8k; the file has 1"):
        tasks.get("gsm8k").problems(data=path, subset="first300", allow_altered=True)
    with pytest.raises(UserError, match="give it with --data"):
        tasks.get("gsm8k").problems(allow_altered=True)


def test_without_a_network_the_message_names_the_alternative(monkeypatch: pytest.MonkeyPatch):
    def offline(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    with pytest.raises(UserError, match=r"no route to host\).*--data FILE") as caught:
        tasks.get("mbpp").problems()
    assert "test_setup_code" in str(caught.value)


def test_the_hub_file_is_asked_for_by_name_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = MADE_UP["humaneval"](4)
    path = contain(tmp_path, rows, "parquet")
    asked = []

    def hub(repo: str, file: str, repo_type: str) -> str:
        asked.append((repo, file, repo_type))
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub)
    found = data.load_rows(as_published("humaneval", rows), None)
    assert asked == [("openai/openai_humaneval", "openai_humaneval/test-00000-of-00001.parquet", "dataset")]
    assert (found.source, found.digest) == ("openai/openai_humaneval", "0" * 64)
    with pytest.raises(UserError, match=r"4 rows \(published: 164\)"):
        tasks.get("humaneval").problems()


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"twotemp\[analysis\]"):
        tasks.get("gsm8k").problems(data=tmp_path / "x.parquet")
