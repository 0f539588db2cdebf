"""`python -m recipes`: train what a recipe describes, as the embedded models were made."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twotemp.errors import UserError
from twotemp.plain import read_yaml

if TYPE_CHECKING:
    from recipes.log import Watch

FOLDER = Path(__file__).parent
STOPPED = 130  # the exit code of a program ended by Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Started again with the same folder, a run that was stopped continues where its last checkpoint was.
    """
    parser = argparse.ArgumentParser(
        prog="python -m recipes",
        description="Train a small LLaDA-layout model on the embedded tasks (the paper's equation 3), or a verifier "
        "of its answers. A run that was stopped continues where its last checkpoint was.",
    )
    parser.add_argument(
        "recipe", type=Path, help="a recipe: a file, or the name of one in recipes/ (tiny.yaml)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoints, log, loss curve and the model"
    )
    options = parser.parse_args(arguments)
    out: Path = options.out
    # As `twotemp` does, and before torch is imported: threads that wait sleep soon and leave the cores to others.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from twotemp.cli.console import progress

    try:
        with progress(options.recipe.stem) as bar:
            model = follow(locate(options.recipe), out, bar.update)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped; what was finished is kept in {out}, and the same command continues", file=sys.stderr)
        return STOPPED
    print(f"saved {model}; the log and the loss curve are in {out}")
    return 0


def locate(recipe: Path) -> Path:
    """Return the file a recipe's name stands for: the path itself, or the file of that name in this folder."""
    return FOLDER / recipe if recipe.parent == Path() and not recipe.exists() else recipe


def follow(recipe: Path, out: Path, watch: Watch | None = None) -> Path:
    """Train what a recipe's file describes and return the folder of the finished model.

    Args:
        recipe: The file. A recipe with `sampled` in it describes a verifier, any other one a denoiser.
        out: The folder of the run. It may hold the beginning of the same run, which is then continued.
        watch: Called with the work done, the work in total, and a note.
    """
    from recipes import loop, verifier
    from recipes.log import unwatched
    from recipes.recipe import Recipe

    if "sampled" in read_yaml(recipe, "recipe"):
        return verifier.train(verifier.VerifierRecipe.read(recipe), out, watch or unwatched)
    return loop.train(Recipe.read(recipe), out, watch or unwatched)


if __name__ == "__main__":
    sys.exit(main())
