"""Which request goes where and when: a queue and slots. Plain Python, so refilling is tested without torch.

The unit of scheduling is a *group*: rows that join the batch together, because their samples depend on each other
(`twotemp.groups`). Most groups consist of one row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from twotemp.errors import UserError

T = TypeVar("T")


class BatchChange(NamedTuple, Generic[T]):
    """What a batch has to do, in this order, to hold the rows that run now."""

    refilled: dict[int, T]  # slot -> its new row
    dropped: list[int]  # slots to remove
    added: list[T]  # rows to append after the last slot


class Scheduler(Generic[T]):
    """Groups of rows that wait, and rows in the batch; slot i of the batch holds `running[i]`."""

    def __init__(self, groups: Iterable[Sequence[T]], slots: int) -> None:
        if slots < 1:
            raise ValueError("a batch needs at least one slot")
        self.waiting = deque(groups)
        self.slots = slots
        self.running: list[T] = []
        self._groups: list[Sequence[T]] = []  # of the running rows
        self._free: set[int] = set()

    @property
    def idle(self) -> bool:
        """Whether no row waits or runs."""
        return not self.waiting and len(self._free) == len(self.running)

    def add(self, group: Sequence[T]) -> None:
        """Queue a group."""
        self.waiting.append(group)

    def finish(self, slots: Iterable[int]) -> None:
        """Free these slots, from the next `schedule` on."""
        self._free |= set(slots)

    def cancel(self, item: T) -> None:
        """Remove a row and its group from the queue or the batch, if it is still there."""
        for group in self.waiting:
            if item in group:
                self.waiting.remove(group)
                return
        if item in self.running:
            group = self._groups[self.running.index(item)]
            self.finish(slot for slot, other in enumerate(self._groups) if other is group)

    def clear(self) -> list[T]:
        """Remove and return all rows that have not finished."""
        rest = [item for slot, item in enumerate(self.running) if slot not in self._free]
        rest += [item for group in self.waiting for item in group]
        self.waiting.clear()
        self.finish(range(len(self.running)))
        return rest

    def schedule(self) -> BatchChange[T]:
        """Fill the batch: refill free slots in place, append rows after the last slot, drop slots that stay free."""
        free, due = sorted(self._free), self._next_rows()
        refilled, dropped, added = dict(zip(free, due)), free[len(due) :], due[len(free) :]
        for slot, (item, group) in refilled.items():
            self.running[slot], self._groups[slot] = item, group
        self._drop(dropped)
        self._free.clear()
        self.running += [item for item, _ in added]
        self._groups += [group for _, group in added]
        return BatchChange(
            {slot: item for slot, (item, _) in refilled.items()}, dropped, [item for item, _ in added]
        )

    def _next_rows(self) -> list[tuple[T, Sequence[T]]]:
        """Take the groups from the head of the queue that have room; return their rows, each with its group.

        A group that no longer fits because the batch was halved gets the whole batch when that is empty.
        """
        busy = len(self.running) - len(self._free)
        due: list[tuple[T, Sequence[T]]] = []
        while self.waiting:
            group = self.waiting[0]
            if busy + len(due) + len(group) > self.slots and (busy or due):
                break
            due += [(item, group) for item in self.waiting.popleft()]
        return due

    def halve(self) -> list[int]:
        """Send half of the running groups back to the head of the queue, and return the slots to drop.

        The batch stays this small. A group cannot be split.
        """
        groups: dict[int, list[int]] = {}
        for slot, group in enumerate(self._groups):
            groups.setdefault(id(group), []).append(slot)
        if len(groups) == 1:
            rows = len(self.running)
            subject = "one row alone does" if rows == 1 else f"{rows} samples that repel each other do"
            raise UserError(
                f"{subject} not fit into memory; lower length{' or n' if rows > 1 else ''}, load with "
                "dtype='bfloat16', or use a device with more memory"
            )
        returned = list(groups.values())[len(groups) // 2 :]
        self.waiting.extendleft(self._groups[slots[0]] for slots in reversed(returned))
        dropped = [slot for slots in returned for slot in slots]
        self._drop(dropped)
        self.slots = len(self.running)
        return dropped

    def _drop(self, slots: Sequence[int]) -> None:
        for slot in sorted(slots, reverse=True):
            del self.running[slot], self._groups[slot]
