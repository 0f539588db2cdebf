"""Measure every number of README and docs: `make paper`, or

    python -m experiments.paper                       # all parts; `--list` shows how long each takes
    python -m experiments.paper --parts claims,again  # only these
    python -m experiments.paper --parts claims --questions 100 -n 16      # a smaller run
    python -m experiments.paper --list                # the parts, and which are up to date
    python -m experiments.paper --check               # exit 1 if a document differs from the stored results
    python -m experiments.paper --parts portfolios --merge ELSEWHERE/portfolios.json   # join results, draw nothing

Only the GRPO runs train a model. A part draws the samples that are missing under runs/paper, so a part that was
stopped continues, and stores its result in experiments/results/PART.json; its blocks in the documents are generated
from there. A result records the weights and settings that it was measured with, and its blocks say so if these have
changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments import blocks
from experiments.parts import BLOCKS, PARTS, ROOT, Part, PartOptions
from twotemp import __version__
from twotemp.errors import UserError
from twotemp.folders import write_text
from twotemp.models.load import locate

RESULTS = ROOT / "experiments" / "results"
DOCUMENTS = (
    "README.md",
    "recipes/README.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
)


# --- stored results -------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    """Return a short hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def inputs(part: Part) -> dict[str, Any]:
    """Return what a result depends on apart from its size: the weights of its models, and its settings."""
    models = {name: digest(locate(name, embedded=(name,)) / "model.safetensors") for name in part.models}
    return {"weights": models, "settings": json.loads(json.dumps(part.settings))}


def stored(name: str) -> dict[str, Any] | None:
    """Return the stored result of a part, or None."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def current(name: str, questions: int, samples: int) -> bool:
    """Tell whether a part's result has this size, the shipped weights and the present settings."""
    result = stored(name)
    expected = {"questions": questions, "samples": samples, **inputs(PARTS[name])}
    return (
        result is not None
        and result["found"].get("complete", True)
        and all(result[key] == value for key, value in expected.items())
    )


def perform(name: str, options: PartOptions, *, finished: bool = False, merged: Sequence[Path] = ()) -> None:
    """Run a part and store its result.

    Args:
        name: Of the part.
        options: Where its runs are, and how much it draws.
        finished: Run nothing and store what is complete.
        merged: Results of the same part from elsewhere. If there are any, the part joins them with its stored result
            and draws nothing.
    """
    part = PARTS[name]
    if finished and part.finished is None:
        raise UserError("it is one run; leave --finished out")
    weights = inputs(part)["weights"]
    results = [stored(name), *(json.loads(path.read_text("utf-8")) for path in merged)]
    earlier = [result["found"] for result in results if result and result["weights"] == weights]
    keep = partial(store, name, options)
    options = replace(options, earlier=earlier, keep=keep, draw=not merged)
    keep(part.finished(options) if finished and part.finished else part.run(options))


def store(name: str, options: PartOptions, found: dict[str, Any]) -> None:
    """Write the result of a part, and copy its figures into the documents."""
    part = PARTS[name]
    figures = {}
    for source, target in part.figures.items():
        path = ROOT / "docs" / "figures" / target
        shutil.copyfile(options.runs / source, path)
        figures[target] = digest(path)
    result = {
        "version": __version__,
        **inputs(part),
        "questions": options.questions,
        "samples": options.samples,
        "figures": figures,
        "found": found,
    }
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")


# --- documents ------------------------------------------------------------------------------------------------


def text_of(block: str) -> str:
    """Return the text of a block, generated from the stored result of its part."""
    if block not in BLOCKS:
        raise KeyError(f"no part generates the block {block!r}; the blocks are {', '.join(BLOCKS)}")
    part, make = BLOCKS[block]
    result = stored(part)
    if result is None:
        return f'*Not measured with these models yet; run `make paper PARTS="{part}"`.*'
    text = make(result["found"])
    for name, value in inputs(PARTS[part]).items():
        if result[name] != value:
            text += f"\n\n*The {name} have changed since this was measured.*"
    return text


def differing() -> dict[str, str]:
    """Return the documents that differ from the stored results, with the text that they should have."""
    corrected = {}
    for name in DOCUMENTS:
        text = (ROOT / name).read_text("utf-8")
        if (expected := blocks.rewritten(text, text_of)) != text:
            corrected[name] = expected
    return corrected


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default="", help="names, separated by commas or spaces (default: all)")
    parser.add_argument("--questions", type=int, help="questions per task (default: each part's own number)")
    parser.add_argument("-n", type=int, dest="samples", help="samples per question (default: 64)")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "paper", help="where the samples are kept"
    )
    parser.add_argument(
        "--finished",
        action="store_true",
        help="of a part of many runs: store those that are complete, run nothing",
    )
    parser.add_argument("--list", action="store_true", help="list the parts and whether they are up to date")
    parser.add_argument("--check", action="store_true", help="exit 1 if a document differs from the results")
    parser.add_argument(
        "--blocks", action="store_true", help="rewrite the documents from the stored results; measure nothing"
    )
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="with --parts portfolios: join its result with these results of other machines; draw nothing",
    )
    arguments = parser.parse_args()
    chosen = arguments.parts.replace(",", " ").split() or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    sizes = {
        name: (
            arguments.questions or part.questions,
            (arguments.samples or part.samples) if part.samples else 0,
        )
        for name, part in ((name, PARTS[name]) for name in chosen)
    }
    if arguments.merge and chosen != ["portfolios"]:
        parser.error("only portfolios has a result that can be joined with others: add --parts portfolios")
    if arguments.list:
        for name in chosen:
            state = "up to date" if current(name, *sizes[name]) else "to do"
            print(f"{name:12} {state:10} {PARTS[name].minutes:4} min  {PARTS[name].about}")
        return
    if arguments.check:
        if documents := differing():
            sys.exit(
                f"{', '.join(documents)}: not up to date with the stored results; run "
                "`python -m experiments.paper --blocks`"
            )
        return
    for name in chosen if not arguments.blocks else ():
        if arguments.finished or arguments.merge or not current(name, *sizes[name]):
            print(f"--- {name}: {PARTS[name].about}", flush=True)
            # One folder per set of weights, shared by all parts, because some parts use the samples of others.
            folder = arguments.runs / inputs(PARTS["claims"])["weights"]["tiny"]
            try:
                size = PartOptions(folder, *sizes[name])
                perform(name, size, finished=arguments.finished, merged=arguments.merge)
            except UserError as error:
                sys.exit(f"{name}: {error}")
            except KeyboardInterrupt:
                sys.exit(f"{name}: stopped; run the same command to continue")
            write_documents()
    write_documents()


def write_documents() -> None:
    """Rewrite the documents that differ from the stored results."""
    for name, text in differing().items():
        (ROOT / name).write_text(text, "utf-8")
        print(f"rewritten: {name}", flush=True)


if __name__ == "__main__":
    main()
