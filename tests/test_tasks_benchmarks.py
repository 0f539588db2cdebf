"""The published benchmarks: the right rows, said so by hash; the prompts to the letter; bad files named."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import sys
from pathlib import Path

import pytest

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.tasks import data, gsm8k, humaneval, math500, mbpp

FILES = {
    "gsm8k": "gsm8k_test.jsonl",
    "math500": "math500.jsonl",
    "humaneval": "humaneval.jsonl",
    "mbpp": "mbpp.jsonl",
}
PUBLISHED = {"gsm8k": gsm8k.TEST, "math500": math500.TEST, "humaneval": humaneval.TEST, "mbpp": mbpp.TEST}


def path_of(shared: Path, name: str) -> Path:
    return shared / "data" / FILES[name]


def rows_of(shared: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in path_of(shared, name).read_text().split("\n") if line.strip()]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def row() -> dict:
    """One made-up row of GSM8K."""
    return {"question": "How many are two and three?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}


# --- the rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_published_files_load_and_are_recognised(shared: Path, name: str):
    task = tasks.get(name)
    found = task.problems(data=path_of(shared, name))
    assert len(found.problems) == PUBLISHED[name].rows
    assert found.digest == hashlib.sha256(path_of(shared, name).read_bytes()).hexdigest()
    assert found.source == FILES[name]
    assert len({p.id for p in found.problems}) == len(found.problems)
    assert {p.task for p in found.problems} == {name}
    for prompt in task.prompts:
        again = task.problems(data=path_of(shared, name), prompt=prompt)
        assert [(p.id, p.reference) for p in again.problems] == [(p.id, p.reference) for p in found.problems]
        assert all(p.prompt.strip() for p in again.problems)


@pytest.mark.parametrize("container", ["gz", "json", "parquet", "shuffled keys"])
@pytest.mark.parametrize("name", FILES)
def test_the_container_does_not_matter(shared: Path, tmp_path: Path, name: str, container: str):
    rows = rows_of(shared, name)
    if container == "gz":
        path = tmp_path / "x.jsonl.gz"
        path.write_bytes(gzip.compress(path_of(shared, name).read_bytes()))
    elif container == "json":
        path = tmp_path / "x.json"
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    elif container == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "x.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path = write(tmp_path / "x.jsonl", [dict(reversed(row.items())) | {"more": 1} for row in rows])
    task = tasks.get(name)
    found = task.problems(data=path)
    assert found.digest == PUBLISHED[name].sha256
    assert found.problems == task.problems(data=path_of(shared, name)).problems


def test_references_are_what_the_graders_read(shared: Path):
    first = {name: tasks.get(name).problems(data=path_of(shared, name)).problems[0] for name in FILES}
    assert first["gsm8k"].reference == {"answer": "18", "kind": "number"}
    assert first["gsm8k"].id == "gsm8k/test/0"
    assert first["math500"].reference == {"answer": r"\left( 3, \frac{\pi}{2} \right)", "kind": "latex"}
    assert first["math500"].id == "test/precalculus/807.json"
    row = rows_of(shared, "humaneval")[0]
    expected = {key: row[key] for key in ("prompt", "test", "entry_point")}
    assert first["humaneval"].reference == {"kind": "humaneval", **expected}
    assert first["humaneval"].id == "HumanEval/0"
    tests = rows_of(shared, "mbpp")[0]["test_list"]
    assert first["mbpp"].reference == {"kind": "mbpp", "tests": tests, "setup": "", "timeout": None}
    assert [tasks.get(name).grader for name in FILES] == ["maths", "maths", "programs", "programs"]


def test_gold_numbers_of_gsm8k_are_plain(shared: Path):
    golds = [
        p.reference["answer"] for p in tasks.get("gsm8k").problems(data=path_of(shared, "gsm8k")).problems
    ]
    assert all(float(gold) == float(gold) and "," not in gold and gold == gold.strip() for gold in golds)
    assert sum(gold.startswith("-") for gold in golds) == 2  # the two that d1's loader loses


def test_special_cases_of_mbpp(shared: Path):
    by_id = {p.id: p for p in tasks.get("mbpp").problems(data=path_of(shared, "mbpp")).problems}
    assert list(by_id) == [str(i) for i in range(11, 511)]
    assert by_id["123"].reference["timeout"] == 20
    assert [i for i, p in by_id.items() if p.reference["setup"]] == ["367"]
    for row in rows_of(shared, "mbpp"):
        name, count = mbpp.signature(row)
        assert (
            f"{name}({', '.join(f'input_param_{i + 1}' for i in range(count))}):"
            in by_id[str(row["task_id"])].prompt
        )
        assert all(test in by_id[str(row["task_id"])].prompt for test in row["test_list"])


def test_a_file_with_all_splits_of_mbpp_is_cut_to_the_test_split(shared: Path, tmp_path: Path):
    rows = rows_of(shared, "mbpp")
    others = [{**rows[0], "task_id": i} for i in (1, 10, 511, 974)]
    path = write(tmp_path / "mbpp_full.jsonl", [*others[:2], *rows, *others[2:]])
    assert tasks.get("mbpp").problems(data=path).digest == mbpp.TEST.sha256


# --- subsets --------------------------------------------------------------------------------------------------


def test_d1_subset_is_the_one_on_record(shared: Path):
    indices = json.loads((shared / "data" / "gsm8k_subset300_d1_seed42.json").read_text())["indices"]
    found = tasks.get("gsm8k").problems(data=path_of(shared, "gsm8k"), subset="d1_seed42").problems
    assert [p.id for p in found] == [f"gsm8k/test/{i}" for i in indices]
    whole = tasks.get("gsm8k").problems(data=path_of(shared, "gsm8k"), subset="full").problems
    assert found[0] == whole[677]  # the same question under the same name, whatever the subset


def test_other_subsets_of_gsm8k(shared: Path):
    task = tasks.get("gsm8k")
    whole = task.problems(data=path_of(shared, "gsm8k")).problems
    assert task.problems(data=path_of(shared, "gsm8k"), subset="first300").problems == whole[:300]
    train = task.problems(data=shared / "data" / "gsm8k_train.jsonl.gz", subset="train")
    assert len(train.problems) == 7473
    assert train.problems[0].id == "gsm8k/train/0"
    content = gzip.decompress((shared / "data" / "gsm8k_train.jsonl.gz").read_bytes())
    assert train.digest == hashlib.sha256(content).hexdigest()


def test_test_questions_do_not_pass_for_training_questions(shared: Path):
    with pytest.raises(UserError, match=r"1319 rows \(published: 7473\)"):
        tasks.get("gsm8k").problems(data=path_of(shared, "gsm8k"), subset="train")


# --- prompts --------------------------------------------------------------------------------------------------


def test_d1_prompts_to_the_letter(shared: Path):
    problem = tasks.get("gsm8k").problems(data=path_of(shared, "gsm8k"), prompt="d1").problems[0]
    start = "You are a math expert. You will be given a question to solve. Solve it step by step. "
    start += "Wrap the final answer in a "
    form = "Respond in the following format:\n<reasoning>\nYour reasoning here\n</reasoning>\n"
    form += "<answer>\n\\boxed{...}\n</answer>"
    question = rows_of(shared, "gsm8k")[0]["question"]
    assert problem.prompt == f"{start}\\boxed{{}}. \n{form}\n\n{question}"
    assert problem.prefill == "<reasoning>"
    problem = tasks.get("math500").problems(data=path_of(shared, "math500"), prompt="d1").problems[0]
    question = rows_of(shared, "math500")[0]["problem"]
    assert problem.prompt == f'{start}\\boxed{{}}.\n{form}" \n\n\n{question}'
    assert problem.prefill == "<reasoning>"


def test_other_prompts(shared: Path):
    def first(name: str, prompt: str):
        problem = tasks.get(name).problems(data=path_of(shared, name), prompt=prompt).problems[0]
        return problem, rows_of(shared, name)[0]

    problem, row = first("gsm8k", "justgrpo")
    assert (problem.prompt, problem.prefill) == (row["question"], "")
    problem, row = first("math500", "justgrpo")
    assert problem.prompt.startswith(row["problem"])
    assert r"(Please put the final answer in \boxed{} tag, i.e. $\boxed{answer here}$)" in problem.prompt
    problem, row = first("math500", "llada_oc")
    assert r"Please reason step by step, and put your final answer within \boxed{}." in problem.prompt
    problem, row = first("humaneval", "justgrpo")
    assert "complete the implementation of a function named `has_close_elements`." in problem.prompt
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
    assert ast.unparse(ast.parse(stub)).startswith("def remove_Occ(input_param_1, input_param_2):")


def test_defaults_are_the_first_names():
    assert [tasks.get(name).prompts[0] for name in FILES] == ["d1", "d1", "justgrpo", "justgrpo"]
    assert [tasks.get(name).length for name in FILES] == [256] * 4


# --- what can be wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_an_altered_row_is_noticed(shared: Path, tmp_path: Path, name: str):
    rows = rows_of(shared, name)
    field = {"gsm8k": "question", "math500": "answer", "humaneval": "test", "mbpp": "text"}[name]
    rows[7][field] += " "
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(UserError, match=r"not .* as published") as caught:
        tasks.get(name).problems(data=path)
    assert PUBLISHED[name].rows_sha256 in str(caught.value)
    assert data.digest_rows([{f: r[f] for f in PUBLISHED[name].fields} for r in rows]) in str(caught.value)
    assert "--allow-altered-data" in str(caught.value)
    allowed = tasks.get(name).problems(data=path, allow_altered=True)
    assert allowed.digest == hashlib.sha256(path.read_bytes()).hexdigest() != PUBLISHED[name].sha256
    assert allowed.source == "x.jsonl (altered)"


def test_a_shorter_file_is_noticed(shared: Path, tmp_path: Path):
    path = write(tmp_path / "x.jsonl", rows_of(shared, "math500")[:20])
    with pytest.raises(UserError, match=r"20 rows \(published: 500\)"):
        tasks.get("math500").problems(data=path)
    assert len(tasks.get("math500").problems(data=path, allow_altered=True).problems) == 20


def test_reordered_rows_are_noticed(shared: Path, tmp_path: Path):
    """Names of GSM8K's questions are their places: another order would be other questions."""
    path = write(tmp_path / "x.jsonl", rows_of(shared, "gsm8k")[::-1])
    with pytest.raises(UserError, match="as published"):
        tasks.get("gsm8k").problems(data=path)


def test_renamed_and_missing_fields_are_named(tmp_path: Path, row: dict):
    path = write(tmp_path / "x.jsonl", [row, {"problem": "?", "answer": "#### 1"}])
    with pytest.raises(
        UserError, match=r"row 2: no field question \(there are problem, answer\); use .*question, answer"
    ):
        tasks.get("gsm8k").problems(data=path)
    with pytest.raises(UserError, match="no field"):
        tasks.get("gsm8k").problems(data=path, allow_altered=True)


def test_rows_end_at_line_breaks_only(tmp_path: Path, row: dict):
    """Other characters that Unicode counts as line ends may stand inside a JSON string."""
    row["question"] = "one\u2028two\x85three"
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n")
    (problem,) = tasks.get("gsm8k").problems(data=path, prompt="justgrpo", allow_altered=True).problems
    assert problem.prompt == row["question"]


def test_repeated_names_are_refused(shared: Path, tmp_path: Path):
    rows = rows_of(shared, "humaneval")
    path = write(tmp_path / "x.jsonl", [*rows, rows[3]])
    with pytest.raises(UserError, match="rows 4 and 165 have the same task_id 'HumanEval/3'"):
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


def test_a_missing_file_and_unknown_names(tmp_path: Path, row: dict):
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


def test_without_a_network_the_message_names_the_way_out(monkeypatch: pytest.MonkeyPatch):
    def offline(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    with pytest.raises(UserError, match=r"no route to host\).*--data FILE") as caught:
        tasks.get("mbpp").problems()
    assert "test_setup_code" in str(caught.value)


def test_the_hub_file_is_asked_for_by_name_and_checked(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "test-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows_of(shared, "humaneval")), path)
    asked = []

    def hub(repo: str, file: str, repo_type: str) -> str:
        asked.append((repo, file, repo_type))
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub)
    found = tasks.get("humaneval").problems()
    assert asked == [("openai/openai_humaneval", "openai_humaneval/test-00000-of-00001.parquet", "dataset")]
    assert (found.source, found.digest) == ("openai/openai_humaneval", humaneval.TEST.sha256)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"twotemp\[analysis\]"):
        tasks.get("gsm8k").problems(data=tmp_path / "x.parquet")
