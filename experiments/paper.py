"""Every number of README and docs, by one command: `make paper`, or

    python -m experiments.paper                       # all parts: `--list` says how long each takes
    python -m experiments.paper --parts claims,again  # some of them
    python -m experiments.paper --parts claims --questions 100 -n 16      # smaller
    python -m experiments.paper --list                # the parts, and which are up to date
    python -m experiments.paper --check               # do the documents say what the stored results say?

Nothing is trained but the GRPO runs that are themselves an experiment. A part draws what is missing under runs/paper
(stopped, it continues), keeps what was found in experiments/results/PART.json, and its blocks in the documents are
written from there. A result knows the weights it was measured with, and its blocks say so when they are not the
shipped ones any more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from experiments.command import twotemp
from twotemp import __version__
from twotemp.analysis import read
from twotemp.evaluation.comparison import policies
from twotemp.models.load import locate
from twotemp.report import write

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
DOCUMENTS = (
    "README.md",
    "recipes/README.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
)
CHOOSERS = ("ar", "ct", "tct")


@dataclass(frozen=True)
class Asked:
    """Where a part draws, and how much."""

    runs: Path  # of these weights, for all parts: some read what others drew
    questions: int
    samples: int


@dataclass(frozen=True)
class Part:
    about: str
    minutes: int  # on two idle cores, roughly
    run: Callable[[Asked], dict[str, Any]]
    blocks: Mapping[str, Callable[[dict[str, Any]], str]]
    questions: int = 500
    samples: int = 64
    models: Sequence[str] = ("tiny",)
    figures: Mapping[str, str] = field(default_factory=dict)  # file under runs -> file in docs/figures
    needs: Sequence[str] = ()  # parts whose samples it reads


def claims(asked: Asked) -> dict[str, Any]:
    out = asked.runs / "claims"
    embedded.draw(out, questions=asked.questions, samples=asked.samples)
    found = embedded.summary(out, asked.samples)
    write([one for one in read([out]) if one.task in embedded.TASKS], out / "report")
    return found


def again(asked: Asked) -> dict[str, Any]:
    out = asked.runs / "again"
    embedded.draw(out, questions=asked.questions, samples=asked.samples, subset="test:7")
    return embedded.summary(out, asked.samples)


def selection(asked: Asked) -> dict[str, Any]:
    return verifier.summary(asked.runs / "claims", verifier.TRAINED, CHOOSERS, asked.samples)


def judges(asked: Asked) -> dict[str, Any]:
    out = asked.runs / "verifier"
    size = ["--questions", str(asked.questions), "-n", str(asked.samples), "--trace"]
    for task in embedded.TASKS:
        specs = ";".join(policies(task)[name] for name in CHOOSERS)
        twotemp("eval", *embedded.asking(task), "--policies", specs, *size, "--out", str(out))
    return verifier.summary(out, verifier.ALL, CHOOSERS, asked.samples)


def of_file(
    name: str, minutes: int, about: str, models: Sequence[str] = ("tiny",), questions: int = 100
) -> Part:
    return Part(
        about,
        minutes,
        lambda asked: files.run(name, asked.runs / name, asked.questions, asked.samples),
        {name: files.shown},
        questions=questions,
        models=models,
    )


PARTS: dict[str, Part] = {
    "training": Part(
        "what made the shipped weights, from their logs",
        0,
        lambda asked: training.summary(ROOT / "recipes"),
        {"training": training.shown},
        models=("tiny", "tiny-ar"),
    ),
    "theory": Part(
        "the exact numbers of the pages about forks and theory",
        1,
        lambda asked: theory.measure(),
        {"planted": theory.of_the_fork, "sweep": theory.sweep, "monotonicity": theory.monotonicity},
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
        models=(),
    ),
    "claims": Part(
        "the paper's crossing: five policies on three tasks",
        100,
        claims,
        {"measured": embedded.measured, "claims": embedded.claims},
        figures={f"claims/report/{name}.png": f"{name}.png" for name in ("pass_at_k", "pass_at_nfe")},
    ),
    "again": Part(
        "the same on 500 other problems",
        100,
        again,
        {"measured-again": embedded.measured, "again": embedded.claims},
    ),
    "selection": Part(
        "one answer from many, on the samples of `claims`",
        25,
        selection,
        {"selection": verifier.chosen, "selection-findings": verifier.findings},
        models=("tiny", "verifier"),
        figures={
            "claims/selection/best-words-3.png": "selection-best.png",
            "claims/selection/entropy.png": "selection-entropy.png",
        },
        needs=("claims",),
    ),
    "verifier": Part(
        "the verifier against what needs no training",
        10,
        judges,
        {"verifier": verifier.told_apart, "verifier-best": verifier.chosen},
        questions=100,
        models=("tiny", "verifier"),
    ),
    "forks": Part(
        "the fork study",
        3,
        lambda asked: study.run(asked.runs / "forks", asked.questions),
        {"forks": study.shown},
        questions=100,
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
        questions=frontier.QUESTIONS,
    ),
    "tuning": Part(
        "`twotemp tune` against a full grid",
        40,
        lambda asked: tuning.run(asked.runs / "tuning", tuning.TASKS, 3, 100, asked.questions),
        {"tuning": tuning.shown},
        questions=300,
        samples=tuning.K,
    ),
    "grpo": Part(
        "GRPO on equal terms; its time is the experiment: run it on an idle machine",
        60,
        lambda asked: grpo.run(asked.runs / "grpo", grpo.Size(180, 250_000, 3, asked.questions)),
        {"grpo": grpo.shown, "grpo-short": grpo.short},
        figures={"grpo/report/grpo.png": "grpo.png"},
    ),
}
BLOCKS = {name: (part, make) for part, one in PARTS.items() for name, make in one.blocks.items()}


# --- stored results -------------------------------------------------------------------------------------------


def weights(part: Part) -> dict[str, str]:
    """Of every model of a part, a digest of its weights."""
    found = {}
    for name in part.models:
        file = locate(name, embedded=(name,)) / "model.safetensors"
        found[name] = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    return found


def stored(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def current(name: str, questions: int, samples: int) -> bool:
    """Was it measured in this size, with the weights that are shipped?"""
    result = stored(name)
    same = {"questions": questions, "samples": samples, "weights": weights(PARTS[name])}
    return result is not None and all(result[key] == value for key, value in same.items())


def perform(name: str, asked: Asked) -> None:
    """Run a part and keep what it found."""
    part = PARTS[name]
    for needed in part.needs:
        if not current(needed, asked.questions, asked.samples):
            sys.exit(f"{name} reads the samples of {needed}; run that first, in the same size")
    found = part.run(asked)
    drawn = {}
    for source, target in part.figures.items():
        path = ROOT / "docs" / "figures" / target
        shutil.copyfile(asked.runs / source, path)
        drawn[target] = digest(path)
    result = {
        "version": __version__,
        "weights": weights(part),
        "questions": asked.questions,
        "samples": asked.samples,
        "figures": drawn,
        "found": found,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


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
    if result["weights"] != weights(PARTS[part]):
        text += "\n\n*Measured with other weights than the ones that are shipped now.*"
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
        name: (given.questions or PARTS[name].questions, given.samples or PARTS[name].samples)
        for name in chosen
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
            perform(name, Asked(given.runs / weights(PARTS["claims"])["tiny"], *sizes[name]))
            write_documents()
    write_documents()


def write_documents() -> None:
    for name, text in differing().items():
        (ROOT / name).write_text(text, "utf-8")
        print(f"rewritten: {name}", flush=True)


if __name__ == "__main__":
    main()
