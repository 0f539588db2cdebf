"""Samples with a trace as one self-contained HTML page: what was written when, and how surely.

The page is a static template; what changes is one block of JSON in it. It asks the network for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from twotemp.errors import UserError
from twotemp.policies import PRESETS
from twotemp.records import Grade, Policy, Sample
from twotemp.report.single_file import template
from twotemp.serialization import json_text

FORK_ENTROPY = math.log(2)  # as undecided as a fair coin
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
    """The page of some samples, a row for each policy; without a tokenizer tokens are shown as their ids.

    fork_entropy: positions committed with at least this entropy (nats) are marked as forks. each: how many samples
    of a policy are open at first (None: all); the others are in its map of orders. grades: of each sample, if known.
    """
    if not samples:
        raise UserError("no sample to show")
    # One prompt for all, and nothing but masks after it: then it is shown once, above the samples.
    given = len(samples[0].prompt)
    shared = len({s.prompt for s in samples}) == 1 and samples[0].positions[0] >= given
    shown = [_sample(sample, tokenizer) for sample in samples]
    prompt = "".join(cell["text"] for cell in shown[0]["cells"][:given] if not cell["special"]).strip()
    for one, grade in zip(shown, [*grades, *[None] * len(shown)]):
        one["cells"] = one["cells"][given:] if shared else one["cells"]
        one["verdict"] = _verdict(grade)
    entropies = [cell["entropy"] for one in shown for cell in one["cells"] if "step" in cell]
    data = {
        "title": title,
        "fork": fork_entropy,
        "most": max(entropies),  # the scale of the entropy bars
        "prompt": prompt if shared else None,
        "each": len(shown) if each is None else each,
        "samples": shown,
    }
    return template("twotemp.report", "trace.html").replace("/*DATA*/", _inside_script(data))


def _verdict(grade: Grade | None) -> str | None:
    """`ungraded` is nobody's fault who wrote the sample."""
    if grade is None or grade.outcome == "ungraded":
        return None
    return "right" if grade.passed else "wrong"


def _inside_script(data: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever the tokens are."""
    text = json_text(data, compact=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sample(sample: Sample, tokenizer: Any | None) -> dict[str, Any]:
    if sample.trace is None:
        raise UserError(
            f"sample {sample.index} of request {sample.request!r} has no trace; draw it again with --trace"
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
    for step, place, token in sample.trace.edits:
        before = cells[sample.positions[place]].setdefault("before", [])
        # Where tokens become masks again, every other one that stood there was the mask: it has no text.
        taken_back = sample.policy.edit == "remask" and len(before) % 2 == 1
        before.append((step, None if taken_back else pieces([token], tokenizer)[0]))
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
    """(symbol, subscript, value) of the numbers that belong to this policy."""
    preset = PRESETS.get(policy.name)
    names = (*(preset.parameters if preset else ()), "t_token")
    found = []
    for name in names:
        value = getattr(policy, name)
        text = "∞" if value == math.inf else f"{value:g}"
        found.append((*_SYMBOLS.get(name, (name.replace("_", " "), "")), text))
    return found


def pieces(ids: Sequence[int], tokenizer: Any | None) -> list[str]:
    """The text that each token adds. A character spread over several tokens belongs to the one that ends it."""
    if tokenizer is None:
        return [f" {token}" for token in ids]

    def text(part: Sequence[int]) -> str:
        return str(
            tokenizer.decode(list(part), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    found = []
    for end in range(len(ids)):
        start = max(0, end - _CONTEXT)
        before = text(ids[start:end]).rstrip("\ufffd") if start < end else ""
        found.append(text(ids[start : end + 1])[len(before) :].rstrip("\ufffd") or "\ufffd")
    return found
