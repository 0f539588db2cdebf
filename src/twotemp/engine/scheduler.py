"""Which request goes where and when: a queue and slots. Plain Python, so refilling is tested without torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from twotemp.errors import UserError

T = TypeVar("T")


class Moves(NamedTuple, Generic[T]):
    """What a batch has to do to hold the rows that run now, in this order."""

    refilled: dict[int, T]  # slot -> the row that now stands there
    dropped: list[int]  # slots that are closed
    added: list[T]  # rows behind the last slot


class Scheduler(Generic[T]):
    """Rows waiting and rows in the batch; slot i of the batch holds `running[i]`."""

    def __init__(self, waiting: Iterable[T], slots: int) -> None:
        if slots < 1:
            raise ValueError("a batch needs at least one slot")
        self.waiting = deque(waiting)
        self.slots = slots
        self.running: list[T] = []
        self._free: set[int] = set()

    @property
    def idle(self) -> bool:
        return not self.waiting and len(self._free) == len(self.running)

    def add(self, item: T) -> None:
        self.waiting.append(item)

    def finish(self, slots: Iterable[int]) -> None:
        """These rows are over; their slots are free from the next `schedule` on."""
        self._free |= set(slots)

    def cancel(self, item: T) -> None:
        """Take a row out wherever it is; one that is over already stays so."""
        if item in self.waiting:
            self.waiting.remove(item)
        elif item in self.running:
            self.finish([self.running.index(item)])

    def schedule(self) -> Moves[T]:
        """Free slots are refilled in place while rows wait; after that the batch shrinks. New rows fill it up."""
        refilled, dropped = {}, []
        for slot in sorted(self._free):
            if self.waiting:
                refilled[slot] = self.running[slot] = self.waiting.popleft()
            else:
                dropped.append(slot)
        for slot in reversed(dropped):
            del self.running[slot]
        self._free.clear()
        room = min(self.slots - len(self.running), len(self.waiting))
        added = [self.waiting.popleft() for _ in range(room)]
        self.running += added
        return Moves(refilled, dropped, added)

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
