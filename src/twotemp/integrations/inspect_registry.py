"""What inspect_ai finds by its entry point: the name of the provider, and where it is once somebody wants it."""

from __future__ import annotations

from typing import Any

from inspect_ai.model import modelapi


@modelapi(name="twotemp")  # type: ignore[untyped-decorator]  # inspect_ai need not be installed
def twotemp() -> Any:
    from twotemp.integrations.inspect_ai import TwoTempAPI

    return TwoTempAPI
