"""Tasks by name. A new one is a definition in a module of this package and a line here."""

from twotemp.tasks import countdown, programs, prompts, words
from twotemp.tasks.base import TASKS, ProblemSet, Source, Task, get
from twotemp.tasks.benchmarks import BENCHMARKS
from twotemp.tasks.more_benchmarks import MORE_BENCHMARKS

__all__ = ["BENCHMARKS", "SOURCES", "TASKS", "ProblemSet", "Task", "get"]

SOURCES: dict[str, Source] = {
    source.name: source for source in (*countdown.SOURCES, *words.SOURCES, *programs.SOURCES)
}
BENCHMARKS |= {task.name: task for task in MORE_BENCHMARKS}
TASKS |= (
    BENCHMARKS | {prompts.TASK.name: prompts.TASK} | {name: source.task() for name, source in SOURCES.items()}
)
