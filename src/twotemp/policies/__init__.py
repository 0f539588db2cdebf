"""What to write and where: the two choices of a decoding step, each with its own temperature."""

from twotemp.policies.portfolio import AnyPolicy, Portfolio, parse_portfolio, policy_from_dict, spell
from twotemp.policies.presets import PRESETS, Preset, parse, policy

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
