"""The random models of tests/fixtures, in the layout that each family's own code writes."""

from __future__ import annotations

import json
from pathlib import Path

from twotemp.models.load import load
from twotemp.models.transformer import Transformer

FIXTURES = Path(__file__).parents[1] / "fixtures"


def fixture_model(name: str) -> Transformer:
    """Load the fixture of this name with the options in its reference.json."""
    return load(FIXTURES / name, **json.loads((FIXTURES / name / "reference.json").read_text())["options"])
