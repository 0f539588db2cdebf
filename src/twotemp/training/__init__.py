"""Train the embedded models: a miniature LLaDA on the generated tasks, and the verifier of its answers."""

from pathlib import Path

from twotemp.serialization import read_yaml
from twotemp.training.log import Watch, unwatched
from twotemp.training.loop import train
from twotemp.training.recipe import Recipe

__all__ = ["Recipe", "follow", "train"]


def follow(recipe: Path, out: Path, watch: Watch = unwatched) -> Path:
    """Train what a recipe's file describes, a denoiser or (if it draws samples) a verifier; the finished folder."""
    if "sampled" not in read_yaml(recipe, "recipe"):
        return train(Recipe.read(recipe), out, watch)
    from twotemp.training import verifier

    return verifier.train(verifier.VerifierRecipe.read(recipe), out, watch)
