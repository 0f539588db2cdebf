"""Random models, one of every model type; built once for all test modules that share them."""

from __future__ import annotations

from tests.helpers.tiny_checkpoints import CONFIGS, random_model

MODELS = {model_type: random_model(model_type) for model_type in CONFIGS}
