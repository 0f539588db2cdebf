"""How far a running evaluation is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twotemp.records import Grade, Sample

if TYPE_CHECKING:
    from twotemp.evaluation.lanes import Lane, Missing
    from twotemp.evaluation.plan import Plan


@dataclass(frozen=True)
class Progress:
    """A running evaluation at one moment; `passed` counts (right, graded) by policy."""

    samples: int
    all_samples: int
    questions: int
    all_questions: int
    passed: Mapping[str, tuple[int, int]] = field(default_factory=dict)


Watch = Callable[[Progress], None]


class Counter:
    """Keeps the numbers of `Progress`; what earlier runs stored counts, too."""

    def __init__(self, plan: Plan, lanes: Sequence[Lane], missing: Missing, watch: Watch | None) -> None:
        self._watch = watch
        self._left = {
            (loaded, question): len(todo)
            for loaded, by_question in missing.items()
            for question, todo in by_question.items()
        }
        self._all_samples = len(self._left) * plan.n * len(plan.policies)
        self._passed = {lane.name: [0, 0] for lane in lanes}
        for lane in lanes:
            before = lane.cell.grades(lane.loaded.grader.name)
            self._count(lane, (grade for key, grade in before.items() if key.request in lane.loaded.problems))
        self._tell()

    def drawn(self, lane: Lane, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self._left[lane.loaded, sample.request] -= 1
        self._tell()

    def graded(self, lane: Lane, grades: Iterable[Grade]) -> None:
        self._count(lane, grades)
        self._tell()

    def _count(self, lane: Lane, grades: Iterable[Grade]) -> None:
        for grade in grades:
            if grade.outcome != "ungraded":
                self._passed[lane.name][0] += grade.passed
                self._passed[lane.name][1] += 1

    def _tell(self) -> None:
        if self._watch is None:
            return
        left = list(self._left.values())
        self._watch(
            Progress(
                samples=self._all_samples - sum(left),
                all_samples=self._all_samples,
                questions=left.count(0),
                all_questions=len(left),
                passed={name: (right, total) for name, (right, total) in self._passed.items()},
            )
        )
