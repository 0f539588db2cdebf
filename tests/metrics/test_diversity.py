"""Diversity without verdicts: known values, and what the metrics must not depend on."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from twotemp.metrics import distinct, overlap_distance, self_bleu, words


def brute_force_self_bleu(texts: list[str]) -> float:
    """Return the same by BLEU's definition, one text against the others."""
    total = 0.0
    for i, text in enumerate(texts):
        own, rest = words(text), [words(other) for j, other in enumerate(texts) if j != i]
        if not own:
            continue
        precisions = []
        for n in range(1, 5):
            grams = Counter(own[k : k + n] for k in range(len(own) - n + 1))
            most: Counter[tuple[str, ...]] = Counter()
            for row in rest:
                most |= Counter(row[k : k + n] for k in range(len(row) - n + 1))
            shared, plus = sum((grams & most).values()), int(n > 1)
            precisions.append((shared + plus) / (grams.total() + plus))
        nearest = min((abs(len(row) - len(own)), len(row)) for row in rest)[1]
        if all(precisions):
            brevity = min(1.0, math.exp(1 - nearest / len(own)))
            total += brevity * math.exp(sum(map(math.log, precisions)) / 4)
    return total / len(texts)


def test_self_bleu_is_that_of_its_definition() -> None:
    random = Random(0)
    for _ in range(30):
        texts = [
            " ".join(random.choices("abcd", k=random.randrange(9))) for _ in range(random.randrange(2, 7))
        ]
        assert self_bleu(texts) == pytest.approx(brute_force_self_bleu(texts))
        assert self_bleu(texts[::-1]) == pytest.approx(self_bleu(texts))


def test_equal_and_disjoint_texts_are_the_ends_of_the_scales() -> None:
    same, other = ["a b c d e"] * 4, ["a b c d e", "f g h i j", "k l m n o"]
    assert (self_bleu(same), overlap_distance(same), distinct(same, 2)) == (1.0, 0.0, 0.25)
    assert (self_bleu(other), overlap_distance(other), distinct(other, 2)) == (0.0, 1.0, 1.0)
    assert overlap_distance(["yes", "no"]) == 1.0
    assert overlap_distance(["yes", "yes", "no"]) == pytest.approx(2 / 3)
    assert overlap_distance(["", ""]) == 0.0
    assert math.isnan(distinct(["a", "b"], 2))
    assert math.isnan(self_bleu(["a"]))
    assert math.isnan(overlap_distance(["a"]))
