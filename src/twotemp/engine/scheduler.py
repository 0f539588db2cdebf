"""Which request goes where and when: a queue and slots. Plain Python, so refilling is tested without torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
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

    def __init__(
        self, waiting: Iterable[T], slots: int, group: Callable[[T], object] = lambda item: item
    ) -> None:
        """group: rows of one are seated, and sent back, together; they wait one after the other."""
        if slots < 1:
            raise ValueError("a batch needs at least one slot")
        self.waiting = deque(waiting)
        self.slots = slots
        self.group = group
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
        """Take a row out wherever it is, and its group with it; one that is over already stays so."""
        group = self.group(item)
        if item in self.waiting:
            self.waiting = deque(other for other in self.waiting if self.group(other) != group)
        elif item in self.running:
            self.finish(slot for slot, other in enumerate(self.running) if self.group(other) == group)

    def clear(self) -> list[T]:
        """Take all of them out that are not over."""
        left = [item for slot, item in enumerate(self.running) if slot not in self._free]
        left += self.waiting
        self.waiting.clear()
        self.finish(range(len(self.running)))
        return left

    def schedule(self) -> Moves[T]:
        """Free slots are refilled in place while rows wait; after that the batch shrinks. New rows fill it up."""
        free = sorted(self._free)
        due = self._due(max(0, self.slots - len(self.running) + len(free)))
        refilled, dropped, added = dict(zip(free, due)), free[len(due) :], due[len(free) :]
        for slot, item in refilled.items():
            self.running[slot] = item
        for slot in reversed(dropped):
            del self.running[slot]
        self._free.clear()
        self.running += added
        return Moves(refilled, dropped, added)

    def _due(self, room: int) -> list[T]:
        """The head of the queue, in whole groups. One that has become too large for the batch gets it to itself."""
        head = list(islice(self.waiting, room + 1))
        if len(head) > room:
            last = self.group(head.pop())
            while head and self.group(head[-1]) == last:
                head.pop()
        if not head and len(self._free) == len(self.running):
            head = [item for item in self.waiting if self.group(item) == self.group(self.waiting[0])]
        for _ in head:
            self.waiting.popleft()
        return head

    def halve(self) -> list[int]:
        """Send half of the rows back to the queue, for good; the slots to drop. A group cannot be halved."""
        groups: dict[object, list[int]] = {}
        for slot, item in enumerate(self.running):
            groups.setdefault(self.group(item), []).append(slot)
        if len(groups) == 1:
            rows = len(self.running)
            what = "one row alone does" if rows == 1 else f"{rows} samples that repel each other do"
            raise UserError(
                f"{what} not fit into memory; lower length{' or n' if rows > 1 else ''}, load with "
                "dtype='bfloat16', or use a device with more memory"
            )
        dropped = [slot for slots in list(groups.values())[len(groups) // 2 :] for slot in slots]
        self.waiting.extendleft(self.running[slot] for slot in reversed(dropped))
        for slot in sorted(dropped, reverse=True):
            del self.running[slot]
        self.slots = len(self.running)
        return dropped
