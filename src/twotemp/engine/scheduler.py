"""Which request goes where and when: a queue and slots. Plain Python, so refilling is tested without torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from twotemp.errors import UserError

T = TypeVar("T")


class Scheduler(Generic[T]):
    """Rows waiting and rows in the batch. A slot that becomes free is refilled at once."""

    def __init__(self, waiting: Iterable[T], slots: int) -> None:
        if slots < 1:
            raise ValueError("a batch needs at least one slot")
        self.waiting = deque(waiting)
        self.slots = slots
        self.running: list[T] = []

    def fill(self) -> list[T]:
        """Rows to append, as many as there are free slots; slot i of the batch is `running[i]`."""
        new = [self.waiting.popleft() for _ in range(min(self.slots - len(self.running), len(self.waiting)))]
        self.running += new
        return new

    def finish(self, slots: Iterable[int]) -> tuple[list[T], dict[int, T], list[int]]:
        """Take finished rows out. Returns (finished, slot -> the row that now stands there, slots to drop).

        Slots are refilled in place while rows wait; after that the batch shrinks.
        """
        finished, refilled, dropped = [], {}, []
        for slot in sorted(slots):
            finished.append(self.running[slot])
            if self.waiting:
                refilled[slot] = self.running[slot] = self.waiting.popleft()
            else:
                dropped.append(slot)
        for slot in reversed(dropped):
            del self.running[slot]
        return finished, refilled, dropped

    def halve(self) -> list[int]:
        """Send half of the rows back to the queue, for good; the slots to drop. One row cannot be halved."""
        if len(self.running) == 1:
            raise UserError(
                "one row alone does not fit into memory; lower length, load with dtype='bfloat16', or use a "
                "device with more memory"
            )
        self.slots = len(self.running) // 2
        self.waiting.extendleft(reversed(self.running[self.slots :]))
        dropped = list(range(self.slots, len(self.running)))
        del self.running[self.slots :]
        return dropped
