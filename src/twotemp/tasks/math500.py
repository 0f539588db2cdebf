"""MATH-500: competition problems; the answer is an expression in LaTeX."""

from __future__ import annotations

from twotemp.tasks import d1
from twotemp.tasks.data import PromptTemplate, PublishedFile, benchmark

TEST = PublishedFile(
    hub="HuggingFaceH4/MATH-500",
    file="test.jsonl",
    fields=("problem", "solution", "answer", "subject", "level", "unique_id"),
    rows=500,
    sha256="35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
    rows_sha256="f0e14f6a55023938003783525bbf1247f233aa72434e6ff701f0b5776aacafca",
    key="unique_id",
)

D1 = d1.instruction(end='" \n')  # with a stray quote, space and line break

# The text of the user's turn, and the beginning of the assistant's turn. The wording of "justgrpo" and
# "llada_oc" is theirs; the line break between question and instruction is ours.
PROMPTS: dict[str, PromptTemplate] = {
    "d1": lambda row: (f"{D1}\n\n{row['problem']}", "<reasoning>"),
    "justgrpo": lambda row: (
        f"{row['problem']}\n(Please put the final answer in \\boxed{{}} tag, i.e. $\\boxed{{answer here}}$)",
        "",
    ),
    "llada_oc": lambda row: (
        f"{row['problem']}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
        "",
    ),
}


TASK = benchmark(
    "math500",
    "competition mathematics (500 questions)",
    "maths",
    TEST,
    PROMPTS,
    lambda row: {"answer": row["answer"], "kind": "latex"},
)
