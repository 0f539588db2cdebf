"""Show traced samples on one self-contained HTML page: which token was written when, and with what confidence.

The page is a static template with one block of JSON in it. It loads nothing from the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from twotemp.errors import UserError
from twotemp.policies import PRESETS
from twotemp.records import Grade, Policy, Sample
from twotemp.report.pages import compose

FORK_ENTROPY = math.log(2)  # nats; a fair coin
_SYMBOLS = {"t_pos": ("T", "pos"), "t_token": ("T", "token"), "threshold": ("λ", ""), "k": ("K", "")}
_CONTEXT = 4  # tokens to the left that a token's text may depend on (spaces, characters of several tokens)


def page(
    samples: Sequence[Sample],
    tokenizer: Any | None = None,
    *,
    title: str = "twotemp trace",
    fork_entropy: float = FORK_ENTROPY,
    each: int | None = None,
    grades: Sequence[Grade | None] = (),
) -> str:
    """Return the HTML page of some samples, one row per policy.

    Args:
        samples: Samples with traces.
        tokenizer: Decodes tokens; None: they are shown as their ids.
        title: The title of the page.
        fork_entropy: Positions committed with at least this entropy (nats) are marked as forks.
        each: How many samples of a policy are expanded at first (None: all); the others are in its map of orders.
        grades: The grade of each sample, if known.
    """
    if not samples:
        raise UserError("no sample to show")
    # A prompt that all samples share, with nothing but masks after it, is shown once, above the samples.
    length = len(samples[0].prompt)
    shared = len({s.prompt for s in samples}) == 1 and samples[0].positions[0] >= length
    shown = [_sample_data(s, tokenizer) for s in samples]
    prompt = "".join(cell["text"] for cell in shown[0]["cells"][:length] if not cell["special"]).strip()
    for sample, grade in zip(shown, [*grades, *[None] * len(shown)]):
        sample["cells"] = sample["cells"][length:] if shared else sample["cells"]
        sample["verdict"] = _verdict(grade)
    entropies = [cell["entropy"] for sample in shown for cell in sample["cells"] if "step" in cell]
    data = {
        "title": title,
        "fork": fork_entropy,
        "most": max(entropies),  # the scale of the entropy bars
        "prompt": prompt if shared else None,
        "each": len(shown) if each is None else each,
        "samples": shown,
    }
    return compose("trace", data)


def _verdict(grade: Grade | None) -> str | None:
    """Return right, wrong or None; a sample that our grader failed on is not wrong."""
    if grade is None or grade.outcome == "ungraded":
        return None
    return "right" if grade.passed else "wrong"


def _sample_data(sample: Sample, tokenizer: Any | None) -> dict[str, Any]:
    if sample.trace is None:
        raise UserError(
            f"sample {sample.index}, {sample.text[:40]!r}, has no trace; draw it again with --trace"
        )
    row = dict(enumerate(sample.prompt)) | dict(zip(sample.positions, sample.tokens))
    ids = [row[position] for position in sorted(row)]
    special = set(tokenizer.all_special_ids) if tokenizer is not None else set()
    cells: list[dict[str, Any]] = [
        {"text": text, "id": token, "position": position, "special": token in special}
        for position, (token, text) in enumerate(zip(ids, pieces(ids, tokenizer)))
    ]
    for position, step, confidence, entropy in zip(
        sample.positions, sample.trace.steps, sample.trace.confidence, sample.trace.entropy
    ):
        cells[position] |= {"step": step, "confidence": round(confidence, 5), "entropy": round(entropy, 5)}
    for step, index, token in sample.trace.edits:
        before = cells[sample.positions[index]].setdefault("before", [])
        # With remasking every other entry of a position is the mask, which has no text.
        masked = sample.policy.edit == "remask" and len(before) % 2 == 1
        before.append((step, None if masked else pieces([token], tokenizer)[0]))
    preset = PRESETS.get(sample.policy.name)
    return {
        "name": sample.policy.name.upper(),  # as on the command line and in the playground; the formula says more
        "formula": preset.formula if preset else "",
        "settings": _settings(sample.policy),
        "index": sample.index,
        "nfe": sample.nfe,
        "steps": max(sample.trace.steps) + 1,
        "cells": cells,
    }


def _settings(policy: Policy) -> list[tuple[str, str, str]]:
    """Return (symbol, subscript, value) of each parameter of the policy."""
    preset = PRESETS.get(policy.name)
    names = (*(preset.parameters if preset else ()), "t_token")
    settings = []
    for name in names:
        value = getattr(policy, name)
        text = "∞" if value == math.inf else f"{value:g}"
        settings.append((*_SYMBOLS.get(name, (name.replace("_", " "), "")), text))
    return settings


def pieces(ids: Sequence[int], tokenizer: Any | None) -> list[str]:
    """Return the text that each token adds. A character of several tokens belongs to the last of them."""
    if tokenizer is None:
        return [f" {token}" for token in ids]

    def text(part: Sequence[int]) -> str:
        return str(
            tokenizer.decode(list(part), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    texts = []
    for end in range(len(ids)):
        start = max(0, end - _CONTEXT)
        before = text(ids[start:end]).rstrip("\ufffd") if start < end else ""
        texts.append(text(ids[start : end + 1])[len(before) :].rstrip("\ufffd") or "\ufffd")
    return texts
