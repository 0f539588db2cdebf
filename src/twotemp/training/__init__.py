"""Train a miniature LLaDA on the generated tasks: `train(Recipe.read(path), out)`."""

from twotemp.training.loop import train
from twotemp.training.recipe import Recipe

__all__ = ["Recipe", "train"]
