"""What to write and where: the two choices of a decoding step, each with its own temperature."""

from twotemp.policies.presets import PRESETS, Preset, parse, policy, spell

__all__ = ["PRESETS", "Preset", "parse", "policy", "spell"]
