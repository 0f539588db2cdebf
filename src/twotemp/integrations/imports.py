"""Results of other harnesses as cells of a run: the samples, the questions they answer, the verdicts there are."""

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

from twotemp.errors import UserError, understood, unknown
from twotemp.folders import write_json
from twotemp.policies import spell
from twotemp.records import Grade, Key, Policy, Problem, Sample
from twotemp.serialization import json_text
from twotemp.store import Config, Store
from twotemp.tasks import ProblemSet
from twotemp.tasks.data import IMPORTED, RECORDED, to_dict

DAMAGED = "it is damaged, or another version of the harness wrote it"


@dataclass
class Found:
    """What one policy wrote for one task, as a harness kept it."""

    harness: str
    task: str
    origin: Mapping[str, Any]  # see `arguments.origin`
    metric: str | None = None  # whose verdicts the grades are; None: there are none
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
            model=self.origin["model"],
            fingerprint=self.origin["fingerprint"],
            policy=Policy.from_dict(self.origin["policy"]),
            length=max(len(sample.tokens) for sample in self.samples),
            block=self.origin["block"],
            seed=self.samples[0].seed,
            options={"cache": self.origin["cache"], "compile": self.origin["compile"], "from": self.harness},
        )

    @property
    def problem_set(self) -> ProblemSet:
        problems = tuple(self.problems.values())
        text = json_text([vars(problem) for problem in problems])
        return ProblemSet(problems, hashlib.sha256(text.encode()).hexdigest(), self.harness)


def bring(results: Iterable[Found], out: Path) -> dict[str, int]:
    """Write them into a run, a cell for each; cell -> how many samples are new. What is there already stays."""
    new: dict[str, int] = {}
    store = Store.create(out)
    for found in results:
        with understood(f"{found.harness}'s results of {found.task}", DAMAGED):
            config = found.config
        name = re.sub(r"[^\w.,:=@+-]", "-", f"{found.task}@{spell(config.policy)}")
        cell = store.cell(name, config)
        write_json(cell.path / IMPORTED, to_dict(found.problem_set))
        have = {(row["request"], row["index"]) for row in cell.light_rows()}
        fresh = [sample for sample in found.samples if (sample.request, sample.index) not in have]
        with cell.writer() as writer:
            writer.samples(fresh)
            if found.metric is not None:
                writer.grades(f"{RECORDED} {found.metric}", found.grades)
        new[name] = len(fresh)
    if not new:
        raise UserError("nothing to import: no task with samples of twotemp in these results")
    return new


# lm-evaluation-harness.


def lm_eval(paths: Sequence[Path], metric: str | None, verdicts: bool) -> Iterator[Found]:
    """results_*.json, with the samples that `--log_samples` writes beside it."""
    for path in _files(paths, "results_*.json"):
        try:
            origin = json.loads(path.read_text("utf-8"))["config"].get("twotemp")
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is not a results file of lm-eval ({error!r})") from error
        if origin is None:
            raise UserError(f"{path} was not made with --model twotemp; only our own samples can be imported")
        date = path.stem.rpartition("_")[2]
        logs = sorted(path.parent.glob(f"samples_*_{date}.jsonl"))
        if not logs:
            raise UserError(f"there are no samples beside {path}; run lm-eval with --log_samples")
        with understood(path, DAMAGED):
            drawn = defaultdict(list)
            for row in origin["samples"]:
                drawn[row["request"]].append(row)
            for log in logs:
                task = log.name.removeprefix("samples_").removesuffix(f"_{date}.jsonl")
                rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
                if any(name.startswith(f"{task}/") for name in drawn):  # others were scored, not sampled
                    yield _lm_eval_task(task, origin, drawn, rows, metric, verdicts)


def _lm_eval_task(
    task: str,
    origin: Mapping[str, Any],
    drawn: Mapping[str, list[dict[str, Any]]],
    rows: Sequence[dict[str, Any]],
    metric: str | None,
    verdicts: bool,
) -> Found:
    repeated = any(len(row["resps"][0]) > 1 for row in rows)
    if verdicts and repeated:
        raise UserError(
            f"{task}: lm-eval judges a document, not each of its repeats; say who does: --grader NAME "
            "(`twotemp graders` lists them)"
        )
    known = list(dict.fromkeys(f"{name},{row['filter']}" for row in rows for name in row["metrics"]))
    chosen = _chosen("metric", metric, known) if verdicts else known[0]
    name, _, kept = chosen.partition(",")
    found = Found("lm-eval", task, origin, metric=f"lm-eval {chosen}" if verdicts else None)
    waiting = defaultdict(list)  # the requests of each prompt: documents may share one
    for request, prompt in origin["prompts"].items():
        if request.startswith(f"{task}/") and request.endswith("/0"):
            waiting[prompt["hash"]].append(request)
    for row in rows:
        if row["filter"] != kept:
            continue
        if len(row["resps"]) > 1:
            raise UserError(f"{task}: several requests for one document cannot be imported")
        if not waiting[row["prompt_hash"]]:
            raise UserError(f"{task}: document {row['doc_id']} is not among the samples of the results file")
        request = waiting[row["prompt_hash"]].pop(0)
        target = str(row["target"]).rpartition("####")[2].strip()  # GSM8K's mark of the answer
        arguments = row["arguments"]["gen_args_0"]
        found.problems[request] = Problem(request, task, arguments["arg_0"], {**row["doc"], "answer": target})
        prompt = tuple(origin["prompts"][request]["tokens"])
        for text, numbers in zip(row["resps"][0], drawn[request], strict=True):
            sample = _sample(origin, numbers, prompt, text)
            found.samples.append(sample)
            if verdicts:
                said = row["filtered_resps"][0]
                answer = said[0] if isinstance(said, list) else said
                found.grades.append((sample.key, _verdict(row[name], answer, chosen)))
    return found


def _sample(
    origin: Mapping[str, Any], numbers: Mapping[str, Any], prompt: tuple[int, ...], text: str
) -> Sample:
    positions = range(len(prompt), len(prompt) + len(numbers["tokens"]))
    more = {"policy": origin["policy"], "prompt": prompt, "positions": positions, "text": text}
    return Sample.from_dict({**numbers, **more})


# inspect_ai.


def inspect_ai(paths: Sequence[Path], metric: str | None, verdicts: bool) -> Iterator[Found]:
    """Logs (.eval, .json). Of a conversation, the last answer is the sample; of several choices, the first, which is
    the one that inspect scores."""
    if find_spec("inspect_ai") is None:
        raise UserError("inspect_ai is needed to read its logs; pip install 'twotemp[inspect]'")
    from inspect_ai.log import read_eval_log

    for path in _files(paths, "*.eval"):
        with understood(path, DAMAGED):
            log = read_eval_log(str(path))
            cells: dict[str, Found] = {}
            for one in log.samples or ():
                kept = ((one.output.metadata if one.output else None) or {}).get("twotemp")
                if kept is None:
                    raise UserError(
                        f"{path}: sample {one.id} was not answered by a model twotemp/…; only our own samples can be "
                        "imported"
                    )
                task = log.eval.task
                name = spell(Policy.from_dict(kept["policy"]))
                chosen = _chosen("scorer", metric, list(one.scores or ())) if verdicts else None
                found = cells.setdefault(
                    name, Found("inspect", task, kept, metric=f"inspect {chosen}" if verdicts else None)
                )
                problem = f"{task}/{one.id}"
                text = one.input if isinstance(one.input, str) else "\n\n".join(m.text for m in one.input)
                target = one.target if isinstance(one.target, str) else one.target[0]
                found.problems[problem] = Problem(problem, task, text, {**one.metadata, "answer": target})
                # A sample that takes several calls names them apart; here it is one answer to one question.
                sample = replace(Sample.from_dict(kept["samples"][0]), request=problem)
                found.samples.append(sample)
                if chosen is not None:
                    score = one.scores[chosen]
                    found.grades.append((sample.key, _verdict(score.value, score.answer, chosen)))
            yield from cells.values()


# Both.

READERS: dict[str, Callable[[Sequence[Path], str | None, bool], Iterator[Found]]] = {
    "lm-eval": lm_eval,
    "inspect": inspect_ai,
}


def _files(paths: Sequence[Path], pattern: str) -> list[Path]:
    files = [file for path in paths for file in (sorted(path.rglob(pattern)) if path.is_dir() else [path])]
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        raise UserError(f"there is no {', '.join(missing) or f'{pattern} in {paths[0]}'}")
    return files


def _chosen(kind: str, wanted: str | None, known: Sequence[str]) -> str:
    """The one that is wanted, by its name or the part before a comma, or the only one there is."""
    fitting = known if wanted is None else [n for n in known if wanted in (n, n.partition(",")[0])]
    if wanted is not None and not fitting:
        raise unknown(kind, wanted, known)
    if len(fitting) != 1:
        raise UserError(
            f"there are several {kind}s ({', '.join(known)}); choose one with --metric, or a --grader"
        )
    return fitting[0]


def _verdict(value: Any, answer: str | None, metric: str) -> Grade:
    """A harness's value as a verdict: right is 1 or "C", wrong 0 or one of inspect's other letters."""
    if value in (0, 1):
        passed = bool(value)
    elif value in ("C", "I", "P", "N"):
        passed = value == "C"
    else:
        raise UserError(
            f"{metric} says {value!r}, which is neither right nor wrong; choose another --metric, or a --grader"
        )
    return Grade("passed" if passed else "failed", answer or None, rule="recorded")
