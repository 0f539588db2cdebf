"""`twotemp train`: training from a recipe, as the embedded models were made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, e.g. recipes/tiny.yaml.")],
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, log, loss curve and the model.")],
) -> None:
    """Train a small LLaDA-layout model on the embedded tasks (the paper's equation 3), or a verifier of its answers.

    A run that was stopped continues where its last checkpoint was.

    [bold]Example[/bold]

      twotemp train recipes/tiny.yaml --out runs/tiny

      twotemp sample --model runs/tiny/model -n 8 --length 12 "20 10 15 -> 45"
    """
    from twotemp.cli.console import progress
    from twotemp.training import follow

    with progress(recipe.stem) as bar:
        made = follow(recipe, out, bar.update)
    typer.echo(f"saved {made}; how it went is in {out}")
