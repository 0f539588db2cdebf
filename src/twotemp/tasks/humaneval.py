"""HumanEval: complete a Python function from its signature and docstring; graded by running its tests."""

from __future__ import annotations

from twotemp.tasks.data import DataRow, PromptTemplate, PublishedFile, benchmark

TEST = PublishedFile(
    hub="openai/openai_humaneval",
    file="openai_humaneval/test-00000-of-00001.parquet",
    fields=("task_id", "prompt", "canonical_solution", "test", "entry_point"),
    rows=164,
    sha256="1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
    rows_sha256="d369e2ad2e20ddd08a512d9633718b08100772f7caac340eb26a74213f591130",
    key="task_id",
)


def _justgrpo(row: DataRow) -> tuple[str, str]:
    return (
        "You are an expert Python programmer. Your task is to complete the implementation of a function named "
        f"`{row['entry_point']}`.\n\nHere is the function to complete:\n```python\n{row['prompt']}```\n"
    ), ""


def _dream_lmeval(row: DataRow) -> tuple[str, str]:
    return (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{row['prompt']}```\n"
    ), f"Here is the completed function:\n```python\n{row['prompt']}"


# The text of the user's turn, and the beginning of the assistant's turn. The wording is that of the projects
# named; line breaks and fences between the pieces are ours.
PROMPTS: dict[str, PromptTemplate] = {
    "justgrpo": _justgrpo,
    "llada_oc": lambda row: (f"Complete the following python code:\n{row['prompt']}", ""),
    "dream_lmeval": _dream_lmeval,
}


TASK = benchmark(
    "humaneval",
    "complete a Python function (164 problems)",
    "programs",
    TEST,
    PROMPTS,
    lambda row: {"kind": "humaneval", **{name: row[name] for name in ("prompt", "test", "entry_point")}},
)
