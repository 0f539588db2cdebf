"""HumanEval: complete a Python function from its signature and docstring; judged by running its tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twotemp.records import Problem
from twotemp.tasks.base import ProblemSet, Task
from twotemp.tasks.data import Published, Row, load_rows, pick

TEST = Published(
    hub="openai/openai_humaneval",
    file="openai_humaneval/test-00000-of-00001.parquet",
    fields=("task_id", "prompt", "canonical_solution", "test", "entry_point"),
    rows=164,
    sha256="1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
    rows_sha256="d369e2ad2e20ddd08a512d9633718b08100772f7caac340eb26a74213f591130",
    key="task_id",
)


def _justgrpo(row: Row) -> tuple[str, str]:
    return (
        "You are an expert Python programmer. Your task is to complete the implementation of a function named "
        f"`{row['entry_point']}`.\n\nHere is the function to complete:\n```python\n{row['prompt']}```\n"
    ), ""


def _dream_lmeval(row: Row) -> tuple[str, str]:
    return (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{row['prompt']}```\n"
    ), f"Here is the completed function:\n```python\n{row['prompt']}"


# What the user's turn says, and what the assistant's turn already starts with. The wording is that of the projects
# named; line breaks and fences between the pieces are ours.
PROMPTS: dict[str, Callable[[Row], tuple[str, str]]] = {
    "justgrpo": _justgrpo,
    "llada_oc": lambda row: (f"Complete the following python code:\n{row['prompt']}", ""),
    "dream_lmeval": _dream_lmeval,
}


def load(
    data: Path | None = None,
    prompt: str | None = None,
    subset: str | None = None,
    allow_altered: bool = False,
) -> ProblemSet:
    template = pick("prompt of humaneval", prompt, PROMPTS)
    pick("subset of humaneval", subset, {"full": None})
    loaded = load_rows(TEST, data, allow_altered)
    problems = []
    for row in loaded.rows:
        text, prefill = template(row)
        reference = {"kind": "humaneval", **{name: row[name] for name in ("prompt", "test", "entry_point")}}
        problems.append(Problem(row["task_id"], "humaneval", text, reference, prefill))
    return ProblemSet(tuple(problems), loaded.digest, loaded.source)


TASK = Task(
    name="humaneval",
    description="complete a Python function (164 problems)",
    grader="programs",
    length=256,
    load=load,
    prompts=tuple(PROMPTS),
    subsets=("full",),
)
