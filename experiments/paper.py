"""Every number of README and docs, by one command: `make paper`, or

    python -m experiments.paper                       # all parts: `--list` says how long each takes
    python -m experiments.paper --parts claims,again  # some of them
    python -m experiments.paper --parts claims --questions 100 -n 16      # smaller
    python -m experiments.paper --list                # the parts, and which are up to date
    python -m experiments.paper --check               # do the documents say what the stored results say?

Nothing is trained but the GRPO runs that are themselves an experiment. A part draws what is missing under runs/paper
(stopped, it continues), keeps what was found in experiments/results/PART.json, and its blocks in the documents are
written from there. A result knows the weights and the settings it was measured with, and its blocks say so when
they are not the present ones any more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from experiments import (
    blocks,
    embedded,
    files,
    frontier,
    grpo,
    likelihood_estimators,
    study,
    theory,
    training,
    tuning,
    verifier,
)
from experiments.command import evaluated
from twotemp import __version__
from twotemp.analysis import GradedCell
from twotemp.errors import UserError
from twotemp.evaluation.comparison import BLOCKS_PER_ANSWER, block, policies
from twotemp.folders import write_text
from twotemp.models.load import locate
from twotemp.report import write

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
DOCUMENTS = (
    "README.md",
    "recipes/README.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
)


@dataclass(frozen=True)
class Asked:
    """Where a part draws, and how much."""

    runs: Path
    questions: int
    samples: int  # per question; of a part without such a number, 0


@dataclass(frozen=True)
class Part:
    about: str
    minutes: int  # on two idle cores, roughly
    run: Callable[[Asked], dict[str, Any]]
    blocks: Mapping[str, Callable[[dict[str, Any]], str]]
    settings: Any = None  # JSON: what else decides the result and may change
    questions: int = 500
    samples: int | None = 64  # per question; None: the part has numbers of its own
    models: Sequence[str] = ("tiny",)
    figures: Mapping[str, str] = field(default_factory=dict)  # file under runs -> file in docs/figures


def drawn(asked: Asked, part: str = "claims", subset: str = "test") -> list[GradedCell]:
    """The samples of the claims. Who reads them later asks in the same way: what is missing is drawn."""
    size = {"questions": asked.questions, "samples": asked.samples}
    return embedded.draw(asked.runs / part, subset=subset, **size)


def claims(asked: Asked) -> dict[str, Any]:
    cells = drawn(asked)
    write([one for one in cells if one.task in embedded.TASKS], asked.runs / "claims" / "report")
    return embedded.summary(cells, asked.samples)


def again(asked: Asked) -> dict[str, Any]:
    return embedded.summary(drawn(asked, "again", "test:7"), asked.samples)


def selection(asked: Asked) -> dict[str, Any]:
    report = asked.runs / "claims" / "selection"
    return verifier.summary(drawn(asked), verifier.TRAINED, asked.samples, report)


def judges(asked: Asked) -> dict[str, Any]:
    out, cells = asked.runs / "verifier", []
    size = {"n": asked.samples, "questions": asked.questions}
    for task in embedded.TASKS:
        specs = [policies(task)[name] for name in verifier.CHOOSERS]
        cells += evaluated(out, task, specs, "--block", str(block(task)), "--trace", **size)
    return verifier.summary(cells, verifier.ALL, asked.samples, out / "selection")


def of_file(
    name: str, minutes: int, about: str, models: Sequence[str] = ("tiny",), questions: int = 100
) -> Part:
    return Part(
        about,
        minutes,
        lambda asked: files.run(name, asked.runs / name, asked.questions, asked.samples),
        {name: files.shown},
        yaml.safe_load((files.HERE / f"{name}.yaml").read_text("utf-8")),
        questions=questions,
        models=models,
    )


CLAIMS = {
    "policies": {task: policies(task) for task in embedded.TASKS},
    "blocks": BLOCKS_PER_ANSWER,
    "easier": [embedded.EASIER, embedded.EASIER_SAMPLES],
}
GRPO = grpo.Size(seconds=180, nfe=250_000, seeds=3, held_out=500)
PARTS: dict[str, Part] = {
    "training": Part(
        "what made the shipped weights, from their logs",
        0,
        lambda asked: training.summary(ROOT / "recipes"),
        {"training": training.shown},
        samples=None,
        models=("tiny", "tiny-ar"),
    ),
    "theory": Part(
        "the exact numbers of the pages about forks and theory",
        1,
        lambda asked: theory.measure(),
        {"planted": theory.of_the_fork, "sweep": theory.sweep, "monotonicity": theory.monotonicity},
        samples=None,
        models=(),
    ),
    "likelihoods": Part(
        "estimators of likelihood on tables",
        1,
        lambda asked: likelihood_estimators.measure(),
        {
            "likelihoods": likelihood_estimators.of_strings,
            "trajectories": likelihood_estimators.of_trajectories,
        },
        samples=None,
        models=(),
    ),
    "claims": Part(
        "the paper's crossing: five policies on three tasks",
        100,
        claims,
        {"readme": embedded.readme, "measured": embedded.measured, "claims": embedded.claims},
        CLAIMS,
        figures={f"claims/report/{name}.png": f"{name}.png" for name in ("pass_at_k", "pass_at_nfe")},
    ),
    "again": Part(
        "the same on 500 other problems",
        100,
        again,
        {"measured-again": embedded.measured, "again": embedded.claims},
        CLAIMS,
    ),
    "selection": Part(
        "one answer from many, on the samples of `claims` (missing ones are drawn)",
        25,
        selection,
        {"selection": verifier.chosen, "selection-findings": verifier.findings},
        {**CLAIMS, "selectors": verifier.TRAINED},
        models=("tiny", "verifier"),
        figures={
            "claims/selection/best-words-3.png": "selection-best.png",
            "claims/selection/entropy.png": "selection-entropy.png",
        },
    ),
    "verifier": Part(
        "the verifier against what needs no training",
        10,
        judges,
        {"verifier": verifier.told_apart, "verifier-best": verifier.chosen},
        {**CLAIMS, "selectors": verifier.ALL},
        questions=100,
        models=("tiny", "verifier"),
    ),
    "forks": Part(
        "the fork study",
        3,
        lambda asked: study.run(asked.runs / "forks", asked.questions),
        {"forks": study.shown},
        questions=100,
        samples=None,
    ),
    "models": of_file("models", 8, "tiny and tiny-ar: amounts of diffusion training", ("tiny", "tiny-ar")),
    "t_pos": of_file("t_pos", 12, "position temperatures"),
    "t_token": of_file("t_token", 9, "token temperatures", questions=60),
    "frontier": Part(
        "every method, tuned jointly, and points of the frame that nobody has published",
        60,
        lambda asked: frontier.run(asked.runs / "frontier", asked.questions, asked.samples, seeds=3),
        {
            "frontier": frontier.shown,
            "frontier-statements": frontier.statements,
            "frontier-ahead": frontier.ahead,
        },
        [frontier.TASKS, frontier.METHODS, frontier.GOAL],
        questions=frontier.QUESTIONS,
    ),
    "tuning": Part(
        "`twotemp tune` against a full grid",
        40,
        lambda asked: tuning.run(asked.runs / "tuning", tuning.TASKS, 3, 100, asked.questions),
        {"tuning": tuning.shown},
        [
            tuning.TASKS,
            tuning.POLICIES,
            tuning.K,
            tuning.SHARE,
            tuning.RIVALS,
            tuning.TESTED,
            tuning.TEST_SEED,
        ],
        questions=300,
        samples=None,
    ),
    "grpo": Part(
        "GRPO on equal terms; its time is the experiment: run it on an idle machine",
        60,
        lambda asked: grpo.run(asked.runs / "grpo", replace(GRPO, held_out=asked.questions)),
        {"grpo": grpo.shown, "grpo-short": grpo.short},
        [grpo.TASK, grpo.ROLLOUTS, grpo.LIKELIHOODS, asdict(GRPO)],
        questions=GRPO.held_out,
        samples=None,
        figures={"grpo/report/grpo.png": "grpo.png"},
    ),
}
BLOCKS = {name: (part, make) for part, one in PARTS.items() for name, make in one.blocks.items()}


# --- stored results -------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def inputs(part: Part) -> dict[str, Any]:
    """What a result depends on beside its size: the weights of its models, and its settings."""
    models = {name: digest(locate(name, embedded=(name,)) / "model.safetensors") for name in part.models}
    return {"weights": models, "settings": json.loads(json.dumps(part.settings))}


def stored(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def current(name: str, questions: int, samples: int) -> bool:
    """Was it measured in this size, with the weights that are shipped and the settings that are written here?"""
    result = stored(name)
    same = {"questions": questions, "samples": samples, **inputs(PARTS[name])}
    return result is not None and all(result[key] == value for key, value in same.items())


def perform(name: str, asked: Asked) -> None:
    """Run a part and keep what it found."""
    part = PARTS[name]
    found = part.run(asked)
    figures = {}
    for source, target in part.figures.items():
        path = ROOT / "docs" / "figures" / target
        shutil.copyfile(asked.runs / source, path)
        figures[target] = digest(path)
    result = {
        "version": __version__,
        **inputs(part),
        "questions": asked.questions,
        "samples": asked.samples,
        "figures": figures,
        "found": found,
    }
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")


# --- documents ------------------------------------------------------------------------------------------------


def text_of(block: str) -> str:
    """What a block says: made from the stored result of its part."""
    if block not in BLOCKS:
        raise KeyError(f"no part makes the block {block!r}; there are {', '.join(BLOCKS)}")
    part, make = BLOCKS[block]
    result = stored(part)
    if result is None:
        return f'*Not measured with these models yet: `make paper PARTS="{part}"`.*'
    text = make(result["found"])
    for what, now in inputs(PARTS[part]).items():
        if result[what] != now:
            text += f"\n\n*Measured with other {what} than the present ones.*"
    return text


def differing() -> dict[str, str]:
    """Documents that do not say what the stored results say, with what they should be."""
    found = {}
    for name in DOCUMENTS:
        text = (ROOT / name).read_text("utf-8")
        if (right := blocks.rewritten(text, text_of)) != text:
            found[name] = right
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default="", help="names, separated by commas or spaces; all unless given")
    parser.add_argument("--questions", type=int, help="per task, instead of each part's own number")
    parser.add_argument("-n", type=int, dest="samples", help="samples per question, instead of 64")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "paper", help="where samples are kept")
    parser.add_argument("--list", action="store_true", help="show the parts")
    parser.add_argument("--check", action="store_true", help="exit 1 if a document differs from the results")
    parser.add_argument(
        "--blocks", action="store_true", help="rewrite the documents from stored results only"
    )
    given = parser.parse_args()
    chosen = given.parts.replace(",", " ").split() or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    sizes = {
        name: (given.questions or part.questions, (given.samples or part.samples) if part.samples else 0)
        for name, part in ((name, PARTS[name]) for name in chosen)
    }
    if given.list:
        for name in chosen:
            state = "up to date" if current(name, *sizes[name]) else "to do"
            print(f"{name:12} {state:10} {PARTS[name].minutes:4} min  {PARTS[name].about}")
        return
    if given.check:
        if found := differing():
            sys.exit(
                f"{', '.join(found)}: not what the stored results say; python -m experiments.paper --blocks"
            )
        return
    for name in chosen if not given.blocks else ():
        if not current(name, *sizes[name]):
            print(f"--- {name}: {PARTS[name].about}", flush=True)
            # By the weights, for all parts together: some read what others drew.
            folder = given.runs / inputs(PARTS["claims"])["weights"]["tiny"]
            try:
                perform(name, Asked(folder, *sizes[name]))
            except UserError as error:
                sys.exit(f"{name}: {error}")
            except KeyboardInterrupt:
                sys.exit(f"{name}: stopped; the same command continues")
            write_documents()
    write_documents()


def write_documents() -> None:
    for name, text in differing().items():
        (ROOT / name).write_text(text, "utf-8")
        print(f"rewritten: {name}", flush=True)


if __name__ == "__main__":
    main()
