"""Train the model that a recipe describes: `python -m recipes tiny.yaml --out runs/tiny`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twotemp.errors import UserError
from twotemp.serialization import read_yaml

if TYPE_CHECKING:
    from recipes.log import ProgressCallback

FOLDER = Path(__file__).parent
STOPPED = 130  # the exit code of a program ended by Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    A run that was stopped continues from its last checkpoint if it is started again with the same folder.
    """
    parser = argparse.ArgumentParser(
        prog="python -m recipes",
        description="Train a small LLaDA-layout model on the embedded tasks (the paper's equation 3), or a verifier "
        "of its answers. A run that was stopped continues from its last checkpoint.",
    )
    parser.add_argument("recipe", type=Path, help="a YAML file, or the name of one in recipes/ (tiny.yaml)")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="the run directory, for checkpoints, log, loss curve and model",
    )
    options = parser.parse_args(arguments)
    out: Path = options.out
    # Set before torch is imported, as `twotemp` does: waiting threads go to sleep early and free their core.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from twotemp.cli.console import progress

    try:
        with progress(options.recipe.stem) as bar:
            model = train(locate(options.recipe), out, bar.update)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped; run the same command to continue from the last checkpoint in {out}", file=sys.stderr)
        return STOPPED
    print(f"saved {model}; the log and the loss curve are in {out}")
    return 0


def locate(recipe: Path) -> Path:
    """Return the path of a recipe: the given path, or the file of that name in this folder."""
    return FOLDER / recipe if recipe.parent == Path() and not recipe.exists() else recipe


def train(recipe: Path, out: Path, on_progress: ProgressCallback | None = None) -> Path:
    """Train the model that a recipe describes and return the folder of its checkpoint.

    Args:
        recipe: The YAML file. A recipe with the key `sampled` describes a verifier, any other one a denoiser.
        out: The run directory. If it holds an unfinished run of the same recipe, that run is continued.
        on_progress: Called with the work done, the work in total, and a note.
    """
    from recipes import loop, verifier
    from recipes.log import ignore_progress
    from recipes.recipe import Recipe

    if "sampled" in read_yaml(recipe, "recipe"):
        return verifier.train(verifier.VerifierRecipe.read(recipe), out, on_progress or ignore_progress)
    return loop.train(Recipe.read(recipe), out, on_progress or ignore_progress)


if __name__ == "__main__":
    sys.exit(main())
