"""The questions of a run and their samples as the viewer page reads them: an index, and a chunk for each question.

The index is small and always loaded: it has the verdicts of all samples, one character each. A chunk holds the texts,
grades and traces of a question and is decompressed when it is looked at.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twotemp.analysis import GradedCell, unique
from twotemp.errors import UserError
from twotemp.evaluation.work import problems_of
from twotemp.policies import AnyPolicy, Portfolio, spell
from twotemp.records import Grade, Problem
from twotemp.report.pages import chunk
from twotemp.report.style import dataset, label, line, ramp
from twotemp.store import Cell, Store
from twotemp.store.rows import row_key

LARGEST = 24_000_000  # bytes of all chunks in a page; what does not fit is left out, traces first
_TRACED = 2.5  # bytes of a chunk for each traced token, about
VERDICTS = {"passed": "+", "failed": "-", "timeout": "!", "ungraded": "?"}
_PENDING = "."
_WRONG = ("failed", "timeout")


@dataclass(frozen=True)
class RunData:
    """What a page shows of the questions of some runs."""

    policies: list[dict[str, Any]]  # one for each cell, in the order of the cells
    questions: list[dict[str, Any]]
    chunks: list[str]  # one for each question
    pieces: dict[int, str]  # the text of each token id in the traces
    special: list[int]
    # Samples of each question and policy whose traces are in the chunks; None: no cell has any.
    traced: int | None
    reasons: list[Counter[str]] = field(default_factory=list)  # what graders said against samples, by cell


def collect(
    cells: Sequence[GradedCell], tokenizer: Callable[[], Any] | None = None, largest: int = LARGEST
) -> RunData:
    """Read the samples of graded cells.

    Args:
        cells: Graded cells of one or several runs.
        tokenizer: Loads what decodes the tokens of traces; None, or if it returns None: they are shown as their ids.
        largest: Bytes of all chunks, about.
    """
    stored = [Store.open(cell.path.parent)[cell.path.name] for cell in cells]
    traced = _traces_that_fit(cells, stored, largest)
    builders: dict[tuple[str, str, str], _Question] = {}
    reasons: list[Counter[str]] = []
    for number, (cell, source) in enumerate(zip(cells, stored)):
        grades = source.grades(cell.grader)
        reasons.append(Counter(g.detail for g in grades.values() if g.detail and g.outcome in _WRONG))
        problems = _problems(source)
        for row in source.sample_rows() if traced else source.light_rows():
            key = (cell.model, cell.task, row["request"])
            if key not in builders:
                builders[key] = _Question(row["request"], cell.task, problems.get(row["request"]))
            builders[key].add(number, row, grades.get(row_key(row)), traced or 0)
    order = {task: n for n, task in enumerate(unique(cell.task for cell in cells))}
    ordered = sorted(builders.items(), key=lambda item: (order[item[0][1]], _natural(item[0][2]), item[0][0]))
    ids = sorted(set().union(*(question.ids for _, question in ordered)))
    decoder = tokenizer() if ids and tokenizer is not None else None
    return RunData(
        _policies(cells),
        [question.index() for _, question in ordered],
        [chunk(question.content()) for _, question in ordered],
        {token: _piece(decoder, token) for token in ids},
        sorted(set(decoder.all_special_ids) & set(ids)) if decoder is not None else [],
        traced,
        reasons,
    )


def collect_rollouts(
    runs: Sequence[Path], policies: list[dict[str, Any]], largest: int = LARGEST
) -> RunData | None:
    """Read the rollouts of GRPO runs; a question is a problem of a step.

    Args:
        runs: Their folders.
        policies: What the page says of each run.
        largest: Approximate bytes of all chunks; of a longer run, evenly spaced steps are kept.

    Returns:
        The rollouts; None if the runs kept none.
    """
    from twotemp.rl.results import read_rollouts

    builders: dict[tuple[int, str], _Question] = {}
    for number, run in enumerate(runs):
        for group in read_rollouts(run):
            key = (group.step, group.problem.id)
            name = f"step {group.step}: {group.problem.id}"
            question = builders.setdefault(key, _Question(name, group.problem.task, group.problem))
            rows = zip(group.texts, group.grades, group.rewards, group.nfes)
            for index, (text, grade, reward, nfe) in enumerate(rows):
                row = {"index": index, "text": text, "nfe": nfe, "reward": reward}
                question.add(number, row, grade, 0)
    if not builders:
        return None
    ordered = sorted(builders, key=lambda key: (key[0], _natural(key[1])))
    chunks = {key: chunk(builders[key].content()) for key in ordered}
    every = -(-sum(map(len, chunks.values())) // largest)
    kept = {*unique(step for step, _ in ordered)[::every]}
    shown = [key for key in ordered if key[0] in kept]
    questions = [builders[key].index() for key in shown]
    return RunData(policies, questions, [chunks[key] for key in shown], {}, [], None)


def _traces_that_fit(cells: Sequence[GradedCell], stored: Sequence[Cell], largest: int) -> int | None:
    """Return how many samples of each question can be shown with their traces; None if no sample has one."""
    if not any(row["trace"] for cell in stored for row in _first_row(cell)):
        return None
    tokens = sum(len(cell.questions) * cell.config.length for cell in cells)
    return min(max(cell.samples for cell in cells), int(0.6 * largest / (_TRACED * max(1, tokens))))


def _first_row(cell: Cell) -> list[dict[str, Any]]:
    return [row for row, _ in zip(cell.sample_rows(), range(1))]


def _problems(cell: Cell) -> Mapping[str, Problem]:
    """Return the problems that a cell was drawn from, if they can be found without a network."""
    try:
        return {problem.id: problem for problem in problems_of(cell, hub=False).problems}
    except (UserError, OSError):
        return {}


def _policies(cells: Sequence[GradedCell]) -> list[dict[str, Any]]:
    models = [cell.model for cell in cells]
    return [
        {
            "name": policy_name(cell.policy),
            "spec": spell(cell.policy),
            "color": color,
            "set": dataset(cell.model, cell.task, models),
        }
        for cell, color in zip(cells, colors(cells))
    ]


def policy_name(policy: AnyPolicy) -> str:
    """Return a policy's display name, with its name on the command line in front where the two differ."""
    name = label(policy, plain=True)
    if isinstance(policy, Portfolio) or policy.name in name.lower():
        return name
    return f"{policy.name.upper()} · {name}"


def colors(cells: Sequence[GradedCell]) -> list[str]:
    """Return the color of each cell: its policy's, in shades where a task has several policies of a name."""
    families: dict[tuple[str, str, str], list[GradedCell]] = defaultdict(list)
    for cell in cells:
        families[cell.model, cell.task, cell.policy.name].append(cell)
    shades = []
    for cell in cells:
        family = families[cell.model, cell.task, cell.policy.name]
        shade = line(cell.policy) if len(family) == 1 else ramp(cell.policy, family.index(cell), len(family))
        shades.append(str(shade["color"]))
    return shades


class _Question:
    """Gathers the samples of one question over all policies."""

    def __init__(self, name: str, task: str, problem: Problem | None) -> None:
        self.name, self.task, self.problem = name, task, problem
        self.ids: set[int] = set()
        self._texts: dict[str, int] = {}
        self._grades: dict[Grade | None, int] = {}
        self._rows: dict[int, list[dict[str, Any]]] = defaultdict(list)

    def add(self, cell: int, row: Mapping[str, Any], grade: Grade | None, traced: int) -> None:
        """Add a sample of a cell; its trace is kept if its index is below `traced`."""
        kept = {
            "index": row["index"],
            "text": self._texts.setdefault(row["text"] or "", len(self._texts)),
            "grade": self._grades.setdefault(grade, len(self._grades)),
            "nfe": row["nfe"],
            **({"reward": row["reward"]} if "reward" in row else {}),
        }
        trace = row.get("trace")
        if trace and row["index"] < traced:
            self.ids.update(row["tokens"])
            kept["trace"] = {
                "tokens": row["tokens"],
                "steps": trace["steps"],
                "confidence": [round(1000 * c) for c in trace["confidence"]],
                "entropy": [round(100 * h) for h in trace["entropy"]],
            }
            if trace.get("edits"):
                kept["trace"]["edits"] = trace["edits"]
                self.ids.update(token for _, _, token in trace["edits"])
        self._rows[cell].append(kept)

    def index(self) -> dict[str, Any]:
        """Return what the list of questions needs."""
        grades = list(self._grades)
        verdicts = {}
        for cell, rows in self._rows.items():
            ordered = sorted(rows, key=lambda row: row["index"])
            outcomes = (grades[row["grade"]] for row in ordered)
            verdicts[cell] = "".join(_PENDING if g is None else VERDICTS[g.outcome] for g in outcomes)
        prompt = {} if self.problem is None else {"prompt": self.problem.prompt}
        return {"id": self.name, "task": self.task, "verdicts": verdicts, **prompt}

    def content(self) -> dict[str, Any]:
        """Return the chunk: distinct texts and grades, and by policy a list for each column."""
        columns = ("index", "text", "grade", "nfe", "reward", "trace")
        cells = {}
        for cell, rows in self._rows.items():
            rows.sort(key=lambda row: row["index"])
            cells[cell] = {
                name: [row.get(name) for row in rows] for name in columns if any(name in r for r in rows)
            }
        return {
            "texts": list(self._texts),
            "grades": [None if g is None else [g.outcome, g.answer, g.rule, g.detail] for g in self._grades],
            "cells": cells,
            "reference": None if self.problem is None else dict(self.problem.reference),
            "prefill": "" if self.problem is None else self.problem.prefill,
        }


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts `test/9` before `test/10`."""
    # By their length, because Python refuses to convert thousands of digits.
    return [(len(part) if part.isdecimal() else 0, part) for part in re.findall(r"\d+|\D+", name)]


def _piece(tokenizer: Any | None, token: int) -> str:
    if tokenizer is None:
        return f" {token}"
    return str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
