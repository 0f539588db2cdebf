"""Hold tokens per forward constant by moving lambda, so that growing confidence does not become growing haste."""

from __future__ import annotations

import math

GAIN = 0.2  # logits of lambda for each e-fold of tokens per forward above the target
LEAST, MOST = 0.05, 0.999  # where lambda still does something


def next_threshold(threshold: float, tokens_per_forward: float, target: float) -> float:
    """Integral control in the logit of lambda: logit(lambda') = logit(lambda) + gain * log(speed / target)."""
    inside = min(max(threshold, LEAST), MOST)
    moved = math.log(inside / (1 - inside)) + GAIN * math.log(tokens_per_forward / target)
    return min(max(1 / (1 + math.exp(-moved)), LEAST), MOST)
