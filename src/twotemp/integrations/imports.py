"""Import results of other harnesses as cells of a run: the samples, their problems, and any grades."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from twotemp.errors import UserError, reading, unknown
from twotemp.evaluation.work import RECORDED, record_problems
from twotemp.policies import policy_from_dict, spell
from twotemp.records import Grade, Key, Policy, Problem, Sample
from twotemp.serialization import json_text
from twotemp.store import Config, Store
from twotemp.tasks import ProblemSet

DAMAGED = "it is damaged, or another version of the harness wrote it"


@dataclass
class HarnessCell:
    """The samples of one policy for one task, as a harness stored them."""

    harness: str
    task: str
    settings: Mapping[str, Any]  # see `arguments.import_settings`
    metric: str | None = None  # the harness's metric behind the grades; None if there are no grades
    problems: dict[str, Problem] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    grades: list[tuple[Key, Grade]] = field(default_factory=list)

    @property
    def config(self) -> Config:
        return Config(
            task=self.task,
            data=self.problem_set.digest,
            prompt="",
            subset=None,
            model=self.settings["model"],
            fingerprint=self.settings["fingerprint"],
            policy=Policy.from_dict(self.settings["policy"]),
            length=max(len(sample.tokens) for sample in self.samples),
            block=self.settings["block"],
            seed=self.samples[0].seed,
            options={
                "cache": self.settings["cache"],
                "compile": self.settings["compile"],
                "from": self.harness,
            },
        )

    @property
    def problem_set(self) -> ProblemSet:
        problems = tuple(self.problems.values())
        text = json_text([vars(problem) for problem in problems])
        return ProblemSet(problems, hashlib.sha256(text.encode()).hexdigest(), self.harness)


def import_cells(results: Iterable[HarnessCell], out: Path) -> dict[str, int]:
    """Add each result to a run as a cell, keeping stored samples; return the number of new samples per cell."""
    new: dict[str, int] = {}
    store = Store.create(out)
    for result in results:
        with reading(f"{result.harness}'s results of {result.task}", DAMAGED):
            config = result.config
        name = re.sub(r"[^\w.,:=@+-]", "-", f"{result.task}@{spell(config.policy)}")
        cell = store.cell(name, config)
        record_problems(cell, result.problem_set)
        stored = {(row["request"], row["index"]) for row in cell.light_rows()}
        samples = [sample for sample in result.samples if (sample.request, sample.index) not in stored]
        with cell.writer() as writer:
            writer.samples(samples)
            if result.metric is not None:
                writer.grades(f"{RECORDED} {result.metric}", result.grades)
        new[name] = len(samples)
    if not new:
        raise UserError("nothing to import: these results contain no samples drawn by twotemp")
    return new


# lm-evaluation-harness.


def lm_eval(paths: Sequence[Path], metric: str | None, verdicts: bool) -> Iterator[HarnessCell]:
    """Yield the tasks of results_*.json files and the samples that `--log_samples` writes beside them.

    Args:
        paths: Files, or folders to search.
        metric: The metric to import as grades, if there are several.
        verdicts: Whether to import grades.
    """
    for path in _files(paths, "results_*.json"):
        try:
            settings = json.loads(path.read_text("utf-8"))["config"].get("twotemp")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is not a results file of lm-eval ({error!r})") from error
        if settings is None:
            raise UserError(
                f"{path} was not made with --model twotemp; only samples drawn by twotemp can be imported"
            )
        date = path.stem.rpartition("_")[2]
        logs = sorted(path.parent.glob(f"samples_*_{date}.jsonl"))
        if not logs:
            raise UserError(f"there are no samples beside {path}; run lm-eval with --log_samples")
        with reading(path, DAMAGED):
            records = defaultdict(list)
            for record in settings["samples"]:
                records[record["request"]].append(record)
            for log in logs:
                task = log.name.removeprefix("samples_").removesuffix(f"_{date}.jsonl")
                rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
                if any(name.startswith(f"{task}/") for name in records):  # others were scored, not sampled
                    yield from _lm_eval_task(task, settings, records, rows, metric, verdicts)


def _lm_eval_task(
    task: str,
    settings: Mapping[str, Any],
    records: Mapping[str, list[dict[str, Any]]],
    rows: Sequence[dict[str, Any]],
    metric: str | None,
    verdicts: bool,
) -> Iterable[HarnessCell]:
    """Return one task's samples, matched to lm-eval's documents; a portfolio's by component.

    Args:
        task: The task's name.
        settings: What our model stored in the results file, see `arguments.import_settings`.
        records: Request -> our record of each of its repeats, in order.
        rows: The lines of lm-eval's sample log: documents, answers and metrics.
        metric, verdicts: See `lm_eval`.
    """
    repeated = any(len(row["resps"][0]) > 1 for row in rows)
    if verdicts and repeated:
        raise UserError(
            f"{task}: lm-eval scores a document, not each of its repeats; choose a --grader for the samples "
            "(`twotemp graders` lists them)"
        )
    known = list(dict.fromkeys(f"{name},{row['filter']}" for row in rows for name in row["metrics"]))
    chosen = _choose("metric", metric, known) if verdicts else known[0]
    name, _, answer_filter = chosen.partition(",")
    drawn_by = policy_from_dict(settings["policy"])
    results = {
        policy: HarnessCell(
            "lm-eval",
            task,
            {**settings, "policy": policy.to_dict()},
            metric=f"lm-eval {chosen}" if verdicts else None,
        )
        for policy in drawn_by.components
    }
    waiting = defaultdict(list)  # the requests of each prompt: documents may share a prompt
    for request, prompt in settings["prompts"].items():
        if request.startswith(f"{task}/") and request.endswith("/0"):
            waiting[prompt["hash"]].append(request)
    for row in rows:
        if row["filter"] != answer_filter:
            continue
        if len(row["resps"]) > 1:
            raise UserError(f"{task}: documents with several requests cannot be imported")
        if not waiting[row["prompt_hash"]]:
            raise UserError(f"{task}: document {row['doc_id']} is not among the samples of the results file")
        request = waiting[row["prompt_hash"]].pop(0)
        target = str(row["target"]).rpartition("####")[2].strip()  # GSM8K's mark of the answer
        arguments = row["arguments"]["gen_args_0"]
        problem = Problem(request, task, arguments["arg_0"], {**row["doc"], "answer": target})
        prompt = tuple(settings["prompts"][request]["tokens"])
        for text, record in zip(row["resps"][0], records[request], strict=True):
            result = results[drawn_by.for_sample(record["index"])]
            result.problems[request] = problem
            sample = _sample(result.settings, record, prompt, text)
            result.samples.append(sample)
            if verdicts:
                filtered = row["filtered_resps"][0]
                answer = filtered[0] if isinstance(filtered, list) else filtered
                result.grades.append((sample.key, _grade(row[name], answer, chosen)))
    return [result for result in results.values() if result.samples]


def _sample(
    settings: Mapping[str, Any], record: Mapping[str, Any], prompt: tuple[int, ...], text: str
) -> Sample:
    positions = range(len(prompt), len(prompt) + len(record["tokens"]))
    shared = {"policy": settings["policy"], "prompt": prompt, "positions": positions, "text": text}
    return Sample.from_dict({**record, **shared})


# inspect_ai.


def inspect_ai(paths: Sequence[Path], metric: str | None, verdicts: bool) -> Iterator[HarnessCell]:
    """Yield the cells of logs (.eval, .json), with `lm_eval`'s arguments; `metric` is a scorer.

    The sample is the last answer of a conversation and the first of several choices, which is what inspect scores.
    """
    if find_spec("inspect_ai") is None:
        raise UserError("inspect_ai is needed to read its logs; pip install 'twotemp[inspect]'")
    from inspect_ai.log import read_eval_log

    for path in _files(paths, "*.eval"):
        with reading(path, DAMAGED):
            log = read_eval_log(str(path))
            cells: dict[str, HarnessCell] = {}
            for entry in log.samples or ():
                settings = ((entry.output.metadata if entry.output else None) or {}).get("twotemp")
                if settings is None:
                    raise UserError(
                        f"{path}: sample {entry.id} was not made with a model twotemp/…; only samples drawn by "
                        "twotemp can be imported"
                    )
                task = log.eval.task
                policy = spell(Policy.from_dict(settings["policy"]))
                chosen = _choose("scorer", metric, list(entry.scores or ())) if verdicts else None
                cell = cells.setdefault(
                    policy,
                    HarnessCell("inspect", task, settings, metric=f"inspect {chosen}" if verdicts else None),
                )
                name = f"{task}/{entry.id}"
                text = (
                    entry.input if isinstance(entry.input, str) else "\n\n".join(m.text for m in entry.input)
                )
                target = entry.target if isinstance(entry.target, str) else entry.target[0]
                cell.problems[name] = Problem(name, task, text, {**entry.metadata, "answer": target})
                # Later calls of an entry have request ids with a suffix; in the run all are answers to one problem.
                sample = replace(Sample.from_dict(settings["samples"][0]), request=name)
                cell.samples.append(sample)
                if chosen is not None:
                    score = (entry.scores or {})[chosen]
                    cell.grades.append((sample.key, _grade(score.value, score.answer, chosen)))
            yield from cells.values()


READERS: dict[str, Callable[[Sequence[Path], str | None, bool], Iterator[HarnessCell]]] = {
    "lm-eval": lm_eval,
    "inspect": inspect_ai,
}


def _files(paths: Sequence[Path], pattern: str) -> list[Path]:
    files = [file for path in paths for file in (sorted(path.rglob(pattern)) if path.is_dir() else [path])]
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        raise UserError(f"there is no {', '.join(missing) or f'{pattern} in {paths[0]}'}")
    return files


def _choose(kind: str, name: str | None, known: Sequence[str]) -> str:
    """Return the known name that is `name`, with or without the part after a comma; without `name`, the only one."""
    matches = known if name is None else [n for n in known if name in (n, n.partition(",")[0])]
    if name is not None and not matches:
        raise unknown(kind, name, known)
    if len(matches) != 1:
        raise UserError(
            f"there are several {kind}s ({', '.join(known)}); choose one with --metric, or a --grader"
        )
    return matches[0]


def _grade(value: Any, answer: str | None, metric: str) -> Grade:
    """Return the grade for a harness's value: 1 or "C" is right; 0 and inspect's other letters are wrong."""
    if value in (0, 1):
        passed = bool(value)
    elif value in ("C", "I", "P", "N"):
        passed = value == "C"
    else:
        raise UserError(
            f"{metric} is {value!r}, which is neither right nor wrong; choose another --metric, or a --grader"
        )
    return Grade("passed" if passed else "failed", answer or None, rule="recorded")
