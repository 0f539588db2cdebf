"""What a run records: one line of JSON and the rollouts per step, and the paper's evaluation before and after.

The evaluation is greedy CT on held-out problems, at three thresholds.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from twotemp import metrics
from twotemp.backends import Backend
from twotemp.errors import UserError, reading
from twotemp.folders import Log, disk_errors, make_folder, read_json, read_log, replacing, write_text
from twotemp.graders import Grader
from twotemp.policies import policy
from twotemp.records import Grade, Problem
from twotemp.rl.objective import group_std
from twotemp.rl.rollouts import Rollouts
from twotemp.sampling.requests import PlannedSample, assistant_turn, problem_requests
from twotemp.serialization import json_text, record

if TYPE_CHECKING:
    from accelerate import Accelerator

STEPS = "steps.jsonl"
EVALUATIONS = "evaluation.json"
ROLLOUTS = "rollouts"  # a folder with a compressed file for each step and worker
THRESHOLDS = (0.6, 0.8, 1.0)
MAX_UNZIPPED = 1 << 26  # bytes of the rollouts that one worker draws for a step
DAMAGED = "it was changed by something other than twotemp; restore it from a copy, or remove it"


@dataclass(frozen=True)
class StepRecord:
    """Means over the global batch of one step.

    Confidence and `tokens_per_forward` that rise while `distinct` falls are the collapse that users report of
    thresholded rollouts: the model grows sure of everything, writes it all at once, and groups become copies.
    """

    step: int  # from 1
    reward: float
    reward_std: float  # within a group, mean over groups
    zero_std: float  # share of groups whose rewards are all equal, from which nothing can be learned
    distinct: float  # different answers in a group (texts, where no answer was found)
    ungraded: int
    nfe: float  # of a sample
    tokens_per_forward: float
    confidence: float  # of tokens when they were committed
    entropy: float  # of the predictions there and then, nats
    threshold: float  # lambda of the policy; moves only if it is controlled or learned
    loss: float
    kl: float | None  # to the untrained model; None where it is not part of the loss (beta = 0)
    clipped: float
    grad_norm: float
    seconds_drawing: float
    seconds_grading: float
    seconds_updating: float
    total_seconds: float
    total_nfe: int
    # Of the policy, where its numbers are learned.
    t_pos: float | None = None
    t_token: float | None = None


COLUMNS = (
    "reward graded std zero_std distinct nfe forwards committed confidence entropy "
    "seconds_drawing seconds_grading"
).split()


def group_numbers(rollouts: Rollouts) -> Tensor:
    """Return sums over each group's samples [groups, columns], which the workers exchange."""
    size = rollouts.size
    std = group_std(rollouts.rewards)
    rows = []
    for group in range(len(rollouts.problems)):
        part = slice(group * size, (group + 1) * size)
        samples, rewards = rollouts.samples[part], rollouts.rewards[group]
        answers = {g.answer or s.text for g, s in zip(rollouts.grades[part], samples)}
        traces = [s.trace for s in samples if s.trace is not None]
        tokens = (token for t in traces for token in zip(t.steps, t.confidence, t.entropy))
        written = [token for token in tokens if token[0] >= 0]
        rows.append(
            [
                float(rewards.nansum()),
                float((~rewards.isnan()).sum()),
                float(std[group]),
                float(std[group] == 0),
                len(answers),
                sum(s.nfe for s in samples),
                sum(s.forwards for s in samples),
                len(written),
                sum(confidence for _, confidence, _ in written),
                sum(entropy for _, _, entropy in written),
                rollouts.seconds_drawing / len(rollouts.problems),
                rollouts.seconds_grading / len(rollouts.problems),
            ]
        )
    return torch.tensor(rows, dtype=torch.float64).view(-1, len(COLUMNS))


def summarize(numbers: Tensor, size: int, workers: int) -> dict[str, Any]:
    """Return the rollouts' part of a `StepRecord`.

    Args:
        numbers: `group_numbers` of all groups.
        size: samples in a group.
        workers: over which times are averaged.
    """
    total = dict(zip(COLUMNS, numbers.sum(0).tolist()))
    groups = len(numbers)
    return {
        "reward": total["reward"] / max(1, total["graded"]),
        "reward_std": total["std"] / groups,
        "zero_std": total["zero_std"] / groups,
        "distinct": total["distinct"] / groups,
        "ungraded": int(groups * size - total["graded"]),
        "nfe": total["nfe"] / (groups * size),
        "tokens_per_forward": total["committed"] / total["forwards"],
        "confidence": total["confidence"] / max(1, total["committed"]),
        "entropy": total["entropy"] / max(1, total["committed"]),
        "seconds_drawing": total["seconds_drawing"] / workers,
        "seconds_grading": total["seconds_grading"] / workers,
    }


def open_steps(folder: Path, done: int) -> Log:
    """Open the log of a run that is continued after step `done`."""
    with reading(folder / STEPS, DAMAGED):
        return Log(folder / STEPS, keep=lambda row: row["step"] <= done)


def read_steps(folder: Path) -> list[StepRecord]:
    """Return the records of a run; a torn last line is left out."""
    return [record(StepRecord, row, str(folder / STEPS)) for row in read_log(folder / STEPS)]


@dataclass(frozen=True)
class Group:
    """The rollouts of one problem in one step, as they are stored for inspection."""

    step: int
    problem: Problem
    texts: tuple[str, ...]
    grades: tuple[Grade, ...]
    rewards: tuple[float | None, ...]  # None: ungraded
    nfes: tuple[int, ...]


def write_rollouts(folder: Path, step: int, worker: int, rollouts: Rollouts) -> None:
    """Write what one worker drew for a step. A step that is drawn again replaces its file."""
    make_folder(folder / ROLLOUTS)
    groups = []
    for number, problem in enumerate(rollouts.problems):
        part = slice(number * rollouts.size, (number + 1) * rollouts.size)
        rewards = rollouts.rewards[number].tolist()
        samples = rollouts.samples[part]
        groups.append(
            {
                "problem": asdict(problem),
                "texts": [sample.text for sample in samples],
                "grades": [asdict(grade) for grade in rollouts.grades[part]],
                "rewards": [None if math.isnan(reward) else reward for reward in rewards],
                "nfes": [sample.nfe for sample in samples],
            }
        )
    with replacing(folder / ROLLOUTS / f"step-{step:08d}-{worker}.json.gz") as temporary:
        temporary.write_bytes(gzip.compress(json_text(groups, compact=True).encode(), mtime=0))


def read_rollouts(folder: Path) -> Iterator[Group]:
    """Yield the groups of all finished steps. Runs of earlier versions kept none."""
    finished = len(read_steps(folder))
    for path in sorted((folder / ROLLOUTS).glob("step-*.json.gz")):
        with reading(path, DAMAGED):
            step = int(path.name.split("-")[1])
            if step > finished:  # drawn again when the run continues
                return
            groups = [_group(step, row, str(path)) for row in json.loads(_unzipped(path))]
        yield from groups


def _unzipped(path: Path) -> bytes:
    """Return the content of a file; one that expands beyond `MAX_UNZIPPED` is damaged."""
    if not path.is_file():  # opening a FIFO would wait for its writer
        raise UserError(f"{path} is damaged: it is not a regular file; remove it")
    with disk_errors(path, "read"):
        packed = path.read_bytes()
    try:
        unpacked = zlib.decompressobj(wbits=31)  # of one gzip member
        content = unpacked.decompress(packed, MAX_UNZIPPED)
    except zlib.error as error:
        raise UserError(f"{path} is damaged ({error}): remove it") from error
    if not unpacked.eof:
        raise UserError(f"{path} is damaged: it is cut off or expands without end; remove it")
    return content


def _group(step: int, row: dict[str, Any], where: str) -> Group:
    problem = record(Problem, row["problem"], where)
    grades = tuple(record(Grade, grade, where) for grade in row["grades"])
    return record(Group, {**row, "step": step, "problem": problem, "grades": grades}, where)


@dataclass(frozen=True)
class Point:
    """Results at one threshold: accuracy with its 95 % interval over questions (NaN: too few), and the mean NFE."""

    threshold: float
    accuracy: float
    low: float
    high: float
    nfe: float
    passed: tuple[float, ...]  # by question: 1, 0, or NaN for ungraded
    nfes: tuple[int, ...]


@dataclass(frozen=True)
class GreedyEvaluation:
    """Results of the model after a step, at every threshold."""

    step: int
    seconds: float  # of training before it
    questions: tuple[str, ...]
    points: tuple[Point, ...]


def evaluate(
    backend: Backend,
    grader: Grader,
    problems: Sequence[Problem],
    accelerator: Accelerator,
    *,
    length: int,
    block: int | None,
    chat: bool | None = None,
) -> tuple[Point, ...]:
    """Evaluate greedy CT at each of `THRESHOLDS`; every worker grades its share of the problems. Collective.

    Args:
        backend: draws the samples.
        grader: of the task.
        problems: held out.
        accelerator: the other workers.
        length: tokens of an answer.
        block: width of a decoding block; None: the default.
        chat: use the chat format; None: if the model has one.

    Returns:
        A point for each threshold.
    """
    mine = range(accelerator.process_index, len(problems), accelerator.num_processes)
    planned = (
        PlannedSample(problems[number], policy("ct", threshold=threshold, t_token=0.0), index, id=str(number))
        for number in mine
        for index, threshold in enumerate(THRESHOLDS)
    )
    samples = list(
        backend.sample(problem_requests(backend.text, planned, length=length, block=block, chat=chat))
    )
    sample_problems = [problems[int(sample.request)] for sample in samples]
    grades = grader.grade(
        (problem, assistant_turn(problem, s.text)) for problem, s in zip(sample_problems, samples)
    )
    table = torch.zeros(len(THRESHOLDS), len(problems), 3, dtype=torch.float64)  # passed, graded, NFE
    for sample, grade in zip(samples, grades):
        graded = grade.outcome != "ungraded"
        table[sample.index, int(sample.request)] = torch.tensor([grade.passed, graded, sample.nfe])
    table = accelerator.reduce(table.to(accelerator.device), "sum").cpu()
    passed = torch.where(table[..., 1] > 0, table[..., 0], torch.nan).numpy()
    estimate = metrics.bootstrap(passed.T)
    return tuple(
        Point(
            threshold=threshold,
            accuracy=float(estimate.mean[i]),
            low=float(estimate.low[i]),
            high=float(estimate.high[i]),
            nfe=float(table[i, :, 2].mean()),
            passed=tuple(passed[i].tolist()),
            nfes=tuple(table[i, :, 2].int().tolist()),
        )
        for i, threshold in enumerate(THRESHOLDS)
    )


def gains(before: GreedyEvaluation, after: GreedyEvaluation) -> metrics.Estimate:
    """Return accuracy after minus before at each threshold, with the interval of the paired difference."""
    thresholds = [[point.threshold for point in e.points] for e in (before, after)]
    if before.questions != after.questions or thresholds[0] != thresholds[1]:
        raise UserError("the two evaluations are of different questions and cannot be compared")
    first, second = (np.array([p.passed for p in e.points]).T for e in (after, before))
    return metrics.paired_bootstrap(first, second)


def read_evaluations(folder: Path) -> list[GreedyEvaluation]:
    """Return the evaluations of a run, in the order of their steps."""
    path = folder / EVALUATIONS
    with reading(path, DAMAGED):
        return [_checkup(row, str(path)) for row in (read_json(path) if path.exists() else [])]


def _checkup(row: dict[str, Any], where: str) -> GreedyEvaluation:
    points = tuple(record(Point, point, where) for point in row["points"])
    if any(len(part) != len(row["questions"]) for point in points for part in (point.passed, point.nfes)):
        raise ValueError("a point has other questions")
    return record(GreedyEvaluation, {**row, "points": points}, where)


def add_evaluation(folder: Path, evaluation: GreedyEvaluation) -> None:
    """Store an evaluation, in place of an older one of the same step."""
    earlier = [known for known in read_evaluations(folder) if known.step < evaluation.step]
    write_text(folder / EVALUATIONS, json_text([asdict(known) for known in (*earlier, evaluation)]) + "\n")
