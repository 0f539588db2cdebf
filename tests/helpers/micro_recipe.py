"""A recipe that trains in a second."""

from __future__ import annotations

from recipes.recipe import Recipe

MICRO = Recipe(
    name="micro",
    d_model=16,
    n_layers=1,
    n_heads=2,
    mlp_hidden_size=32,
    examples={"countdown-3": 60, "programs-1": 40},
    batch_tokens=200,
    steps=8,
    decay=2,
    warmup=2,
    checkpoint_every=4,
    log_every=2,
)
