"""What to write and where: the two choices of a decoding step, each with its own temperature."""

from twotemp.policies.presets import PRESETS, Preset
from twotemp.policies.spelling import (
    AnyPolicy,
    Portfolio,
    parse,
    parse_portfolio,
    policy,
    policy_from_dict,
    spell,
)

__all__ = [
    "PRESETS",
    "AnyPolicy",
    "Portfolio",
    "Preset",
    "parse",
    "parse_portfolio",
    "policy",
    "policy_from_dict",
    "spell",
]
