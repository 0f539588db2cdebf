"""GSM8K: grade-school word problems; the answer is one number."""

from __future__ import annotations

from dataclasses import replace

from twotemp.errors import UserError
from twotemp.tasks import d1
from twotemp.tasks.data import DataRow, PromptTemplate, PublishedFile, Subset, benchmark

TEST = PublishedFile(
    hub="openai/gsm8k",
    file="main/test-00000-of-00001.parquet",
    fields=("question", "answer"),
    rows=1319,
    sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    rows_sha256="bcf98c509c975fc0fa0c7c615c6a1a6611b85b92385534672a1d6bc3a0b3faf4",
)
TRAIN = replace(
    TEST,
    file="main/train-00000-of-00001.parquet",
    split="train",
    rows=7473,
    sha256="17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    rows_sha256="7872d7430bd1f3904adfb70339181a42888060d417bec111f8475c7e5ff838a1",
)

D1 = d1.instruction(gap=" ")

# The text of the user's turn, and the beginning of the assistant's turn.
PROMPTS: dict[str, PromptTemplate] = {
    "d1": lambda row: (f"{D1}\n\n{row['question']}", "<reasoning>"),
    "justgrpo": lambda row: (row["question"], ""),
}


def _reference(row: DataRow) -> dict[str, str]:
    _, mark, gold = row["answer"].rpartition("####")
    if not mark:
        raise UserError(
            f"gsm8k: the answer to {row['question'][:60]!r} does not end in `#### number`; use the file as published"
        )
    return {"answer": gold.strip().replace(",", ""), "kind": "number"}


TASK = benchmark(
    "gsm8k",
    "grade-school word problems (1,319 questions)",
    "maths",
    TEST,
    PROMPTS,
    _reference,
    subsets={
        "full": Subset(TEST),
        "d1_seed42": Subset(TEST, lambda _: d1.seed42(TEST.rows)),
        "first300": Subset(TEST, lambda _: range(300)),
        "train": Subset(TRAIN),
    },
)
