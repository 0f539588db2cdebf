"""Compare LaTeX answers with math-verify, in a child process: one line of JSON in, one out.

The timeouts of math-verify are off, because they are alarms that cancel each other and hide what happened: the
parent measures the time. The one alarm set here ends a child whose parent was killed during a question.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from functools import lru_cache
from typing import Any

ORPHAN_SECONDS = 60
# Decimal digits of a numerical comparison. Differences below 10 to the minus this are dropped: with the library's 15,
# 2^{-98} is 2^{-99}.
DIGITS = 100


def main() -> None:
    """Answer questions until standard input closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    logging.disable()
    from math_verify import LatexExtractionConfig, parse, verify

    boxed = [LatexExtractionConfig(boxed_match_priority=0)]

    @lru_cache(maxsize=4096)
    def parsed(latex: str) -> Any:
        # The whole box or nothing: by default a part of it is read where the whole makes no sense.
        return parse(rf"\boxed{{{latex}}}", boxed, extraction_mode="first_match", parsing_timeout=None)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    say({"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        signal.alarm(ORPHAN_SECONDS)
        try:
            gold, answer = parsed(question["gold"]), parsed(question["answer"])
            same = verify(gold, answer, numeric_precision=DIGITS, timeout_seconds=None)
            say({"same": bool(same)})
        except Exception as error:  # an answer that breaks math-verify is not the right one
            say({"same": False, "detail": f"math-verify: {type(error).__name__}"})
        signal.alarm(0)


if __name__ == "__main__":
    main()
