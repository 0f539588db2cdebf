"""MATH-500: competition problems; the answer is an expression in LaTeX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twotemp.records import Problem
from twotemp.tasks.base import ProblemSet, Task
from twotemp.tasks.data import Published, load_rows, pick

TEST = Published(
    hub="HuggingFaceH4/MATH-500",
    file="test.jsonl",
    fields=("problem", "solution", "answer", "subject", "level", "unique_id"),
    rows=500,
    sha256="35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
    rows_sha256="f0e14f6a55023938003783525bbf1247f233aa72434e6ff701f0b5776aacafca",
    key="unique_id",
)

# As d1 has it, with the stray quote, space and line break at its end.
D1 = (
    "You are a math expert. You will be given a question to solve. Solve it step by step. "
    "Wrap the final answer in a \\boxed{}.\n"
    "Respond in the following format:\n"
    '<reasoning>\nYour reasoning here\n</reasoning>\n<answer>\n\\boxed{...}\n</answer>" \n'
)

# What the user's turn says, and what the assistant's turn already starts with. The wording of "justgrpo" and
# "llada_oc" is theirs; the line break between question and instruction is ours.
PROMPTS: dict[str, Callable[[str], tuple[str, str]]] = {
    "d1": lambda problem: (f"{D1}\n\n{problem}", "<reasoning>"),
    "justgrpo": lambda problem: (
        f"{problem}\n(Please put the final answer in \\boxed{{}} tag, i.e. $\\boxed{{answer here}}$)",
        "",
    ),
    "llada_oc": lambda problem: (
        f"{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
        "",
    ),
}


def load(
    data: Path | None = None,
    prompt: str | None = None,
    subset: str | None = None,
    allow_altered: bool = False,
) -> ProblemSet:
    template = pick("prompt of math500", prompt, PROMPTS)
    pick("subset of math500", subset, {"full": None})
    loaded = load_rows(TEST, data, allow_altered)
    problems = []
    for row in loaded.rows:
        text, prefill = template(row["problem"])
        reference = {"answer": row["answer"], "kind": "latex"}
        problems.append(Problem(row["unique_id"], "math500", text, reference, prefill))
    return ProblemSet(tuple(problems), loaded.digest, loaded.source)


TASK = Task(
    name="math500",
    description="competition mathematics (500 questions)",
    grader="maths",
    length=256,
    load=load,
    prompts=tuple(PROMPTS),
    subsets=("full",),
)
