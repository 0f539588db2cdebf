"""Run `twotemp forks` on the embedded model, and render its table."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from experiments.blocks import signed, table
from experiments.command import twotemp
from twotemp.tasks import SOURCES


def run(out: Path, questions: int) -> dict[str, Any]:
    """Run the fork study of all embedded tasks and return its rows."""
    output = io.StringIO()
    with redirect_stdout(output):
        size = ["--tasks", ",".join(SOURCES), "--questions", str(questions)]
        twotemp("forks", *size, "--out", str(out), "--json")
    rows = [json.loads(line) for line in output.getvalue().splitlines() if line.startswith("{")]
    return {"questions": questions, "studies": rows}


def render(result: dict[str, Any]) -> str:
    """Return the table of the study, with the paper's numbers below."""

    def percent(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.0f} %"

    def number(value: float | None, sign: bool = False) -> str:
        return "–" if value is None else signed(value, 2) if sign else f"{value:.2f}"

    rows = [
        [
            study["task"],
            str(study["forks"]),
            number(study["threshold"]),
            number(study["median_slope"], sign=True),
            percent(study["falling"]),
            number(study["median_r2"]),
            percent(study["two_or_more"]),
        ]
        for study in result["studies"]
    ]
    rows.append(["*paper, 8B models*", "", "", "", "almost all", "about 0.7", "44 % to 79 %"])
    heads = [
        "task",
        "forks",
        "threshold (nats)",
        "median slope",
        "share falling",
        "median R²",
        "share with 2 or more outcomes",
    ]
    return f"{result['questions']} prompts per task; other settings are the defaults.\n\n{table(heads, rows)}"
