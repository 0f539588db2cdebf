"""The entry point of inspect_ai: registers the provider's name and imports the provider when it is used."""

from __future__ import annotations

from typing import Any

from inspect_ai.model import modelapi


@modelapi(name="twotemp")  # type: ignore[untyped-decorator]  # inspect_ai need not be installed
def twotemp() -> Any:
    from twotemp.integrations.inspect_ai import TwoTempAPI

    return TwoTempAPI
