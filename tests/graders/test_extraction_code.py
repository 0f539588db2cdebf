"""Finding the program in what a model wrote: every common form, and every HumanEval reference in each of them."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable

import pytest

from tests.conftest import DataFile
from tests.helpers.benchmark_rows import MADE_UP, Row, read
from twotemp.graders.extraction import find_code

RIGHT = "def f(x): return 2 * x"
WRONG = "def f(x): return x"
LONG = "import math\n\n\ndef f(x):\n    y = 2\n\n    return y * x"
IN_LIST = textwrap.indent(LONG, "   ")


@pytest.mark.parametrize(
    ("text", "code", "rule"),
    [
        (f"Sure:\n```python\n{RIGHT}\n```\nDone.", RIGHT, "entry"),
        (f"```\n{RIGHT}\n```", RIGHT, "entry"),
        (f"```python\nf(3)\n```\nwhere\n```python\n{RIGHT}\n```", RIGHT, "entry"),
        (f"```python\n{RIGHT}\n```\n```python\n{WRONG}\n```", RIGHT, "entry"),
        (f"```python\n{RIGHT}\n", RIGHT, "entry"),
        ("```python\ng = 1\n```\n```\nh = 2\n```", "g = 1", "fence"),
        ("```bash\npip install x\n```\n```py\nh = 2\n```", "h = 2", "fence"),
        ("```py\ndef ff(x): pass", "def ff(x): pass", "open fence"),
        (f"\n{RIGHT}\n", RIGHT, "raw"),
        ("\n    return 2 * x\n", "    return 2 * x", "raw"),
        (f"{RIGHT}<|endoftext|>def f(x): pass", RIGHT, "raw"),
        (f"```python\n{RIGHT}<|eot_id|>```\n", RIGHT, "entry"),
        ("", "", "raw"),
        (f"```python\nimport math\n```\nthen\n```python\n{RIGHT}\n```", f"import math\n\n{RIGHT}", "entry"),
        # fences of other forms
        (f"````python\n{LONG}\n````", LONG, "entry"),
        (f"````markdown\nA text with\n```\nin it\n````\n```python\n{LONG}\n```", LONG, "entry"),
        (f"~~~python\n{LONG}\n~~~\nDone.", LONG, "entry"),
        (f"~~~\n{LONG}\n~~~", LONG, "entry"),
        (f'```python title="a.py"\n{LONG}\n```', LONG, "entry"),
        (f"```python {{.numberLines startFrom=1}}\n{LONG}\n```", LONG, "entry"),
        (f"```{{python}}\n{LONG}\n```", LONG, "entry"),
        (f"``` python\r\n{RIGHT}\r\n```\r\n", RIGHT, "entry"),
        (f"1. First:\n\n   ```python\n{IN_LIST}\n   ```\n\n2. Done.", LONG, "entry"),
        (f"- ```python\n{textwrap.indent(LONG, '  ')}\n  ```", LONG, "entry"),
        (f"Here it is: ```python\n{LONG}\n``` That was it.", LONG, "entry"),
        (f"```{RIGHT}```", RIGHT, "entry"),
        (f"```python {RIGHT}\n```", RIGHT, "entry"),
        (f"```python\n{RIGHT}```", RIGHT, "entry"),
        (f"```python\n{textwrap.indent(LONG, '    ')}\n```", LONG, "entry"),
        ('```python\ndef f(x):\n    return "```" * x\n```', 'def f(x):\n    return "```" * x', "entry"),
        # no fence, but sentences
        (f"Here is the function:\n\n{LONG}\n\nThis works because y is 2.", LONG, "prose"),
        (f"Solution:\n{LONG}\nExplanation:\n- It's simple, isn't it?", LONG, "prose"),
        (f"{LONG}\n\nYou can test it:\n\nprint(f(2))", LONG, "prose"),
        (f"Here you go:\n\n{textwrap.indent(LONG, '    ')}\n\nDone.", LONG, "prose"),
        # text in a string is code
        (f'"""\nThis is a doc string\n"""\n{LONG}', f'"""\nThis is a doc string\n"""\n{LONG}', "raw"),
        (
            f"{LONG}\nz = f(1) if f(2) else 'some words here'",
            f"{LONG}\nz = f(1) if f(2) else 'some words here'",
            "raw",
        ),
    ],
)
def test_find_code(text: str, code: str, rule: str) -> None:
    assert find_code(text, ("f",)) == (code, rule)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("return 2 * x", "    return 2 * x"),
        ("y = 2\nreturn y * x", "    y = 2\n    return y * x"),
        ("if x:\n    return 2 * x\nreturn 0", "    if x:\n        return 2 * x\n    return 0"),
        ("y = 2\n    return y * x", "    y = 2\n    return y * x"),
        ("for y in x:\n        y\n    return y", "    for y in x:\n        y\n    return y"),
        ("import math\nreturn math.sqrt(x)", "    import math\n    return math.sqrt(x)"),
        ("```python\ny = 2\nreturn y * x\n```", "    y = 2\n    return y * x"),
    ],
)
def test_a_body_without_its_indent(text: str, code: str) -> None:
    assert find_code(text, ("f",), body=True) == (code, "body")
    assert find_code(text, ("f",))[0] != code


@pytest.mark.parametrize("text", ["    return x", "def f(x):\n    return x", "def g(x): pass", "import math"])
def test_code_that_is_not_a_body_is_unchanged(text: str) -> None:
    assert find_code(text, ("f",), body=True) == (text, "raw")


def in_list(code: str) -> str:
    return f"1. So:\n\n   ```python\n{textwrap.indent(code, '   ')}\n   ```\n"


FORMS: dict[str, Callable[[str], str]] = {
    "in a list": in_list,
    "four backticks": lambda code: f"````python\n{code}\n````",
    "tildes": lambda code: f"~~~python\n{code}\n~~~",
    "title": lambda code: f'Look:\n```python title="a.py"\n{code}\n```\nThat is all.',
    "prose": lambda code: f"Here is the function you asked for:\n\n{code}\n\nIt does what the text says.",
    "prose, indented": lambda code: f"The code:\n\n{textwrap.indent(code, '    ')}\n\nThat is all.",
    "bare": lambda code: code,
}


def check_forms(rows: list[Row]) -> None:
    for form, written in FORMS.items():
        for row in rows:
            code = (row["prompt"] + row["canonical_solution"]).strip("\n").rstrip()
            found, _ = find_code(written(code), (row["entry_point"],), body=True)
            assert found.split() == code.split(), (form, row["task_id"])
            compile(found, row["task_id"], "exec")


def check_bodies(rows: list[Row]) -> None:
    """A body alone is indented again."""
    for row in rows:
        body = row["canonical_solution"]
        for text in (textwrap.dedent(body), body.strip(), body):
            found, _ = find_code(text, (row["entry_point"],), body=True)
            assert found.split() == body.split()
            compile(f"{row['prompt']}\n{found}", row["task_id"], "exec")


def test_references_are_found_in_every_form() -> None:
    check_forms(MADE_UP["humaneval"](3))
    check_bodies(MADE_UP["humaneval"](3))


def test_every_humaneval_reference_is_found_in_every_form(data_file: DataFile) -> None:
    rows = read(data_file("data/humaneval.jsonl"))
    check_forms(rows)
    check_bodies(rows)


@pytest.mark.parametrize(
    "text",
    ["```" * 50_000, "``` " * 50_000, "~~~ " * 50_000, "```\n" * 50_000, "```python\n", "word " * 40_000,
     "'" * 100_000, "def f(x):" * 9_000, " " * 100_000, "\n" * 100_000, "a b\n" * 40_000, '"""' * 30_000],
    ids=lambda text: repr(text[:8]),
)  # fmt: skip
def test_any_text_takes_linear_time(text: str) -> None:
    began = time.process_time()
    find_code(text, ("f",), body=True)
    assert time.process_time() - began < 2
