"""The registry of tasks: problems and prompt templates by name. A new task is a file and a line here."""

from __future__ import annotations

from twotemp.errors import unknown
from twotemp.tasks import countdown, gsm8k, humaneval, math500, mbpp, programs, words
from twotemp.tasks.base import ProblemSet, Task
from twotemp.tasks.generated import Source

__all__ = ["BENCHMARKS", "SOURCES", "TASKS", "ProblemSet", "Task", "get"]

SOURCES: dict[str, Source] = {
    source.name: source for source in (*countdown.SOURCES, *words.SOURCES, *programs.SOURCES)
}

# Tasks whose problems are published files: local, or downloaded.
BENCHMARKS: dict[str, Task] = {
    task.name: task for task in (gsm8k.TASK, math500.TASK, humaneval.TASK, mbpp.TASK)
}

TASKS: dict[str, Task] = {
    **BENCHMARKS,
    **{name: source.task() for name, source in SOURCES.items()},
}


def get(name: str) -> Task:
    """Return the task of this name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
