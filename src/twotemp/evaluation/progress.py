"""How far a running evaluation is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from twotemp.records import Grade


@dataclass(frozen=True)
class Progress:
    """A running evaluation at one moment; `passed` counts (right, graded) by policy."""

    samples: int
    all_samples: int
    questions: int
    all_questions: int
    passed: Mapping[str, tuple[int, int]] = field(default_factory=dict)


Watch = Callable[[Progress], None]
Question = tuple[str, str]  # its task, its id


class Counter:
    """Keeps the numbers of `Progress`. Drawing and grading tell it from two threads; `watch` is called by one at a
    time."""

    def __init__(
        self, left: Mapping[Question, int], all_samples: int, policies: Iterable[str], watch: Watch | None
    ) -> None:
        """left: samples to draw of every question, those with none included."""
        self._left, self._all_samples, self._watch = dict(left), all_samples, watch
        self._passed = {name: [0, 0] for name in policies}
        self._lock = Lock()

    def drawn(self, questions: Iterable[Question]) -> None:
        with self._lock:
            for question in questions:
                self._left[question] -= 1
            self._tell()

    def graded(self, policy: str, grades: Iterable[Grade]) -> None:
        with self._lock:
            for grade in grades:
                if grade.outcome != "ungraded":
                    self._passed[policy][0] += grade.passed
                    self._passed[policy][1] += 1
            self._tell()

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
