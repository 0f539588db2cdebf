"""The question shown in the docs is chosen by a rule."""

from __future__ import annotations

from docs.tools.pictures import typical


def test_the_picture_shows_the_question_with_the_median_gain() -> None:
    few, more, most = ({"a"}, {"a"}), ({"a"}, {"a", "b"}), ({"a"}, {"a", "b", "c", "d"})
    assert typical([most, few, more]) == 2
    assert typical([few, most, most]) == 1  # equal gains: the first of them
