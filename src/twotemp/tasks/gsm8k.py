"""GSM8K: grade-school word problems; the answer is one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.tasks.base import ProblemSet, Task
from twotemp.tasks.data import Published, Row, load_rows, pick

TEST = Published(
    hub="openai/gsm8k",
    file="main/test-00000-of-00001.parquet",
    fields=("question", "answer"),
    rows=1319,
    sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    rows_sha256="bcf98c509c975fc0fa0c7c615c6a1a6611b85b92385534672a1d6bc3a0b3faf4",
)
TRAIN = Published(
    hub="openai/gsm8k",
    file="main/train-00000-of-00001.parquet",
    fields=("question", "answer"),
    rows=7473,
    sha256="17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    rows_sha256="7872d7430bd1f3904adfb70339181a42888060d417bec111f8475c7e5ff838a1",
)

# Whitespace matters for reproduction: d1's text has a space before its first line break.
D1 = (
    "You are a math expert. You will be given a question to solve. Solve it step by step. "
    "Wrap the final answer in a \\boxed{}. \n"
    "Respond in the following format:\n"
    "<reasoning>\nYour reasoning here\n</reasoning>\n<answer>\n\\boxed{...}\n</answer>"
)

# What the user's turn says, and what the assistant's turn already starts with.
PROMPTS: dict[str, Callable[[str], tuple[str, str]]] = {
    "d1": lambda question: (f"{D1}\n\n{question}", "<reasoning>"),
    "justgrpo": lambda question: (question, ""),
}


def d1_seed42(_: int) -> Sequence[int]:
    """The 300 questions d1's loader draws with its seed; numpy's legacy stream never changes."""
    import numpy as np

    return [int(row) for row in np.random.RandomState(42).choice(TEST.rows, 300, replace=False)]


# Which rows, given how many there are.
SUBSETS: dict[str, Callable[[int], Sequence[int]]] = {
    "full": range,
    "d1_seed42": d1_seed42,
    "first300": lambda _: range(300),
    "train": range,
}


def load(
    data: Path | None = None,
    prompt: str | None = None,
    subset: str | None = None,
    allow_altered: bool = False,
) -> ProblemSet:
    template = pick("prompt of gsm8k", prompt, PROMPTS)
    rows_of = pick("subset of gsm8k", subset, SUBSETS)
    split = "train" if subset == "train" else "test"
    loaded = load_rows(TRAIN if split == "train" else TEST, data, allow_altered)
    chosen = rows_of(len(loaded.rows))
    if max(chosen) >= len(loaded.rows):
        raise UserError(
            f"subset {subset!r} needs all {TEST.rows} questions of gsm8k; the file has {len(loaded.rows)}"
        )
    problems = tuple(_problem(f"gsm8k/{split}/{i}", loaded.rows[i], template) for i in chosen)
    return ProblemSet(problems, loaded.digest, loaded.source)


def _problem(name: str, row: Row, template: Callable[[str], tuple[str, str]]) -> Problem:
    _, mark, gold = row["answer"].rpartition("####")
    if not mark:
        raise UserError(f"{name}: its answer does not end in `#### number`; use the file as published")
    prompt, prefill = template(row["question"])
    reference = {"answer": gold.strip().replace(",", ""), "kind": "number"}
    return Problem(name, "gsm8k", prompt, reference, prefill)


TASK = Task(
    name="gsm8k",
    description="grade-school word problems (1,319 questions)",
    grader="maths",
    length=256,
    load=load,
    prompts=tuple(PROMPTS),
    subsets=tuple(SUBSETS),
)
