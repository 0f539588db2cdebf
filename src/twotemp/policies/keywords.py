"""Errors for the keywords of other libraries, which name the ones used here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from twotemp.errors import UserError
from twotemp.records import PARAMETERS

P = ParamSpec("P")
R = TypeVar("R")
# By what `generate` of transformers, vLLM and diffusion samplers call them.
OURS = {
    "temperature": "t_token in the policy's spelling, such as 'tct:t_token=0.8'",
    "max_new_tokens": "length",
    "max_tokens": "length",
    "max_length": "length (tokens of the answer alone)",
    "gen_length": "length",
    "num_return_sequences": "n",
    "num_samples": "n",
    "block_length": "block",
}


def explain_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with a UserError where a keyword is called otherwise here, or belongs to the policy."""
    accepted = signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords.keys() - accepted.keys():
            if name in PARAMETERS:
                advice = f"write it into the policy's spelling, such as 'tct:{name}=...'"
            elif name in OURS:
                ours = OURS[name].split()[0]
                known = ours in accepted or ours in PARAMETERS
                advice = f"use {OURS[name]}" if known else "leave it out"
            else:
                continue
            raise UserError(f"{function.__name__} has no {name}; {advice}")
        return function(*args, **keywords)

    return call
