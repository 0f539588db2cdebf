"""Check requests against a model, and decide which are decoded together: groups, free memory, a queue with slots.

The unit of scheduling is a *group*, usually of one request. Samples that repel each other (`Policy.repel`) form a
larger one, drawn completely, in order and at the same time: sample k is pushed away from samples 0 to k - 1 of its
prompt. So it is the same for every n > k, but only if samples 0 to k - 1 are drawn with it. Code that sorts or splits
requests must keep groups whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch

from twotemp.errors import UserError
from twotemp.models.base import Denoiser, LanguageModel
from twotemp.models.weight_loading import free_bytes
from twotemp.policies.positions import RULES, SCORES
from twotemp.records import NO_MASK, Policy, Request

T = TypeVar("T")
DEFAULT_BLOCK = 32
MOST_ROWS = 64  # more rows in a batch gain little: the matrix products are large enough
_SHARE = 0.5  # of a CPU's free memory; the rest is for other processes
_GPU_SHARE = 0.8  # of a GPU's; the rest is for fragmentation
_LOGIT_COPIES = 3.5  # the logits, also in the model's dtype, and the temporaries of the draw
_ENTROPY_COPIES = 2  # probabilities, and their entropies
_STABLE_COPIES = 4  # KL stability: the prediction before, the one now, and their two products
_REPEL_COPIES = 4  # repulsion: predictions, gradients, their product, and the pushed logits
_FLOAT = 4
BLOCKS_AHEAD = 4  # blocks by which an extended row grows at a time


def check_request(request: Request, model: Denoiser) -> None:
    """Raise a UserError for a request that this model cannot sample, before anything runs."""
    where = request.name
    masks = request.prompt.count(model.mask_id)
    bad = [t for t in request.prompt if not 0 <= t < model.vocab_size and t != model.mask_id]
    if bad:
        raise UserError(f"{where}: token id {bad[0]} is outside the vocabulary of {model.vocab_size}")
    if request.length and masks:
        raise UserError(
            f"{where}: the prompt contains {masks} mask token(s); to fill masks inside a text, use "
            "`infill` (length=0), else remove them"
        )
    if not request.length and not masks:
        raise UserError(f"{where}: nothing to do: length is 0 and the text has no mask token to fill")
    if model.mask_id == NO_MASK and (request.policy.edit != "never" or request.policy.repel):
        raise UserError(
            f"{where}: policy {request.policy.name} edits or repels, which needs masks, but {model.name} has "
            "none: its open positions hold random tokens, and every step decides on all of them; use another policy"
        )
    if has_canvases(model) and not request.length:
        raise UserError(
            f"{where}: {model.name} cannot fill gaps in a text: it writes whole canvases after what it has read; ask "
            "for a continuation (length > 0)"
        )
    if request.extend and (not request.length or (model.mask_id == NO_MASK and not has_canvases(model))):
        subject = "an infilled text has its length already" if not request.length else "it has no mask"
        raise UserError(f"{where}: {model.name} cannot extend this row ({subject}); leave extend out")
    lookback = model.lookback if isinstance(model, LanguageModel) else 0
    if model.mask_id in request.prompt[:lookback] or len(request.prompt) < lookback:
        raise UserError(
            f"{where}: {model.name} predicts a token from the one before it, so the first position of a row cannot "
            "be predicted; start the text with a given token"
        )
    first_id = model.first_id if isinstance(model, LanguageModel) else None
    if first_id is not None and request.prompt[0] != first_id:
        raise UserError(
            f"{where}: rows of {model.name} start with token {first_id}, which model.encode adds to text; put it "
            "before your token ids"
        )
    total = len(request.prompt) + request.length
    if model.max_length is not None and total > model.max_length:
        raise UserError(
            f"{where}: {len(request.prompt)} prompt tokens + length {request.length} = {total} exceed the "
            f"context of {model.max_length}; shorten the prompt or lower length"
        )
    if model.block_size is not None and request.block not in (None, model.block_size):
        raise UserError(
            f"{where}: {model.name} decodes in blocks of {model.block_size} (it was trained on them); "
            f"leave block unset instead of {request.block}, or load with block_size={request.block}"
        )


def block_of(request: Request, model: Denoiser) -> int:
    """Return the width of the request's decoding blocks."""
    return model.block_size or request.block or DEFAULT_BLOCK


def columns_of(request: Request, model: Denoiser) -> int:
    """Return how many columns to allocate for the row at first: all, or some blocks if it will be extended."""
    return extended_length(length_of(request, model), request, model, BLOCKS_AHEAD)


def length_of(request: Request, model: Denoiser) -> int:
    """Return the length of the row before its first step; a row that is extended begins with its first block only."""
    longest = final_length_of(request, model)
    if not request.extend or has_canvases(model):  # canvases follow one another anyway
        return longest
    start, block = len(request.prompt), block_of(request, model)
    return min(longest, start + block - (start % block if model.block_size else 0))


def final_length_of(request: Request, model: Denoiser) -> int:
    """Return the length of the request's row at its end.

    Most block-causal families decode whole blocks only (`completes_blocks`): as in SDAR and LLaDA-2, the last one is
    filled up with masks, and what is written beyond `length` is not part of the sample.
    """
    requested = len(request.prompt) + request.length
    completes = model.completes_blocks if isinstance(model, LanguageModel) else True
    if model.block_size is None or not completes or not request.length:
        return requested
    origin = len(request.prompt) if has_canvases(model) else 0
    whole = origin - (origin - requested) // model.block_size * model.block_size
    return whole if model.max_length is None else min(whole, model.max_length)


def extended_length(length: int, request: Request, model: Denoiser, blocks: int) -> int:
    """Return the length of the request's row after this many more extensions."""
    return min(length + blocks * block_of(request, model), final_length_of(request, model))


def has_canvases(model: Denoiser) -> bool:
    """Return whether the model writes one canvas after another: see `LanguageModel.canvases`."""
    return isinstance(model, LanguageModel) and model.canvases


def widths(requests: Iterable[Request], model: Denoiser) -> tuple[int, int]:
    """Return the number of columns and the widest block that these rows need."""
    needed = [(columns_of(r, model), block_of(r, model)) for r in requests]
    columns = max(width for width, _ in needed)
    return columns, min(columns, max(block for _, block in needed))


def gather(
    items: Iterable[T], request_of: Callable[[T], Request] = lambda item: cast(Request, item)
) -> list[list[T]]:
    """Return the items in whole groups, ordered by each group's first item; within a group by the request's index."""
    groups: dict[object, list[T]] = {}
    for number, item in enumerate(items):
        group = request_of(item).group
        groups.setdefault(number if group is None else group, []).append(item)
    return [sorted(group, key=lambda item: request_of(item).index) for group in groups.values()]


def check_group(group: Sequence[Request], slots: int) -> None:
    """Raise a UserError for a group that lacks a sample which others depend on, or that no batch can hold."""
    first, size = group[0], len(group)
    if first.group is None:
        return
    if [request.index for request in group] != list(range(size)):
        indices = ", ".join(str(request.index) for request in group)
        raise UserError(
            f"{first.name}: with repel={first.policy.repel:g} a sample depends on those before it, so "
            f"request samples 0, 1, 2, ... together, each once; these are samples {indices}"
        )
    if size > slots:
        raise UserError(
            f"{first.name}: {size} samples that repel each other are decoded together, and a batch has "
            f"{slots} rows; set batch_size to {size} or more, draw fewer samples, or set repel=0"
        )


def refuse_groups(policy: Policy, where: str) -> None:
    """Raise a UserError if the policy needs groups; `where` names the caller, which draws rows one by one."""
    if policy.repel:
        raise UserError(
            f"policy {policy.name} has repel={policy.repel:g}: its samples are drawn in whole groups, which {where} "
            "cannot do; use `twotemp sample` or `twotemp eval`, or set repel=0"
        )


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


def fit_batch(model: Denoiser, requests: Sequence[Request], cache: str | None) -> tuple[int, str]:
    """Return how many of these rows to decode together, by the memory that is free now, and the reason in words."""
    room = (_GPU_SHARE if model.device.type == "cuda" else _SHARE) * free_bytes(model.device)
    fitting = max(1, int(room / max(1, row_bytes(model, requests, cache))))
    if len(requests) <= min(fitting, MOST_ROWS):
        return len(requests), "all requests"
    if fitting >= MOST_ROWS:
        return MOST_ROWS, "the default maximum"
    return fitting, "the estimate of what fits into free memory"


def row_bytes(model: Denoiser, requests: Sequence[Request], cache: str | None) -> int:
    """Return an estimate of a row's peak memory in bytes, without the weights, a little above what was measured.

    Activations are freed before tokens are drawn from the logits, so only the larger of the two counts.
    """
    columns, block = widths(requests, model)
    needs = {need for r in requests for need in (*SCORES[r.policy.score].needs, *RULES[r.policy.rule].needs)}
    entropy = "entropy" in needs or any(r.trace for r in requests)
    stable = any(r.policy.rule == "stable" for r in requests)
    repel = any(r.policy.repel for r in requests)
    copies = _LOGIT_COPIES + entropy * _ENTROPY_COPIES + stable * _STABLE_COPIES + repel * _REPEL_COPIES
    logits = int(_FLOAT * block * model.vocab_size * copies)
    if not isinstance(model, LanguageModel):
        return logits
    kept = model.cached_bytes if cache or model.block_size else 0
    computed = max(_most_computed(request, model) for request in requests)
    return columns * kept + max(computed * model.activation_bytes, logits)


def _most_computed(request: Request, model: Denoiser) -> int:
    """Return the most columns that a forward pass computes: the row or, if block-causal, the prompt and a block."""
    columns = columns_of(request, model)
    if model.block_size is None or not request.length:
        return columns
    return min(columns, (len(request.prompt) // model.block_size + 1) * model.block_size)


class CatchOutOfMemory(AbstractContextManager["CatchOutOfMemory"]):
    """Suppresses out-of-memory errors in its `with` block; `ran_out` says whether there was one.

    A context manager rather than an `except` clause, because inside one the error keeps the failed step's tensors
    alive, and recovery needs their memory.
    """

    ran_out = False

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.ran_out = error is not None and out_of_memory(error)
        return self.ran_out


_MESSAGES = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Return whether this is torch running out of memory, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
    )
