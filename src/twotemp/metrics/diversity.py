"""How different texts are, without a verdict on any of them: distinct-n, self-BLEU, and the overlap of bigrams.

All are about words: runs of letters and digits, and single other characters. They depend on how many texts there are,
and on their length, so compare equal numbers and look at the lengths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from twotemp.records import Sample

_WORDS = re.compile(r"\w+|[^\w\s]")
_ORDERS = 4  # of BLEU

Words = tuple[str, ...]


def words(text: str) -> Words:
    """Return the words of a text.

    >>> words("3 + 4 = 7.")
    ('3', '+', '4', '=', '7', '.')
    """
    return tuple(_WORDS.findall(text))


def distinct(texts: Sequence[str], n: int = 2) -> float:
    """Return distinct-n: the share of the n-grams of all texts that are different; NaN if there are none.

    >>> distinct(["a b c", "a b d"])
    0.75
    """
    grams = [gram for text in texts for gram in _grams(words(text), n)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def self_bleu(texts: Sequence[str]) -> float:
    """Return the mean BLEU-4 of each text with the others as references: 1 where all are the same.

    Precisions of orders above 1 are smoothed by adding one to both counts (Lin and Och, 2004). Empty texts have a
    BLEU of 0. NaN for fewer than two texts.

    >>> self_bleu(["a b c d", "a b c d"])
    1.0
    """
    if len(texts) < 2:
        return float("nan")
    rows = [words(text) for text in texts]
    counts = [[Counter(_grams(row, n)) for row in rows] for n in range(1, _ORDERS + 1)]
    limits = [_two_largest(order) for order in counts]
    return sum(_bleu(i, rows, counts, limits) for i in range(len(rows))) / len(rows)


def overlap_distance(texts: Sequence[str]) -> float:
    """Return the mean over pairs of 1 - |A and B| / |A or B|, A and B the bigrams of two texts; NaN without a pair.

    The end of a text counts as a word, so that even a single word has a bigram.

    >>> overlap_distance(["a b", "a b"]), overlap_distance(["a b", "c d"])
    (0.0, 1.0)
    """
    sets = [set(_grams((*words(text), ""), 2)) or {("",)} for text in texts]
    pairs = [1 - len(a & b) / len(a | b) for a, b in combinations(sets, 2)]
    return sum(pairs) / len(pairs) if pairs else float("nan")


def _grams(row: Sequence[str], n: int) -> list[Words]:
    return [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]


def _two_largest(counts: Sequence[Counter[Words]]) -> dict[Words, tuple[int, int]]:
    """Return how often each n-gram occurs in the text that has most of it, and in the next one."""
    largest: dict[Words, tuple[int, int]] = {}
    for counter in counts:
        for gram, count in counter.items():
            first, second = largest.get(gram, (0, 0))
            largest[gram] = (max(first, count), max(second, min(first, count)))
    return largest


def _bleu(
    i: int,
    rows: Sequence[Words],
    counts: Sequence[Sequence[Counter[Words]]],
    limits: Sequence[dict[Words, tuple[int, int]]],
) -> float:
    length = len(rows[i])
    if not length:
        return 0.0
    total = 0.0
    for order, (counters, limit) in enumerate(zip(counts, limits)):
        own = counters[i]
        # The most that any other text has of it: the largest count, unless that is this text's own alone.
        shared = sum(min(c, limit[g][1] if limit[g][0] == c else limit[g][0]) for g, c in own.items())
        smooth = int(order > 0)
        if not shared + smooth:
            return 0.0
        total += log((shared + smooth) / (own.total() + smooth))
    nearest = min((abs(len(row) - length), len(row)) for j, row in enumerate(rows) if j != i)[1]
    return exp(min(0.0, 1 - nearest / length) + total / _ORDERS)


def token_losses(sample: Sample) -> NDArray[np.float64]:
    """Return -log c of each token of a traced sample up to the padding, c its probability when it was written."""
    assert sample.trace is not None, "draw with trace=True"
    end = len(sample.tokens)
    # An end of text is repeated up to the length of the row; one of them belongs to the text.
    while end > 1 and sample.tokens[end - 2] == sample.tokens[-1]:
        end -= 1
    written = zip(sample.trace.confidence[:end], sample.trace.steps)
    return np.array([-log(max(c, 1e-45)) for c, step in written if step >= 0])
