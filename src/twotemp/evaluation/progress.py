"""Report the progress of a running evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from twotemp.records import Grade


@dataclass(frozen=True)
class Progress:
    """A snapshot of a running evaluation; `passed` counts (right, graded) by policy."""

    samples: int
    all_samples: int
    questions: int
    all_questions: int
    passed: Mapping[str, tuple[int, int]] = field(default_factory=dict)


ProgressCallback = Callable[[Progress], None]
QuestionKey = tuple[str, str]  # task, problem id


class ProgressCounter:
    """Counts samples for `Progress`. Drawing and grading call it from two threads; calls of `watch` never overlap."""

    def __init__(
        self,
        left: Mapping[QuestionKey, int],
        all_samples: int,
        policies: Iterable[str],
        watch: ProgressCallback | None,
    ) -> None:
        """Start counting.

        Args:
            left: Samples to draw of every question, including those with none.
            all_samples: Samples of the whole run, including those of earlier runs.
            policies: Names of the policies.
            watch: Called with every change.
        """
        self._left, self._all_samples, self._watch = dict(left), all_samples, watch
        self._passed = {name: [0, 0] for name in policies}
        self._lock = Lock()

    def drawn(self, questions: Iterable[QuestionKey]) -> None:
        """Count a sample for each of these questions."""
        with self._lock:
            for question in questions:
                self._left[question] -= 1
            self._notify()

    def graded(self, policy: str, grades: Iterable[Grade]) -> None:
        """Count the grades of samples of a policy."""
        with self._lock:
            for grade in grades:
                if grade.outcome != "ungraded":
                    self._passed[policy][0] += grade.passed
                    self._passed[policy][1] += 1
            self._notify()

    def _notify(self) -> None:
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
